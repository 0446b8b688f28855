"""`headrace resources` on real Kafka."""

import hashlib
from pathlib import Path

import pytest
from tests.deploy.cli.conftest import Cli

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kafka_settings")]


def test_publish_list_and_show(kafka_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"x")
    first = kafka_cli(
        "resources", "publish", "prompt", "--kind", "prompt", "--content", "secret 1", "--metadata", "a=b=c"
    )
    assert first.stdout == "prompt@1 is published\n"
    kafka_cli("resources", "publish", "prompt", "--kind", "prompt", "--content-file", "-", stdin="secret 2\n")
    weights = kafka_cli(
        "resources", "publish", "policy", "--kind", "weights", "--files", str(tmp_path), "--parent", "3"
    )
    assert weights.stdout == "policy@1 is published, 1 file checksummed\n"

    assert [(row["name"], row["version"]) for row in kafka_cli.json("resources", "list")] == [
        ("policy", 1),
        ("prompt", 2),
    ]
    every = kafka_cli.json("resources", "list", "--all", "--kind", "prompt")
    assert [(row["version"], row["content_bytes"]) for row in every] == [(1, 8), (2, 9)]
    table = kafka_cli("resources", "list").stdout
    assert tmp_path.as_uri()[:40] in table
    assert "9 bytes of content" in table
    assert "2 versions, times in UTC" in table

    shown = kafka_cli("resources", "show", "prompt@1").stdout
    assert "prompt@1, of 2 to 2" in shown
    assert "a=b=c" in shown
    assert "secret" not in shown + table
    assert kafka_cli("resources", "show", "prompt", "--content").stdout == "secret 2\n"
    (row,) = kafka_cli.json("resources", "show", "policy")
    assert row["manifest"] == {"w": hashlib.sha256(b"x").hexdigest()}
    assert row["parent_version"] == 3
    assert "content" not in row
    assert f"{hashlib.sha256(b'x').hexdigest()}  w" in kafka_cli("resources", "show", "policy").stdout


def test_an_asked_version(kafka_cli: Cli) -> None:
    publish = ("resources", "publish", "llm", "--kind", "endpoint", "--uri", "http://x")
    assert kafka_cli(*publish, "--version", "7", "--json").stdout.count('"version":7') == 1
    refused = kafka_cli(*publish, "--version", "7", status=1)
    assert "version 7 of llm can't be published: versions only go up, and the newest is 7" in refused.stderr


@pytest.fixture
def _an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--kind", "prompt"], 1, "nothing is given for x"),
        (["--kind", "prompt", "--content", "a", "--content-file", "-"], 2, "not both"),
        (["--kind", "weights", "--files", "."], 1, "there are no files in"),
        (["--kind", "magic", "--content", "a"], 2, "'magic' is not one of"),
        (["--kind", "prompt", "--content", "a", "--metadata", "b"], 2, "'b' is not NAME=VALUE"),
    ],
    ids=["nothing", "two contents", "an empty folder", "no kind", "no pair"],
)
@pytest.mark.usefixtures("_an_empty_folder")
def test_what_is_no_version_is_refused(kafka_cli: Cli, options: list[str], status: int, words: str) -> None:
    assert words in kafka_cli("resources", "publish", "x", *options, status=status).stderr
    assert kafka_cli("resources", "list").stdout == "0 versions\n"


def test_what_does_not_exist_is_said(kafka_cli: Cli) -> None:
    kafka_cli("resources", "publish", "a@b", "--kind", "endpoint", "--uri", "x")
    assert "there is no resource 'a'; there is a@b" in kafka_cli("resources", "show", "a@1", status=1).stderr
    assert "a@b has no version 2" in kafka_cli("resources", "show", "a@b@2", status=1).stderr
    assert kafka_cli.json("resources", "show", "a@b")[0]["version"] == 1


@pytest.mark.parametrize("verb", ["publish", "list", "show"])
def test_help_has_examples(kafka_cli: Cli, verb: str) -> None:
    assert f"headrace resources {verb}" in kafka_cli("resources", verb, "--help").stdout
