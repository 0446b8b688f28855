"""API keys: shown once, kept as hashes, and taken away while the proxy runs."""

import os
import stat
from pathlib import Path

import orjson
import pytest

from headrace.proxy.keys import KeyRing, add_key, digest, matches, new_token, read_keys, revoke_key
from headrace.schemas.errors import FatalError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "of the proxy" / "keys.json"


def test_a_key_is_kept_as_a_hash_for_its_owner_alone(path: Path) -> None:
    os.umask(0)
    key = add_key(path, "trainer")
    assert key.startswith("hr-")
    assert len(key) > 40
    assert key not in path.read_text()
    assert orjson.loads(path.read_bytes())["keys"][0]["sha256"] == digest(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["keys.json"]


def test_keys_have_names(path: Path) -> None:
    first, second = add_key(path, "first"), add_key(path, "second")
    ring = KeyRing(path)
    assert (ring.name_of(first), ring.name_of(second), len(ring)) == ("first", "second", 2)
    for stranger in ("", "hr-", first[:-1], first + "x", digest(first), new_token()):
        assert ring.name_of(stranger) is None
    with pytest.raises(FatalError, match="there is a key named 'first'"):
        add_key(path, "first")
    with pytest.raises(FatalError, match="no name for a key"):
        add_key(path, "")


def test_a_revoked_key_is_none_after_the_next_look(path: Path) -> None:
    kept, gone = add_key(path, "kept"), add_key(path, "gone")
    ring = KeyRing(path)
    revoke_key(path, "gone")
    ring.refresh()
    assert (ring.name_of(kept), ring.name_of(gone)) == ("kept", None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FatalError, match="no key named 'gone'"):
        revoke_key(path, "gone")


BAD = {
    "no JSON": b"{",
    "the keys themselves": b'{"keys": ["hr-THE-SECRET"]}',
    "no hash": b'{"keys": [{"name": "x", "sha256": "hr-THE-SECRET", "created": "2026-01-01T00:00:00Z"}]}',
    "something else": b'{"THE-SECRET": 1}',
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_bad_file_changes_nothing_and_is_not_quoted(path: Path, content: bytes) -> None:
    key = add_key(path, "kept")
    ring = KeyRing(path)
    path.write_bytes(content)
    with pytest.raises(FatalError, match="is no file of keys") as raised:
        ring.refresh()
    assert "THE-SECRET" not in str(raised.value)
    assert ring.name_of(key) == "kept"
    with pytest.raises(FatalError, match="is no file of keys"):
        KeyRing(path)
    with pytest.raises(FatalError, match="is no file of keys"):
        add_key(path, "another")
    assert path.read_bytes() == content


def test_a_file_that_is_not_there(path: Path) -> None:
    for work in (KeyRing, read_keys):
        with pytest.raises(FatalError, match="keys can't be read from"):
            work(path)
    key = add_key(path, "kept")
    ring = KeyRing(path)
    path.unlink()
    with pytest.raises(FatalError, match="keys can't be read from"):
        ring.refresh()
    assert ring.name_of(key) == "kept"


def test_tokens() -> None:
    token = new_token()
    assert token != new_token()
    assert matches(token, digest(token))
    assert not matches(token[:-1], digest(token))
    assert not matches("", digest(token))
