import threading

import pytest
from tests.bench.background import background


def test_work_is_told_when_the_block_ends() -> None:
    ended = threading.Event()

    def work(over: threading.Event) -> None:
        assert over.wait(10)
        ended.set()

    with background(work) as check:
        check()
        assert not ended.is_set()
    assert ended.is_set()


def test_its_error_is_raised_at_the_check_and_at_the_end() -> None:
    failed = threading.Event()

    def work(_over: threading.Event) -> None:
        failed.set()
        raise LookupError("no more")

    def block() -> None:
        with background(work) as check:
            assert failed.wait(10)
            while True:
                check()

    with pytest.raises(LookupError, match="no more"):
        block()
    with pytest.raises(LookupError, match="no more"), background(work):
        pass


def test_an_error_of_the_block_comes_first() -> None:
    def work(over: threading.Event) -> None:
        over.wait(10)
        raise LookupError("no more")

    with pytest.raises(ZeroDivisionError), background(work):
        raise ZeroDivisionError
