"""API keys of the proxy: made once, shown once, kept as hashes in a file that can be changed while it runs.

A key has 256 random bits, so that a plain sha256 keeps it: there is nothing to guess.
"""

import hashlib
import hmac
import json
import os
import secrets
import tempfile
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.errors import FatalError
from headrace.schemas.records import now
from headrace.schemas.records.base import Identifier

_PREFIX = "hr-"
_TOKEN_PREFIX = "hra-"  # noqa: S105  not a secret
_MODE = 0o600


class KeptKey(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Identifier
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: datetime


class _KeyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[KeptKey, ...] = ()


def new_token() -> str:
    """For an attempt."""
    return _TOKEN_PREFIX + secrets.token_urlsafe(24)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def matches(presented: str, kept: str) -> bool:
    """Whether the secret is the one with this digest; takes as long for a near miss as for any."""
    return hmac.compare_digest(digest(presented), kept)


class KeyRing:
    """The keys of a file, which is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        """FatalError if it can't be read."""
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._keys: dict[str, str] = {}
        """Names by digest."""
        self.refresh()

    def refresh(self) -> None:
        """FatalError if it is there no more, or is no key file; the keys known before go on counting."""
        try:
            status = self._path.stat()
        except OSError as error:
            raise FatalError(f"keys can't be read from {self._path}: {error.strerror}") from error
        seen = status.st_mtime_ns, status.st_size
        if seen != self._seen:
            self._keys = {key.sha256: key.name for key in read_keys(self._path)}
            self._seen = seen

    def name_of(self, presented: str) -> str | None:
        """Whose key this is."""
        return self._keys.get(digest(presented))

    def __len__(self) -> int:
        return len(self._keys)


def read_keys(path: Path) -> tuple[KeptKey, ...]:
    """FatalError for what is no key file."""
    try:
        return _KeyFile.model_validate_json(path.read_bytes()).keys
    except OSError as error:
        raise FatalError(f"keys can't be read from {path}: {error.strerror}") from error
    except ValidationError as error:
        raise FatalError(f"{path} is no file of keys: {describe(error)}") from None


def add_key(path: Path, name: str) -> str:
    """Make a key and keep its hash; the key itself is returned, and kept nowhere. FatalError."""
    keys = read_keys(path) if path.exists() else ()
    if any(key.name == name for key in keys):
        raise FatalError(f"there is a key named {name!r} in {path} already; revoke it first")
    key = _PREFIX + secrets.token_urlsafe(32)
    try:
        kept = KeptKey(name=name, sha256=digest(key), created=now())
    except ValidationError as error:
        raise FatalError(f"no name for a key: {describe(error)}") from None
    _write(path, (*keys, kept))
    return key


def revoke_key(path: Path, name: str) -> None:
    """FatalError if there is none of that name."""
    keys = read_keys(path)
    left = tuple(key for key in keys if key.name != name)
    if len(left) == len(keys):
        raise FatalError(f"there is no key named {name!r} in {path}")
    _write(path, left)


def _write(path: Path, keys: tuple[KeptKey, ...]) -> None:
    """Whole or not at all, and for its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        os.fchmod(handle, _MODE)
        with os.fdopen(handle, "w") as stream:
            json.dump({"keys": [key.model_dump(mode="json") for key in keys]}, stream, indent=1)
            stream.write("\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
