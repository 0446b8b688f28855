"""Work beside what is measured."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

Check = Callable[[], None]
Work = Callable[[threading.Event], None]


@contextmanager
def background(work: Work) -> Iterator[Check]:
    """Run `work` in a thread until the block ends, when its event is set; give a check that raises its error.

    Its error is raised at the end too, unless the block has one of its own.
    """
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, over)

        def check() -> None:
            if future.done():
                future.result()

        try:
            yield check
        finally:
            over.set()
        future.result()
