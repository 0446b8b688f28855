"""`headrace schemas list`, `lock` and `check`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.schemas.records import RECORDS
from headrace.schemas.versions import newest, versions

NUM_VERSIONS = sum(len(versions(record)) for record in RECORDS)
AddVersion = Callable[[str, dict[str, Any]], None]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["schemas", *arguments])


def with_field(record: str, **field: object) -> dict[str, Any]:
    source = newest(record).source
    return source | {"fields": [*source["fields"], field]}


def test_check_of_this_tree() -> None:
    result = run("check")
    assert result.exit_code == 0, result.output
    assert result.output == f"schemas ok records={len(RECORDS)} versions={NUM_VERSIONS}\n"


def test_list_shows_every_record_with_its_id_and_topic(avro_folder: Path, add_version: AddVersion) -> None:
    add_version("Reward", with_field("Reward", name="note", type="string", default=""))
    result = run("list")
    assert result.exit_code == 0, result.output
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in result.output.splitlines()
        if len(cells := line.strip("│┃ ").replace("┃", "│").split("│")) == 4
    }
    assert set(rows) == {"record", *RECORDS}
    assert rows["Span"] == ["1", "1008", "spans"]
    assert rows["TrainStep"] == ["1, 2", "1014", "train-steps"]
    assert rows["Reward"] == ["1, 2", "not locked", "rewards"]


def test_from_a_new_version_to_a_clean_check(avro_folder: Path, add_version: AddVersion) -> None:
    add_version("Reward", with_field("Reward", name="note", type="string", default=""))
    result = run("check")
    assert result.exit_code == 1
    assert "Reward 2 has no id: run `headrace schemas lock`" in result.output
    result = run("lock")
    assert (result.exit_code, result.output) == (0, "locked Reward 2\n")
    result = run("lock")
    assert (result.exit_code, result.output) == (0, "every version is locked already\n")
    result = run("check")
    assert (result.exit_code, result.output) == (
        0,
        f"schemas ok records={len(RECORDS)} versions={NUM_VERSIONS + 1}\n",
    )


def test_check_lists_all_that_is_wrong(avro_folder: Path, add_version: AddVersion) -> None:
    add_version("Reward", with_field("Reward", name="note", type="string"))
    add_version("Span", with_field("Span", name="cost", type="double"))
    run("lock")
    path = avro_folder / "TrainStep" / "1.avsc"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"doc": "changed"}))
    newest.cache_clear()
    result = run("check")
    assert result.exit_code == 1
    for problem in (
        "Reward 1 ↔ 2: note: added, and it has no default",
        "Span 1 ↔ 2: cost: added, and it has no default",
    ):
        assert problem in result.output


@pytest.mark.parametrize("command", ["list", "lock", "check"])
def test_help(command: str) -> None:
    assert run(command, "--help").exit_code == 0
