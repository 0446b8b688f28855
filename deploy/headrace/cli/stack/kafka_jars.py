"""Kafka's jars: fetched once by Maven from `deploy/kafka/pom.xml` into a cache folder.

The folder appears whole or not at all: Maven fills a temporary one, which is then renamed. It holds the pom
that it was made from, and is made anew when ours differs.
"""

import fcntl
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.cli.assets import asset
from headrace.schemas.errors import FatalError

# Kafka 4 brokers are compiled for this.
JAVA_MIN = 17

_INSTALL_JAVA = (
    "install a JDK 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME"
)
_INSTALL_MAVEN = "install Maven (Debian, Ubuntu: apt-get install maven; macOS: brew install maven)"

Report = Callable[[str], None]


def kafka_version() -> str:
    found = re.search(r"<kafka\.version>([^<]+)</kafka\.version>", _pom().read_text())
    if found is None:
        raise FatalError(f"{_pom()} names no kafka.version")
    return found[1]


def java_program(java_home: Path | None = None) -> str:
    """The `java` to run. Raises FatalError, saying how to install one, if there is none or it is too old."""
    program = str(java_home / "bin" / "java") if java_home else "java"
    if shutil.which(program) is None:
        raise FatalError(
            f"Kafka needs Java {JAVA_MIN} or newer, and {program} was not found: {_INSTALL_JAVA}"
        )
    asked = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    answer = (asked.stderr + asked.stdout).strip()
    # 'openjdk version "17.0.15" 2025-04-15'; before Java 9: "1.8.0_392".
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    if asked.returncode != 0 or found is None:
        raise FatalError(f"{program} -version failed, status {asked.returncode}; {_INSTALL_JAVA}\n{answer}")
    if int(found[1]) < JAVA_MIN:
        first_line = answer.splitlines()[0]
        raise FatalError(f"Kafka needs Java {JAVA_MIN} or newer; {program} is {first_line}: {_INSTALL_JAVA}")
    return program


def jars_folder(cache: Path) -> Path:
    return cache / f"kafka-{kafka_version()}"


def is_whole(folder: Path) -> bool:
    """Whether the folder was made from the pom that we have now."""
    try:
        return (folder / "pom.xml").read_bytes() == _pom().read_bytes()
    except OSError:
        return False


def fetch(cache: Path, *, report: Report, java_home: Path | None = None) -> Path:
    """The folder of jars, fetched first if the cache lacks it. `report` gets progress by the line."""
    folder = jars_folder(cache)
    if is_whole(folder):
        return folder
    java_program(java_home)
    if shutil.which("mvn") is None:
        raise FatalError(f"Kafka's jars come by Maven, and mvn was not found: {_INSTALL_MAVEN}")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have fetched them while this one waited.
        if not is_whole(folder):
            for scratch in cache.glob(f".{folder.name}-*"):
                shutil.rmtree(scratch, ignore_errors=True)
            report("Maven resolves Kafka's jars (about 45 MB the first time)")
            _fetch_into(folder, report)
    return folder


def _pom() -> Path:
    return asset("kafka") / "pom.xml"


def _fetch_into(folder: Path, report: Report) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        fresh = Path(scratch) / "jars"
        fresh.mkdir()
        _run_maven(fresh, report)
        shutil.copyfile(_pom(), fresh / "pom.xml")
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)


def _run_maven(fresh: Path, report: Report) -> None:
    # Not -q: the names of the files are the progress.
    command = ["mvn", "-B", "-Dstyle.color=never", "-f", str(_pom())]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}"]
    said: list[str] = []
    num_jars = 0
    with subprocess.Popen(
        command,
        cwd=fresh,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as maven:
        try:
            for line in maven.stdout or ():
                said.append(line.rstrip())
                fetched = re.search(r"Downloaded from \S+: \S*/(\S+\.jar) ", line)
                if fetched:
                    num_jars += 1
                    report(f"{num_jars} jars, latest {fetched[1]}")
        except BaseException:
            maven.kill()
            raise
    if maven.returncode != 0 or not any(fresh.glob("kafka_*.jar")):
        errors = [line for line in said if line.startswith("[ERROR]")] or said[-20:]
        shown = "\n".join(errors[:20])
        raise FatalError(f"Maven could not fetch Kafka's jars (status {maven.returncode}). It says:\n{shown}")
