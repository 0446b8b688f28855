"""Golden examples: bytes that a version once wrote, which every later version must read.

`python -m tests.schemas.golden` fills in `hex` for examples of newest versions that have none yet.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from headrace.schemas import versions
from headrace.schemas.codec import Codec
from headrace.schemas.records import RECORDS, Record

FOLDER = versions.AVRO_FOLDER.parent / "examples"


class Example(NamedTuple):
    """One entry of an example file."""

    record: str
    version: int
    name: str
    values: dict[str, Any]
    hex: str

    def __str__(self) -> str:
        return f"{self.record}-{self.version}-{self.name}"

    def model(self) -> Record:
        return RECORDS[self.record].model_validate_json(json.dumps(self.values))


def file_of(record: str, version: int) -> Path:
    return FOLDER / record / f"{version}.json"


def examples() -> list[Example]:
    """Every example of every version."""
    return [
        Example(record, version.version, entry["name"], entry["record"], entry["hex"])
        for record in RECORDS
        for version in versions.versions(record)
        for entry in json.loads(file_of(record, version.version).read_text())
    ]


def fill_in() -> None:
    codec = Codec()
    for record, model in RECORDS.items():
        path = file_of(record, versions.newest(record).version)
        entries = json.loads(path.read_text())
        for entry in entries:
            value = codec.encode(model.model_validate_json(json.dumps(entry["record"])), "topic")
            entry.setdefault("hex", value.hex())
        path.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    fill_in()
