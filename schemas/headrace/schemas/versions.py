"""The Avro schemas in the `avro` folder: every version of every record, and their ids on the wire.

A version, once locked, never changes: its fingerprint stands beside its id in `ids.json`.
"""

import hashlib
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import fastavro

from headrace.schemas.errors import FatalError
from headrace.schemas.records import RECORDS

AVRO_FOLDER = Path(str(resources.files("headrace.schemas") / "avro"))
LOCK_FILE = "ids.json"
FIRST_ID = 1001


class SchemaVersion(NamedTuple):
    """One version of one record's schema. `parsed` is fastavro's own form."""

    record: str
    version: int
    source: dict[str, Any]
    parsed: Any

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the whole schema: defaults and docs too, which Avro's canonical form leaves out."""
        text = json.dumps(self.source, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@cache
def versions(record: str) -> tuple[SchemaVersion, ...]:
    """Every version of a record's schema, oldest first."""
    files = sorted((AVRO_FOLDER / record).glob("*.avsc"), key=lambda path: int(path.stem))
    if not files or [int(path.stem) for path in files] != list(range(1, len(files) + 1)):
        raise FatalError(f"schema versions of {record} must be numbered 1, 2, 3 …")
    found = []
    for path in files:
        source = json.loads(path.read_text())
        found.append(SchemaVersion(record, int(path.stem), source, fastavro.parse_schema(source)))
    return tuple(found)


@cache
def newest(record: str) -> SchemaVersion:
    """The version that this program writes."""
    return versions(record)[-1]


def read_lock() -> dict[str, dict[str, dict[str, Any]]]:
    """Record → version → {id, sha256}."""
    path = AVRO_FOLDER / LOCK_FILE
    lock: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}
    return lock


def lock_all() -> list[str]:
    """Give each unlocked version the next free id; say which were new. Locked ones are left as they are."""
    lock = read_lock()
    taken = [entry["id"] for entries in lock.values() for entry in entries.values()]
    next_id = max(taken, default=FIRST_ID - 1) + 1
    new = []
    for record in sorted(RECORDS):
        for version in versions(record):
            entries = lock.setdefault(record, {})
            if str(version.version) not in entries:
                entries[str(version.version)] = {"id": next_id, "sha256": version.fingerprint}
                next_id += 1
                new.append(f"{record} {version.version}")
    (AVRO_FOLDER / LOCK_FILE).write_text(json.dumps(lock, indent=2) + "\n")
    return new


def changed_since_lock() -> list[str]:
    """What is wrong with the lock: versions that changed, are missing from it, are gone, or share an id."""
    lock = read_lock()
    problems = []
    for record in sorted(RECORDS):
        entries = dict(lock.get(record, {}))
        for version in versions(record):
            entry = entries.pop(str(version.version), None)
            if entry is None:
                problems.append(f"{record} {version.version} has no id: run `headrace schemas lock`")
            elif entry["sha256"] != version.fingerprint:
                problems.append(f"{record} {version.version} changed after it was locked: add a new version")
        problems += [f"{record} {gone} was locked, and its file is gone" for gone in entries]
    problems += [
        f"{record} was locked, and there is no such record" for record in sorted(lock.keys() - RECORDS)
    ]
    holders: dict[int, list[str]] = {}
    for record, entries in lock.items():
        for number, entry in entries.items():
            holders.setdefault(entry["id"], []).append(f"{record} {number}")
    return problems + [
        f"{' and '.join(names)} share the id {shared}: remove the later from {LOCK_FILE}, and lock again"
        for shared, names in holders.items()
        if len(names) > 1
    ]
