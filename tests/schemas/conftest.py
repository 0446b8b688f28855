"""A copy of the schemas to add versions to."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.schemas.trees import forget, looking_at

from headrace.schemas import versions


@pytest.fixture
def avro_folder(tmp_path: Path) -> Iterator[Path]:
    """Schemas and lock that this test may change: the program sees these."""
    folder = tmp_path / "avro"
    shutil.copytree(versions.AVRO_FOLDER, folder)
    with looking_at(folder):
        yield folder


@pytest.fixture
def add_version(avro_folder: Path) -> Callable[[str, dict[str, Any]], None]:
    """Add a schema as the next version of its record."""

    def add(record: str, source: dict[str, Any]) -> None:
        number = len(list((avro_folder / record).glob("*.avsc"))) + 1
        (avro_folder / record / f"{number}.avsc").write_text(json.dumps(source))
        forget()

    return add
