"""What is told of engines, on the fake that other tests use and on vLLM itself; and new weights on vLLM."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.proxy.fake_admin import FakeAdmin, FakeVersions, published
from tests.proxy.loops import run
from tests.services import vllm_server

from headrace.cli.stack.vllm import VllmServer
from headrace.proxy.engines import Engine, Engines, Version
from headrace.proxy.vllm_admin import EngineAdmin, EngineError, VllmAdmin, admin_session
from headrace.proxy.weights import WeightsFollower

PROMPT = [64, 71, 200, 9]
NUM_TOKENS = 12

Entered = AbstractAsyncContextManager[EngineAdmin]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[VllmServer]:
    """This module's own: its weights change."""
    with vllm_server(tmp_path_factory.mktemp("vllm"), tiny_model) as server:
        yield server


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    from tests.tiny_model import make  # noqa: PLC0415  torch

    root = tmp_path_factory.mktemp("models")

    def model(seed: int) -> Path:
        folder = root / str(seed)
        return folder if folder.exists() else make(folder, seed)

    return model


@asynccontextmanager
async def real(server: VllmServer) -> AsyncIterator[VllmAdmin]:
    async with admin_session() as session:
        yield VllmAdmin("e0", server.endpoint, session)


@pytest.fixture(params=["fake", pytest.param("vllm", marks=pytest.mark.integration)])
def admin(request: pytest.FixtureRequest) -> Callable[[], Entered]:
    if request.param == "vllm":
        server: VllmServer = request.getfixturevalue("server")
        return lambda: real(server)

    @asynccontextmanager
    async def fake() -> AsyncIterator[FakeAdmin]:
        yield FakeAdmin()

    return fake


# --- the contract -----------------------------------------------------------------------------------------


def test_the_version_is_the_word_that_was_set(admin: Callable[[], Entered]) -> None:
    async def test() -> None:
        async with admin() as engine:
            for word in ("loading policy@4", "policy@4"):
                await engine.set_weight_version(word)
                assert await engine.weight_version() == word

    run(test)


def test_an_engine_has_a_model_of_its_own(admin: Callable[[], Entered]) -> None:
    async def test() -> None:
        async with admin() as engine:
            assert len(await engine.base_models()) == 1

    run(test)


def test_weights_are_loaded_while_paused(admin: Callable[[], Entered], models: Callable[[int], Path]) -> None:
    async def test() -> None:
        async with admin() as engine:
            await engine.set_weight_version("policy@1")
            await engine.pause()
            await engine.load(models(1))
            await engine.reset_prefix_cache()
            await engine.resume()
            await engine.probe()
            assert await engine.gives_sampled_logprobs()
            logprobs = await engine.logprobs_of(PROMPT)
            assert len(logprobs) == len(PROMPT) - 1
            assert all(logprob < 0 for logprob in logprobs)
            # It does not know what it was given.
            assert await engine.weight_version() == "policy@1"

    run(test, timeout_s=60)


def test_a_failed_load_is_mended_by_another(
    admin: Callable[[], Entered], models: Callable[[int], Path], tmp_path: Path
) -> None:
    async def test() -> None:
        async with admin() as engine:
            await engine.pause()
            with pytest.raises(EngineError):
                await engine.load(tmp_path / "nothing")
            await engine.load(models(1))
            await engine.resume()
            await engine.probe()

    run(test, timeout_s=60)


# --- new weights in vLLM ----------------------------------------------------------------------------------


async def greedy(server: VllmServer) -> list[int]:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.endpoint}/v1/completions", json=body | {"return_token_ids": True}) as response,
    ):
        answer: dict[str, Any] = await response.json()
        ids: list[int] = answer["choices"][0]["token_ids"]
        return ids


def greedy_of_files(folder: Path) -> list[int]:
    """The same by another implementation."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    prompt = torch.tensor([PROMPT])
    whole = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NUM_TOKENS
    )
    ids: list[int] = whole[0, len(PROMPT) :].tolist()
    return ids


class Followed:
    """The server as an engine of a proxy."""

    def __init__(self, server: VllmServer, session: aiohttp.ClientSession) -> None:
        self.engine = Engine("e0", server.endpoint)
        self.engines = Engines([self.engine])
        self.versions = FakeVersions()
        self.admin = VllmAdmin("e0", server.endpoint, session)
        self.follower = WeightsFollower(
            self.engines, self.versions, "policy", lambda _: self.admin, check_s=0.2, retry_s=1000
        )

    async def until_serves(self, number: int) -> None:
        while not (self.engine.state == "serving" and self.engine.version == Version("policy", number)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@asynccontextmanager
async def followed(server: VllmServer) -> AsyncIterator[Followed]:
    async with admin_session() as session:
        scene = Followed(server, session)
        async with scene.follower:
            yield scene


@pytest.mark.integration
def test_g9_new_weights_generate_what_their_files_do(
    server: VllmServer, models: Callable[[int], Path]
) -> None:
    wanted = {seed: greedy_of_files(models(seed)) for seed in (1, 2)}
    assert wanted[1] != wanted[2]

    async def test() -> None:
        async with followed(server) as scene:
            for seed, number in ((1, 11), (2, 12), (1, 13)):
                scene.versions.publish(published(models(seed), number))
                await scene.until_serves(number)
                assert await scene.admin.weight_version() == f"policy@{number}"
                async with scene.engines.acquire("a") as lease:
                    assert await greedy(server) == wanted[seed]
                    assert lease.version == Version("policy", number)

    run(test, timeout_s=60)


@pytest.mark.integration
def test_c15_half_written_weights_are_never_loaded(
    server: VllmServer, models: Callable[[int], Path], tmp_path: Path
) -> None:
    half = shutil.copytree(models(2), tmp_path / "half")
    version = published(half, 22)
    weights = half / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])

    async def test() -> None:
        async with followed(server) as scene:
            scene.versions.publish(published(models(1), 21))
            await scene.until_serves(21)
            before = await greedy(server)
            scene.versions.publish(version)
            while scene.follower.why_bad is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert scene.engine.state == "serving"
            assert await scene.admin.weight_version() == "policy@21"
            assert await greedy(server) == before

    run(test, timeout_s=60)


@pytest.mark.integration
def test_weights_that_do_not_fit_take_the_engine_out_till_others_come(
    server: VllmServer, models: Callable[[int], Path], tmp_path: Path
) -> None:
    other = shutil.copytree(models(2), tmp_path / "other")
    (other / "model.safetensors").write_bytes(b"no weights at all")

    async def test() -> None:
        async with followed(server) as scene:
            scene.versions.publish(published(other, 31))
            while scene.engine.state != "out":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (
                "policy@31 could not be loaded: e0 answered /collective_rpc with 500" in scene.engine.reason
            )
            scene.versions.publish(published(models(2), 32))
            await scene.until_serves(32)
            assert await greedy(server) == greedy_of_files(models(2))

    run(test, timeout_s=60)


@pytest.mark.chaos
def test_an_engine_that_restarted_gets_its_weights_again(
    server: VllmServer, models: Callable[[int], Path]
) -> None:
    async def test() -> None:
        async with followed(server) as scene:
            scene.versions.publish(published(models(1), 41))
            await scene.until_serves(41)
            server.kill()
            await asyncio.to_thread(server.start)
            await scene.until_serves(41)
            assert await greedy(server) == greedy_of_files(models(1))

    run(test, timeout_s=240)


def tied(model: Path, folder: Path) -> Path:
    """The same model with its embeddings for a head, as most small ones are."""
    from safetensors.torch import load_file, save_file  # noqa: PLC0415  torch

    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def logprobs_of_files(folder: Path, ids: list[int]) -> list[float]:
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logp = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(logp[place, token]) for place, token in enumerate(ids[1:])]


@pytest.mark.integration
def test_g9_new_weights_reach_a_tied_head(models: Callable[[int], Path], tmp_path: Path) -> None:
    """On a CPU vLLM packs the head once: it would go on to be the old one's, half of each version."""
    first, second = (tied(models(seed), tmp_path / str(seed)) for seed in (1, 2))
    ids = [*PROMPT, 12, 90, 200]

    async def test(server: VllmServer) -> None:
        async with followed(server) as scene:
            for number, folder in ((31, second), (32, first), (33, second)):
                scene.versions.publish(published(folder, number))
                await scene.until_serves(number)
                assert await scene.admin.logprobs_of(ids) == pytest.approx(
                    logprobs_of_files(folder, ids), abs=1e-4
                )

    with vllm_server(tmp_path, first) as server:
        run(lambda: test(server), timeout_s=90)
