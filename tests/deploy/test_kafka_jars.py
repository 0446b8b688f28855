from pathlib import Path

import pytest

from headrace.cli.stack.kafka_jars import fetch, is_whole, jars_folder, java_program, kafka_version
from headrace.schemas.errors import FatalError


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with a good Java in it."""
    folder = tmp_path / "bin"
    program(folder, "java", "echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_the_version_is_the_poms() -> None:
    assert kafka_version().startswith("4.")


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_is_new_enough(path: Path, version: str) -> None:
    program(path, "java", f"echo 'openjdk version \"{version}\" 2026-01-01' >&2")
    assert java_program() == "java"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'java version \"1.8.0_392\"' >&2", r"needs Java 17 or newer; .*1\.8\.0_392.*apt-get install"),
        ("echo 'openjdk version \"11.0.21\"' >&2", r"needs Java 17 or newer; .*11\.0\.21"),
        ("echo 'no JVM here' >&2; exit 3", r"(?s)-version failed, status 3.*no JVM here"),
    ],
    ids=["8", "11", "broken"],
)
def test_a_java_that_will_not_do(tmp_path: Path, script: str, message: str) -> None:
    program(tmp_path / "jdk" / "bin", "java", script)
    with pytest.raises(FatalError, match=message):
        java_program(tmp_path / "jdk")


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match=r"was not found: install a JDK 17"):
        java_program(tmp_path)


def test_no_maven(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="mvn was not found: install Maven"):
        fetch(tmp_path / "cache", report=print)


def test_mavens_own_error_is_shown_and_nothing_is_left(path: Path, tmp_path: Path) -> None:
    program(
        path,
        "mvn",
        "echo '[INFO] Scanning'; echo '[ERROR] Could not transfer artifact: no route to host'; exit 1",
    )
    with pytest.raises(FatalError, match="no route to host") as caught:
        fetch(tmp_path / "cache", report=print)
    assert "Scanning" not in str(caught.value)
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["kafka.lock"]


# A Maven of two lines: makes one jar where it is told to, and says so.
MAVEN = r"""
for argument; do case $argument in -DoutputDirectory=*) out=${argument#*=};; esac; done
echo "Downloaded from central: repo/kafka_2.13.jar (1 MB at 1 MB/s)"
: > "$out/kafka_2.13.jar"
"""


def test_progress_and_a_whole_folder(path: Path, tmp_path: Path) -> None:
    program(path, "mvn", MAVEN)
    said: list[str] = []
    folder = fetch(tmp_path, report=said.append)
    assert folder == jars_folder(tmp_path)
    assert is_whole(folder)
    assert said[-1] == "1 jars, latest kafka_2.13.jar"
    program(path, "mvn", "exit 1")
    assert fetch(tmp_path, report=said.append) == folder


def test_a_folder_of_another_pom_is_made_anew(path: Path, tmp_path: Path) -> None:
    program(path, "mvn", MAVEN)
    stale = jars_folder(tmp_path)
    stale.mkdir()
    (stale / "pom.xml").write_text("<project/>")
    (stale / "old.jar").touch()
    assert sorted(file.name for file in fetch(tmp_path, report=print).iterdir()) == [
        "kafka_2.13.jar",
        "pom.xml",
    ]


def test_leftovers_of_an_interrupted_fetch_are_removed(path: Path, tmp_path: Path) -> None:
    program(path, "mvn", MAVEN)
    (tmp_path / f".kafka-{kafka_version()}-abc").mkdir()
    folder = fetch(tmp_path, report=print)
    assert sorted(file.name for file in tmp_path.iterdir() if file.name.startswith(".")) == []
    assert is_whole(folder)
