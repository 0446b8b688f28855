"""The lock: a version never changes once it has an id, and an id is never given twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas import versions
from headrace.schemas.errors import FatalError
from headrace.schemas.records import RECORDS
from headrace.schemas.registry import LockedIds

AddVersion = Callable[[str, dict[str, Any]], None]


def with_field(source: dict[str, Any], **field: Any) -> dict[str, Any]:
    """The same schema with a field more."""
    return source | {"fields": [*source["fields"], field]}


def edit_lock(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / versions.LOCK_FILE
    lock = json.loads(path.read_text())
    change(lock)
    path.write_text(json.dumps(lock))


def test_the_lock_of_this_tree_is_right() -> None:
    assert versions.changed_since_lock() == []


def test_ids_are_distinct_and_clear_of_small_numbers() -> None:
    """A registry counts from 1: mixing the two up must not go unnoticed."""
    ids = [entry["id"] for entries in versions.read_lock().values() for entry in entries.values()]
    assert len(ids) == len(set(ids)) == sum(len(versions.versions(record)) for record in RECORDS)
    assert min(ids) == versions.FIRST_ID


def test_locking_again_changes_nothing(avro_folder: Path) -> None:
    before = (avro_folder / versions.LOCK_FILE).read_bytes()
    assert versions.lock_all() == []
    assert (avro_folder / versions.LOCK_FILE).read_bytes() == before


def test_locking_from_nothing_gives_every_record_an_id(avro_folder: Path) -> None:
    (avro_folder / versions.LOCK_FILE).unlink()
    expected = [
        f"{record} {each.version}" for record in sorted(RECORDS) for each in versions.versions(record)
    ]
    assert versions.lock_all() == expected
    assert versions.changed_since_lock() == []


def test_a_new_version_gets_the_next_id(avro_folder: Path, add_version: AddVersion) -> None:
    before = versions.read_lock()
    largest = max(entry["id"] for entries in before.values() for entry in entries.values())
    add_version(
        "Reward", with_field(versions.newest("Reward").source, name="note", type="string", default="")
    )
    assert versions.changed_since_lock() == ["Reward 2 has no id: run `headrace schemas lock`"]
    with pytest.raises(FatalError, match="Reward 2 has no id: run `headrace schemas lock`"):
        LockedIds()
    assert versions.lock_all() == ["Reward 2"]
    after = versions.read_lock()
    assert after["Reward"].pop("2")["id"] == largest + 1
    assert after == before
    assert versions.changed_since_lock() == []
    assert LockedIds().id_for("Reward", "t") == largest + 1


@pytest.mark.parametrize("key", ["doc", "default"])
def test_a_change_after_locking_is_seen(avro_folder: Path, key: str) -> None:
    path = avro_folder / "Reward" / "1.avsc"
    source = json.loads(path.read_text())
    source["fields"][-2][key] = "changed"
    path.write_text(json.dumps(source))
    versions.versions.cache_clear()
    assert versions.changed_since_lock() == ["Reward 1 changed after it was locked: add a new version"]


def test_spaces_and_line_ends_are_no_change(avro_folder: Path) -> None:
    path = avro_folder / "Reward" / "1.avsc"
    path.write_text(json.dumps(json.loads(path.read_text())))
    versions.versions.cache_clear()
    assert versions.changed_since_lock() == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda lock: lock["Reward"].update({"2": {"id": 9, "sha256": ""}}),
            "Reward 2 was locked, and its file",
        ),
        (lambda lock: lock.update({"Rewards": {"1": {"id": 9}}}), "Rewards was locked, and there is no such"),
        (lambda lock: lock.pop("Span"), "Span 1 has no id: run `headrace schemas lock`"),
        (
            lambda lock: lock["Span"]["1"].update({"id": lock["Reward"]["1"]["id"]}),
            "Reward 1 and Span 1 share the id 1006: remove the later from ids.json, and lock again",
        ),
    ],
    ids=["version gone", "record gone", "not locked", "two branches merged"],
)
def test_what_else_is_wrong_with_a_lock(
    avro_folder: Path, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    edit_lock(avro_folder, change)
    (found,) = versions.changed_since_lock()
    assert found.startswith(problem)


@pytest.mark.parametrize("keep", [[], [2], [1, 3]], ids=str)
def test_versions_are_numbered_without_gaps(avro_folder: Path, keep: list[int]) -> None:
    first = avro_folder / "Reward" / "1.avsc"
    text = first.read_text()
    first.unlink()
    for number in keep:
        (avro_folder / "Reward" / f"{number}.avsc").write_text(text)
    versions.versions.cache_clear()
    with pytest.raises(FatalError, match="versions of Reward must be numbered 1, 2, 3"):
        versions.versions("Reward")


def test_ten_versions_are_in_the_order_of_numbers(avro_folder: Path, add_version: AddVersion) -> None:
    for number in range(2, 12):
        field = {"name": f"f{number}", "type": "string", "default": ""}
        add_version("Reward", with_field(versions.versions("Reward")[0].source, **field))
    assert [version.version for version in versions.versions("Reward")] == list(range(1, 12))
    assert versions.newest("Reward").version == 11
