"""What is found out about engines: restarts, what their logprobs are of, what they compute."""

import asyncio
from pathlib import Path

import pytest
from tests.proxy.fake_admin import FakeAdmin, FakeVersions, published, write_weights
from tests.proxy.loops import run, until
from tests.proxy.weights_fleet import NEVER_S, Fleet

from headrace.proxy.engines import Engine, Engines, Version
from headrace.proxy.vllm_admin import EngineError
from headrace.proxy.weights import WeightsFollower
from headrace.schemas.probe import Probe


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
