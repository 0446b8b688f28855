"""An engine, and what is published, as far as WeightsFollower sees them: in memory, with faults on demand."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.proxy.vllm_admin import EngineError
from headrace.schemas.records import ResourceVersion, now
from headrace.streams.client.manifest import manifest_of


class FakeAdmin:
    """Behaves as vLLM was seen to: see `VllmAdmin`."""

    def __init__(self, word: str = "default") -> None:
        self.word = word
        self.is_up = True
        self.is_paused = False
        self.is_sound = True
        self.samples_as_told = True
        self.logprob = -1.0
        self.has_stale_cache = False
        self.weights: Path | None = None
        self.done: list[str] = []
        self.faults: dict[str, str] = {}
        """By the name of a method: what it fails with, once."""
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.is_loading = False

    def restart(self) -> None:
        self.word, self.weights, self.is_paused, self.is_sound = "default", None, False, True

    async def weight_version(self) -> str:
        await self._begin("weight_version")
        return self.word

    async def set_weight_version(self, version: str) -> None:
        await self._begin(f"set_weight_version {version}")
        self.word = version

    async def pause(self) -> None:
        await self._begin("pause")
        self.is_paused = True

    async def load(self, folder: Path) -> None:
        await self._begin("load")
        assert self.is_paused
        self.is_loading = True
        await self.may_load.wait()
        self.is_loading = False
        self.is_sound = folder.is_dir()  # noqa: ASYNC240  nobody waits for it
        if not self.is_sound:
            raise EngineError("no such folder")
        self.weights, self.has_stale_cache = folder, True

    async def reset_prefix_cache(self) -> None:
        await self._begin("reset_prefix_cache")
        self.has_stale_cache = False

    async def resume(self) -> None:
        await self._begin("resume")
        self.is_paused = False

    async def probe(self) -> None:
        await self._begin("probe")
        assert not self.is_paused
        if not self.is_sound:
            self.is_up = False
            raise EngineError("it died")

    async def logprobs_of(self, token_ids: Sequence[int]) -> list[float]:
        await asyncio.sleep(0)
        if not self.is_up:
            raise EngineError("it can't be reached")
        return [self.logprob] * (len(token_ids) - 1)

    async def base_models(self) -> frozenset[str]:
        await asyncio.sleep(0)
        if not self.is_up:
            raise EngineError("it can't be reached")
        return frozenset({"fake"})

    async def gives_sampled_logprobs(self) -> bool:
        await asyncio.sleep(0)
        if not self.is_up:
            raise EngineError("it can't be reached")
        return self.samples_as_told

    async def _begin(self, what: str) -> None:
        await asyncio.sleep(0)
        if not self.is_up:
            raise EngineError("it can't be reached")
        fault = self.faults.pop(what, None)
        if what != "weight_version":
            self.done.append(what)
        if fault is not None:
            raise EngineError(fault)


class FakeVersions:
    def __init__(self) -> None:
        self._newest: dict[str, ResourceVersion] = {}
        self._callbacks: list[Callable[[ResourceVersion], None]] = []

    def resolve(self, pinned: Mapping[str, int] | None = None) -> Mapping[str, ResourceVersion]:
        assert not pinned
        return dict(self._newest)

    def on_change(self, callback: Callable[[ResourceVersion], None]) -> None:
        self._callbacks.append(callback)

    def publish(self, version: ResourceVersion) -> None:
        self._newest[version.name] = version
        for callback in self._callbacks:
            callback(version)


def published(
    folder: Path, number: int, name: str = "policy", metadata: Mapping[str, str] | None = None
) -> ResourceVersion:
    """The record of what is in the folder now."""
    return ResourceVersion(
        name=name,
        version=number,
        kind="weights",
        uri=folder.resolve().as_uri(),
        manifest=manifest_of(folder),
        metadata=dict(metadata or {}),
        time=now(),
    )


def write_weights(folder: Path, content: str = "weights") -> Path:
    """Something that has files."""
    (folder / "shards").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "shards" / "1.safetensors").write_text(content)
    return folder
