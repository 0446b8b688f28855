"""What Megatron and torch.distributed warn of while they run, and nobody here can change."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LIBRARIES: Final = r"(megatron|torch\.distributed)\."


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings of others, a loss function's among them, still come through."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=_LIBRARIES)
        yield
