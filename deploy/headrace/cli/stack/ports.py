"""Free ports on the loopback interface."""

import random
import socket

LOOPBACK = "127.0.0.1"

# Below Linux's range for outgoing connections (from 32768): a client that retries while a server is down
# could otherwise be given the server's port, even connect to itself, and the server could not come back.
_FIRST, _LAST = 20_000, 32_000


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do it: connections of an earlier run in TIME_WAIT don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def is_open(port: int, *, timeout_s: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def pick(preferred: int | None = None, *, taken: tuple[int, ...] = ()) -> int:
    """The preferred port if it is free, else a random free one that is not among `taken`."""
    if preferred is not None and preferred not in taken and is_free(preferred):
        return preferred
    while True:
        port = random.randint(_FIRST, _LAST)  # noqa: S311 - not a secret
        if port not in taken and is_free(port):
            return port
