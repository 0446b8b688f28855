"""UUIDv7 ids (RFC 9562): a millisecond clock in front, so that keys made later sort later.

Within one process the ids of `uuid7` strictly increase, also within a millisecond and when the
clock steps back.
"""

import hashlib
import os
import threading
import time
import uuid

_RANDOM_BITS = 74
_lock = threading.Lock()
_last = 0


def _build(time_ms: int, random: int) -> str:
    """Lay out 48 bits of time and 74 of randomness around the version and variant bits."""
    value = (time_ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62
    return str(uuid.UUID(int=value | random & ((1 << 62) - 1)))


def uuid7() -> str:
    """A new id, greater than each that this process made before."""
    global _last  # noqa: PLW0603  the counter is the point
    fresh = time.time_ns() // 1_000_000 << _RANDOM_BITS | int.from_bytes(os.urandom(10), "big") >> 6
    with _lock:
        # A step of up to 2^32 keeps ids of one millisecond hard to guess and still in order.
        _last = fresh if fresh > _last else _last + 1 + int.from_bytes(os.urandom(4), "big")
        return _build(_last >> _RANDOM_BITS, _last & ((1 << _RANDOM_BITS) - 1))


def derived_uuid7(time_ms: int, *seed: str) -> str:
    """The id that this time and these words always give: importing a file twice gives the same ids."""
    digest = hashlib.sha256("\x1f".join(seed).encode()).digest()
    return _build(time_ms, int.from_bytes(digest[:10], "big") >> 6)


def uuid7_time_ms(value: str) -> int:
    """The millisecond at which a UUIDv7 was made."""
    return uuid.UUID(value).int >> 80
