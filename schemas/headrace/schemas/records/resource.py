"""ResourceVersion: a version of weights, a prompt or sampling settings, whole and checksummed (G9)."""

from typing import ClassVar, Literal

from headrace.schemas.records.base import Count, Identifier, Record, Timestamp


class ResourceVersion(Record):
    """Versions of a name only go up. It is published only when its files are complete.

    The key names the version too, so that compaction keeps what runs are pinned to.
    """

    key_field: ClassVar[str] = "name"

    name: Identifier
    version: Count
    kind: Literal["weights", "prompt", "sampling", "endpoint"]
    uri: str = ""
    content: str | None = None
    """Of a small resource, in place."""
    manifest: dict[str, str] = {}
    """sha256 by file path."""
    trained_on: tuple[str, ...] = ()
    """Batch ids."""
    consumed_offsets: dict[str, Count] = {}
    """By topic:partition."""
    parent_version: Count | None = None
    metadata: dict[str, str] = {}
    time: Timestamp

    @property
    def key(self) -> bytes:
        return f"{self.name}@{self.version}".encode()
