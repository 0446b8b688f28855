"""ResourceVersions: what the resources topic says, folded record by record in its order. Pure.

Versions of a name only go up (G9), and of several records of one version the first in the log is the version.
Compaction keeps the last of a key, so whoever loses such a race publishes the first again, with a mark.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError, FatalError
from headrace.schemas.records import ResourceVersion

RESTORED = "headrace-restored"
"""A header: this is a copy of the first record of its version."""

Taken = Literal["newest", "restored", "known", "bad", "lower", "conflict"]
"""What a record was: new and the highest; a copy for one that compaction took; seen before; or refused, as no
record at all, below the newest, or of a version that is something else already."""


class Outcome(NamedTuple):
    taken: Taken
    record: ResourceVersion | None
    """None if it was none."""


class UnknownResourceError(FatalError):
    """No such resource, or no such version of it."""


class _Version(NamedTuple):
    # Bytes, not models: a run of thousands of versions stays small.
    value: bytes
    last: bytes
    """The record that compaction would keep."""


class ResourceVersions:
    """By name and version. Not safe to share between threads."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._versions: dict[str, dict[int, _Version]] = {}
        self._newest: dict[str, ResourceVersion] = {}

    def take(self, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()) -> Outcome:
        """Fold in the next record of the log. What is refused changes nothing."""
        try:
            record = self._codec.decode(value, ResourceVersion)
        except BadRecordError:
            return Outcome("bad", None)
        is_copy = any(name == RESTORED for name, _ in headers)
        return Outcome(self._take(record, value or b"", is_copy=is_copy), record)

    def _take(self, record: ResourceVersion, value: bytes, *, is_copy: bool) -> Taken:
        newest = self.newest_version(record.name)
        before = self._versions.get(record.name, {}).get(record.version)
        if before is not None and not is_copy:
            self._versions[record.name][record.version] = before._replace(last=value)
            return "known" if before.value == value else "conflict"
        if before is None and not is_copy and record.version < newest:
            return "lower"
        self._versions.setdefault(record.name, {})[record.version] = _Version(value, value)
        if record.version >= newest:
            self._newest[record.name] = record
        if record.version > newest:
            return "newest"
        return "known" if before and before.value == value else "restored"

    def newest_version(self, name: str) -> int:
        """-1 where there is none."""
        newest = self._newest.get(name)
        return newest.version if newest else -1

    def newest(self) -> Mapping[str, ResourceVersion]:
        """The newest version of each name."""
        return self._newest.copy()

    def get(self, name: str, version: int) -> ResourceVersion | None:
        found = self._versions.get(name, {}).get(version)
        return self._codec.decode(found.value, ResourceVersion) if found else None

    def names(self) -> list[str]:
        return sorted(self._newest)

    def versions_of(self, name: str) -> list[int]:
        """In order; UnknownResourceError for a name that has none."""
        if name not in self._newest:
            known = ", ".join(self.names()) or "none at all"
            raise UnknownResourceError(f"there is no resource {name!r}; there is {known}")
        return sorted(self._versions[name])

    def pinned(self, name: str, version: int) -> ResourceVersion:
        """UnknownResourceError says what there is instead."""
        found = self.get(name, version)
        if found is None:
            versions = self.versions_of(name)
            raise UnknownResourceError(
                f"{name} has no version {version}: of its {len(versions)} the newest is {versions[-1]}"
            )
        return found

    def covered(self) -> list[tuple[bytes, bytes]]:
        """(key, value) of the versions whose first record is not the one that compaction would keep."""
        return [
            (f"{name}@{number}".encode(), version.value)
            for name, versions in self._versions.items()
            for number, version in versions.items()
            if version.last != version.value
        ]
