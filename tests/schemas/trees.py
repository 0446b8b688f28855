"""Which folder of schemas the program sees."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.schemas import versions


@contextmanager
def looking_at(folder: Path) -> Iterator[None]:
    """Within this block the program has the schemas of this folder."""
    before = versions.AVRO_FOLDER
    versions.AVRO_FOLDER = folder
    forget()
    try:
        yield
    finally:
        versions.AVRO_FOLDER = before
        forget()


def forget() -> None:
    """Make the program read its schemas anew."""
    versions.versions.cache_clear()
    versions.newest.cache_clear()
