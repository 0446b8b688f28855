"""WeightFiles: a version's files, known to be those of its manifest before anything loads them (G9)."""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from headrace.schemas.errors import HeadraceError, RetryableError
from headrace.schemas.records import ResourceVersion
from headrace.streams.client.manifest import files_of, manifest_of

_MAX_NAMED = 3


class BadWeightsError(RetryableError):
    """Files that are not, or not yet, what was published: never loaded."""


class WeightFiles(NamedTuple):
    """A folder as it was when its checksums were right."""

    folder: Path
    seen: dict[str, tuple[int, int]]
    """Size and time of change of each file."""

    def is_unchanged(self) -> bool:
        """Cheap: nothing is read."""
        try:
            return _seen(self.folder) == self.seen
        except HeadraceError:
            return False


def verify(version: ResourceVersion) -> WeightFiles:
    """Read every file and compare: BadWeightsError for whatever is missing, extra or different.

    Blocks for as long as it takes to read them.
    """
    folder = _folder(version)
    if not version.manifest:
        raise BadWeightsError("it was published without a manifest, so nobody can tell whether it is whole")
    try:
        seen = _seen(folder)
        # Names first: they cost nothing, and tell most of what is half-written.
        _compare_names(seen.keys(), version.manifest.keys(), folder)
        found = manifest_of(folder)
    except HeadraceError as error:
        raise BadWeightsError(str(error)) from error
    _compare_names(found.keys(), version.manifest.keys(), folder)
    different = [name for name, digest in version.manifest.items() if found[name] != digest]
    if different:
        raise BadWeightsError(f"in {folder} these files are not what was published: {_some(different)}")
    files = WeightFiles(folder, seen)
    if not files.is_unchanged():
        raise BadWeightsError(f"the files in {folder} changed while they were read")
    return files


def _folder(version: ResourceVersion) -> Path:
    parts = urlsplit(version.uri)
    if version.kind != "weights":
        raise BadWeightsError(f"it is of kind {version.kind}, not weights")
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise BadWeightsError(
            f"only file:// is loaded, and it lies at {parts.scheme or 'no'}://{parts.netloc}"
        )
    folder = Path(unquote(parts.path))
    if not folder.is_dir():
        raise BadWeightsError(f"there is no folder {folder}")
    return folder


def _compare_names(found: AbstractSet[str], wanted: AbstractSet[str], folder: Path) -> None:
    if missing := wanted - found:
        raise BadWeightsError(f"in {folder} these files are missing: {_some(missing)}")
    if extra := found - wanted:
        raise BadWeightsError(f"in {folder} there are files that were not published: {_some(extra)}")


def _seen(folder: Path) -> dict[str, tuple[int, int]]:
    return {name: (each.num_bytes, each.modified_ns) for name, each in files_of(folder).items()}


def _some(names: Collection[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(sorted(names)[:_MAX_NAMED]) + more
