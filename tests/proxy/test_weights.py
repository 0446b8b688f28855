import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.fake_admin import FakeAdmin, FakeVersions, published, write_weights
from tests.proxy.loops import run, until
from tests.proxy.weights_fleet import Fleet

from headrace.proxy.engines import NEW_WEIGHTS, Engine, Engines, Version
from headrace.proxy.weights import WeightsFollower


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
