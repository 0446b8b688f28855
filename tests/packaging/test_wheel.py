"""The built wheel holds all that an installation needs, and works on its own."""

import zipfile
from pathlib import Path

import pytest
from tests.packaging.conftest import Run

PARTS = ("schemas", "streams", "proxy", "trainer", "deploy")


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def files_in(folder: Path, pattern: str = "*") -> set[str]:
    """Names of the files under a folder of the repository, from there."""
    found = {path.relative_to(folder) for path in folder.rglob(pattern) if path.is_file()}
    return {str(path) for path in found if "__pycache__" not in path.parts}


@pytest.mark.parametrize("part", PARTS)
def test_every_file_of_every_part_is_inside(names: set[str], root: Path, part: str) -> None:
    assert {f"headrace/{name}" for name in files_in(root / part / "headrace")} <= names


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [("avro", "*.avsc"), ("avro", "ids.json"), ("topics", "*.yaml"), ("examples", "*.json")],
    ids=["schemas", "lock", "topics", "examples"],
)
def test_the_data_of_the_schemas_is_inside(names: set[str], root: Path, folder: str, pattern: str) -> None:
    files = files_in(root / "schemas/headrace/schemas" / folder, pattern)
    assert files
    assert {f"headrace/schemas/{folder}/{name}" for name in files} <= names


@pytest.mark.parametrize(("folder", "pattern"), [("kafka", "pom.xml"), ("clickhouse", "*.sql")])
def test_the_assets_of_the_local_stack_are_inside(
    names: set[str], root: Path, folder: str, pattern: str
) -> None:
    assert files_in(root / "deploy" / folder, pattern)
    assert {f"headrace/cli/assets/{folder}/{name}" for name in files_in(root / "deploy" / folder)} <= names


def test_nothing_else_is_inside(names: set[str]) -> None:
    others = {name for name in names if not name.startswith("headrace/")}
    assert {name.split("/")[0] for name in others} == {"headrace-0.1.0.dist-info"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_headrace_is_a_namespace(names: set[str], root: Path) -> None:
    """PEP 420: a file there would hide the parts that another distribution adds."""
    assert "headrace/__init__.py" not in names
    assert not [part for part in PARTS if (root / part / "headrace" / "__init__.py").exists()]


def test_types_are_marked(names: set[str]) -> None:
    """PEP 561: each part is a package of its own under the namespace."""
    parts = {name.split("/")[1] for name in names if name.startswith("headrace/")}
    assert {f"headrace/{part}/py.typed" for part in parts} <= names


def test_the_codec_works_from_the_wheel(run_installed: Run, installed: Path) -> None:
    program = """
import json
from headrace.schemas import codec, versions
from headrace.schemas.records import RECORDS
from headrace.schemas.topics import topic_specs
count = 0
for record, model in RECORDS.items():
    file = versions.AVRO_FOLDER.parent / "examples" / record / "1.json"
    for example in json.loads(file.read_text()):
        codec.Codec().decode(bytes.fromhex(example["hex"]), model)
        count += 1
print(codec.__file__)
print(len(topic_specs()), count > 20)
"""
    file, counts = run_installed("-c", program).splitlines()
    assert Path(file) == installed / "headrace/schemas/codec.py"
    assert counts == "12 True"


def test_the_command_works_from_the_wheel(run_installed: Run) -> None:
    assert run_installed("-m", "headrace.cli", "schemas", "check").startswith("schemas ok")
    assert "schemas" in run_installed("-m", "headrace.cli", "--help")


def test_the_assets_are_found_in_the_wheel(run_installed: Run, installed: Path) -> None:
    program = "from headrace.cli.assets import asset; print(asset('kafka')); print(asset('clickhouse'))"
    folders = run_installed("-c", program).splitlines()
    assert folders == [str(installed / "headrace/cli/assets" / name) for name in ("kafka", "clickhouse")]
