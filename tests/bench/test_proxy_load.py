"""The load makes the calls that it is told to, of the upstream as a process, and hides no failure."""

import pytest
from tests.bench.proxy_load import Place, Work
from tests.bench.proxy_processes import load, upstream

from headrace.schemas.errors import FatalError

BODY = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("num_callers", [1, 16])
def test_each_call_is_timed(num_callers: int, is_stream: bool) -> None:  # noqa: FBT001  a parameter
    callers = [[Place("/v1/chat/completions", "none")]] * num_callers
    with upstream() as url, load() as running:
        work = Work(url, callers, BODY | {"stream": is_stream}, num_calls=50, num_warm_up=20)
        for _ in range(2):
            done = running.do(work)
            assert len(done.latencies_s) == 50
            assert 0 < min(done.latencies_s) <= max(done.latencies_s) <= done.took_s
            assert 0 < done.cpu_s <= done.took_s * 1.1
            assert done.calls_per_s == 50 / done.took_s


@pytest.mark.parametrize(
    "path", ["/elsewhere", "/v1/chat/completions?fault"], ids=["another path", "a query"]
)
def test_an_answer_that_is_not_200_fails_it(path: str) -> None:
    with upstream() as url, load() as running:
        work = Work(url, [[Place(path, "none")]] * 2, BODY, num_calls=10, num_warm_up=0)
        with pytest.raises(FatalError, match="a call was answered with 404"):
            running.do(work)


def test_a_server_that_is_not_there_fails_it() -> None:
    with upstream() as url:
        pass
    with load() as running, pytest.raises(FatalError, match=r"the load on .* failed"):
        running.do(Work(url, [[Place("/", "none")]], BODY, num_calls=1, num_warm_up=0))
