import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.fake_admin import FakeAdmin, FakeVersions, published, write_weights
from tests.proxy.loops import run, until

from headrace.proxy.engines import NEW_WEIGHTS, Engine, Engines, Version
from headrace.proxy.vllm_admin import EngineError
from headrace.proxy.weights import WeightsFollower
from headrace.schemas.probe import Probe

NEVER_S = 1000.0


class Fleet:
    """Engines with fake insides, and what is published for them."""

    def __init__(self, tmp_path: Path, *words: str, name: str | None = "policy", **timing: float) -> None:
        self._tmp_path = tmp_path
        self.admins = [FakeAdmin(word) for word in words or ("default",)]
        self.all = [Engine(f"e{place}", "http://127.0.0.1:1") for place in range(len(self.admins))]
        self.engines = Engines(self.all)
        self.versions = FakeVersions()
        by_engine = dict(zip(self.all, self.admins, strict=True))
        self.follower = WeightsFollower(
            self.engines,
            self.versions,
            name,
            by_engine.__getitem__,
            **{"check_s": 0.005, "retry_s": NEVER_S, **timing},
        )

    def write(self, number: int) -> Path:
        return write_weights(self._tmp_path / f"v{number}", f"weights of {number}")

    def publish(self, number: int) -> Path:
        folder = self.write(number)
        self.versions.publish(published(folder, number))
        return folder

    def serves(self, number: int | None, place: int = 0) -> bool:
        engine = self.all[place]
        version = None if number is None else Version("policy", number)
        return engine.state == "serving" and engine.version == version

    def is_out(self, why: str, place: int = 0) -> bool:
        return self.all[place].state == "out" and why in self.all[place].reason

    @asynccontextmanager
    async def serving(self, number: int | None) -> AsyncIterator[None]:
        async with self.follower:
            await until(lambda: all(self.serves(number, place) for place in range(len(self.all))))
            for admin in self.admins:
                admin.done.clear()
            yield


def test_with_nothing_published_engines_serve_without_a_version(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path)
        async with fleet.follower:
            assert fleet.serves(None)
            assert fleet.follower.newest is None
            assert not fleet.admins[0].done

    run(test)


def test_an_engine_that_has_the_newest_version_is_left_alone(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, "policy@3")
        fleet.publish(3)
        async with fleet.follower:
            assert fleet.serves(3)
            assert not fleet.admins[0].done

    run(test)


def test_a_new_version_is_loaded_step_by_step(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, "policy@3")
        fleet.publish(3)
        async with fleet.serving(3):
            folder = fleet.publish(4)
            await until(lambda: fleet.serves(4))
            (admin,) = fleet.admins
            assert admin.done == [
                "set_weight_version loading policy@4",
                "pause",
                "load",
                "reset_prefix_cache",
                "resume",
                "probe",
                "set_weight_version policy@4",
            ]
            assert admin.weights == folder

    run(test)


def test_other_names_are_not_followed(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path)
        async with fleet.serving(None):
            fleet.versions.publish(published(fleet.write(1), 1, name="critic"))
            fleet.publish(2)
            await until(lambda: fleet.serves(2))
            fleet.versions.publish(published(fleet.write(9), 9, name="critic"))
            fleet.publish(3)
            await until(lambda: fleet.serves(3))

    run(test)


def test_an_engine_with_other_weights_gets_ours(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, "critic@9")
        fleet.publish(1)
        async with fleet.follower:
            assert fleet.all[0].state == "starting"
            await until(lambda: fleet.serves(1))

    run(test)


def test_it_skips_to_the_newest(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path)
        fleet.publish(1)
        async with fleet.serving(1):
            (admin,) = fleet.admins
            admin.may_load.clear()
            fleet.publish(2)
            await until(lambda: admin.is_loading)
            fleet.publish(3)
            fleet.publish(4)
            admin.may_load.set()
            await until(lambda: fleet.serves(4))
            assert "set_weight_version policy@3" not in admin.done

    run(test)


def _is_loading(admin: FakeAdmin) -> bool:
    return admin.is_loading


def test_one_engine_is_updated_at_a_time_and_the_others_serve(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, "policy@1", "policy@1", "policy@1")
        fleet.publish(1)
        async with fleet.serving(1):
            for admin in fleet.admins:
                admin.may_load.clear()
            fleet.publish(2)
            for place, admin in enumerate(fleet.admins):
                await until(partial(_is_loading, admin))
                assert [engine.state for engine in fleet.engines].count("serving") == 2
                async with fleet.engines.acquire("a") as lease:
                    assert lease.engine is not fleet.all[place]
                admin.may_load.set()
                await until(partial(fleet.serves, 2, place))

    run(test)


def test_c15_half_written_weights_are_refused_and_the_old_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, retry_s=0.01)
        fleet.publish(1)
        async with fleet.serving(1):
            folder = fleet.write(2)
            version = published(folder, 2)
            shard = folder / "shards" / "1.safetensors"
            whole = shard.read_text()
            shard.write_text(whole[:5])
            fleet.versions.publish(version)
            await until(lambda: fleet.follower.why_bad is not None)
            assert "not what was published" in (fleet.follower.why_bad or "")
            assert fleet.serves(1)
            assert not fleet.admins[0].done
            # Whoever was writing comes to its end.
            shard.write_text(whole)
            await until(lambda: fleet.serves(2))
            assert fleet.follower.why_bad is None

    run(test)


def test_an_engine_that_has_no_version_waits_for_one_that_can_be_loaded(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path)
        (fleet.publish(1) / "extra").write_text("")
        async with fleet.follower:
            await until(lambda: fleet.is_out("policy@1 can't be loaded"))
            fleet.publish(2)
            await until(lambda: fleet.serves(2))

    run(test)


@pytest.mark.parametrize(
    "step",
    ["pause", "load", "reset_prefix_cache", "resume", "probe", "set_weight_version policy@2"],
)
def test_an_engine_that_fails_to_load_is_out_and_the_others_go_on(tmp_path: Path, step: str) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, "policy@1", "policy@1")
        fleet.publish(1)
        async with fleet.serving(1):
            fleet.admins[0].faults[step] = "out of memory"
            fleet.publish(2)
            await until(lambda: fleet.serves(2, 1))
            await until(lambda: fleet.is_out("policy@2 could not be loaded: out of memory"))
            await asyncio.sleep(0.02)
            assert fleet.is_out("policy@2 could not be loaded")
            fleet.publish(3)
            await until(lambda: fleet.serves(3, 0) and fleet.serves(3, 1))

    run(test)


def test_an_engine_that_failed_is_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, retry_s=0.01)
        fleet.publish(1)
        async with fleet.serving(1):
            fleet.admins[0].faults["load"] = "out of memory"
            fleet.publish(2)
            await until(lambda: fleet.serves(2))

    run(test)


def test_files_that_change_while_they_are_loaded(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path)
        fleet.publish(1)
        async with fleet.serving(1):
            (admin,) = fleet.admins
            admin.may_load.clear()
            folder = fleet.publish(2)
            await until(lambda: admin.is_loading)
            (folder / "config.json").write_text("{...}")
            admin.may_load.set()
            await until(lambda: fleet.is_out("changed while they were loaded"))

    run(test)


def test_a_restart_is_noticed_and_the_weights_loaded_again(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path)
        folder = fleet.publish(1)
        async with fleet.serving(1):
            (admin,) = fleet.admins
            admin.may_load.clear()
            admin.restart()
            await until(lambda: admin.is_loading)
            assert fleet.all[0].state == "updating"
            admin.may_load.set()
            await until(lambda: fleet.serves(1))
            assert admin.weights == folder

    run(test)


def test_a_restart_is_out_until_the_calls_of_before_have_ended(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path)
        fleet.publish(1)
        async with fleet.serving(1):
            (admin,) = fleet.admins
            async with fleet.engines.acquire("a") as lease:
                admin.restart()
                await until(lambda: fleet.all[0].state != "serving")
                assert lease.version == Version("policy", 1)
                assert not admin.done
            await until(lambda: fleet.serves(1))
            assert "load" in admin.done

    run(test)


def test_a_suspect_is_looked_at_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, check_s=NEVER_S)
        fleet.publish(1)
        async with fleet.serving(1):
            fleet.all[0].suspect()
            assert fleet.is_out("a call failed to reach it")
            await until(lambda: fleet.serves(1))
            assert not fleet.admins[0].done
            fleet.admins[0].restart()
            fleet.all[0].suspect()
            await until(lambda: fleet.serves(1))
            assert "load" in fleet.admins[0].done

    run(test)


@pytest.mark.parametrize("word", ["default", "policy@1", "loading policy@1"])
def test_an_engine_is_asked_what_its_logprobs_are_of_whenever_it_started(tmp_path: Path, word: str) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, word)
        (admin,), (engine,) = fleet.admins, fleet.all
        admin.samples_as_told = False
        fleet.publish(1)
        async with fleet.serving(1):
            assert engine.gives_sampled_logprobs is False
            admin.samples_as_told = True
            admin.restart()
            await until(lambda: engine.state != "serving")
            await until(lambda: fleet.serves(1))
            assert engine.gives_sampled_logprobs is True

    run(test)


PROBE = Probe(token_ids=(1, 2, 3), logprobs=(-0.75, -1.25))


@pytest.mark.parametrize(
    ("max_gap", "serves"), [pytest.param(0.3, True, id="near"), pytest.param(0.2, False, id="not near")]
)
def test_an_engine_computes_what_the_trainer_does_or_is_out(
    tmp_path: Path,
    max_gap: float,
    serves: bool,  # noqa: FBT001
) -> None:
    """G9: files that are right are no proof that the engine has them all."""

    async def test() -> None:
        fleet = Fleet(tmp_path, max_gap=max_gap)
        fleet.versions.publish(published(fleet.write(1), 1, metadata=PROBE.metadata()))
        async with fleet.follower:
            if serves:
                await until(lambda: fleet.serves(1))
                assert fleet.all[0].gap == 0.25
            else:
                await until(lambda: fleet.is_out("it does not compute what the trainer does"))
                assert "its logprobs differ by 0.25 in the mean, and 0.2 is allowed" in fleet.all[0].reason
                assert Version.of(fleet.admins[0].word) is None

    run(test)


def test_logprobs_that_are_no_numbers_are_not_near(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, max_gap=5.0)
        fleet.admins[0].logprob = float("nan")
        fleet.versions.publish(published(fleet.write(1), 1, metadata=PROBE.metadata()))
        async with fleet.follower:
            await until(lambda: fleet.is_out("it does not compute what the trainer does"))

    run(test)


def test_an_engine_that_can_not_be_reached_is_out_till_it_can(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path)
        fleet.admins[0].is_up = False
        fleet.publish(1)
        async with fleet.follower:
            assert fleet.is_out("it can't be reached")
            fleet.admins[0].is_up = True
            await until(lambda: fleet.serves(1))

    run(test)


def test_calls_that_outlast_the_drain_are_cut(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, drain_s=0.01)
        fleet.publish(1)
        async with fleet.serving(1):
            cut: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            async with fleet.engines.acquire("a", cut.set_result):
                fleet.publish(2)
                assert await cut == NEW_WEIGHTS
                assert not fleet.admins[0].done
            await until(lambda: fleet.serves(2))

    run(test)


def test_an_engine_whose_calls_do_not_end_serves_on_and_is_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, drain_s=0, cut_s=0, retry_s=0.01)
        fleet.publish(1)
        async with fleet.serving(1):
            async with fleet.engines.acquire("a"):
                fleet.publish(2)
                await until(lambda: bool(fleet.follower._retry_at))
                async with fleet.engines.acquire("b") as lease:
                    assert lease.version == Version("policy", 1)
            await until(lambda: fleet.serves(2))

    run(test)


@pytest.mark.parametrize("options", [{"name": None}, {}], ids=["no name", "nothing published"])
def test_without_weights_to_follow_engines_are_watched(tmp_path: Path, options: dict[str, Any]) -> None:
    async def test() -> None:
        fleet = Fleet(tmp_path, "policy@7", **options)
        async with fleet.serving(7):
            fleet.admins[0].is_up = False
            await until(lambda: fleet.is_out("it can't be reached"))
            fleet.admins[0].is_up = True
            fleet.admins[0].restart()
            await until(lambda: fleet.serves(None))

    run(test)


def test_engines_that_are_not_managed_are_not_touched(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine("other", "http://127.0.0.1:1", is_managed=False)
        versions = FakeVersions()
        versions.publish(published(write_weights(tmp_path / "v1"), 1))
        async with WeightsFollower(Engines([engine]), versions, "policy", lambda _: FakeAdmin()):
            assert engine.state == "serving"
            assert engine.version is None

    run(test)


def test_a_look_that_fails_after_an_update_says_nothing_of_the_engine(tmp_path: Path) -> None:
    """It began before: what it asked was aborted by the update itself."""

    async def test() -> None:
        fleet = Fleet(tmp_path, check_s=NEVER_S)
        fleet.publish(1)
        async with fleet.serving(1):
            (admin,), (engine,) = fleet.admins, fleet.all
            asked, may_fail = asyncio.Event(), asyncio.Event()
            answer = admin.weight_version

            async def fail_later() -> str:
                admin.weight_version = answer  # type: ignore[method-assign]
                asked.set()
                await may_fail.wait()
                raise EngineError("aborted")

            admin.weight_version = fail_later  # type: ignore[method-assign]
            engine.attention.set()
            await asked.wait()
            fleet.publish(2)
            await until(lambda: fleet.serves(2))
            may_fail.set()
            for _ in range(100):
                await asyncio.sleep(0)
                assert fleet.serves(2)
            assert engine.gives_sampled_logprobs is True

    run(test)


def test_an_engine_that_turns_out_to_be_managed_is_brought_to_the_newest_version(tmp_path: Path) -> None:
    async def test() -> None:
        engine, admin = Engine("late", "http://127.0.0.1:1", is_managed=None), FakeAdmin()
        engines, versions = Engines([engine]), FakeVersions()
        versions.publish(published(write_weights(tmp_path / "v1"), 1))
        async with WeightsFollower(engines, versions, "policy", lambda _: admin) as follower:
            engines.know(engine, is_managed=True, gives_token_ids=True)
            follower.manage(engine)
            await until(lambda: engine.version == Version("policy", 1))
            assert engine.state == "serving"
            assert engine.base_models == {"fake"}

    run(test)
