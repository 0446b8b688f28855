"""proxy_added_p50_ms_1 …: what one proxy process adds to a call, and how many it takes; capture is on Kafka.

1, 16 or 64 callers, each with its next call when it has the last answer, make the same calls of the upstream
itself, of the proxy, and of LiteLLM's proxy, in turns. A call is a chat with a prompt of about 300 bytes and
an answer of 32 tokens, not streamed but for the figure that says so. What is added is the difference of the
two quantiles in a round; the median of the rounds counts. The upstream answers at once, so that many callers
keep a proxy busy all the time: what 16 and 64 measure is its queue. Afterwards Kafka has one span of each
call that our proxy was asked, with ids and logprobs, and no other, or there is no figure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.bench.figures import Figure, Peer
from tests.bench.litellm_proxy import litellm_proxy
from tests.bench.parts import Parts, say
from tests.bench.proxy_load import Done, Place, Work
from tests.bench.proxy_processes import Load, load, upstream
from tests.bench.proxy_target import Headrace, check_record
from tests.bench.statistics import quantile

CALLERS = (1, 16, 64)
STREAM_CALLERS = 16
ROUNDS = 5
_BODY: dict[str, Any] = {
    "model": "fake",
    "messages": [
        {"role": "system", "content": "You answer in one sentence." + " Be brief, and be kind." * 4},
        {"role": "user", "content": "What is a headrace, and what does it lead where?" + " Think first." * 9},
    ],
    "max_tokens": 32,
    "temperature": 1.0,
}
_CALLS = {1: 1_000, 16: 2_000, 64: 4_000}
_STREAM_CALLS = 640
_WARM_UP = 4_000
"""At first: the broker's compiler takes thousands."""
_PEERS_SHARE = 0.1
"""Of the calls: a peer that is much slower would take minutes."""


@dataclass(frozen=True)
class Kind:
    """One way to call."""

    num_callers: int
    is_stream: bool = False

    @property
    def num_calls(self) -> int:
        return _STREAM_CALLS if self.is_stream else _CALLS[self.num_callers]

    @property
    def body(self) -> dict[str, Any]:
        return _BODY | {"stream": True} if self.is_stream else _BODY


KINDS = (*map(Kind, CALLERS), Kind(STREAM_CALLERS, is_stream=True))


@dataclass
class Target:
    """What is called, and what came of it, round by round."""

    name: str
    url: str
    callers: Sequence[Sequence[Place]]
    share: float = 1.0
    done: dict[Kind, list[Done]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    num_calls: int = 0

    def work(self, kind: Kind, scale: float) -> Work:
        num_warm_up = 2 * kind.num_callers
        num_calls = max(num_warm_up, round(kind.num_calls * self.share * scale))
        self.num_calls += num_warm_up + num_calls
        callers = self.callers[: kind.num_callers]
        return Work(self.url, callers, kind.body, num_calls, num_warm_up)

    def warm_up(self, running: Load, scale: float) -> None:
        num_calls = max(STREAM_CALLERS, round(_WARM_UP * self.share * scale))
        self.num_calls += num_calls
        running.do(Work(self.url, self.callers[:STREAM_CALLERS], _BODY, num_calls, 0))

    def calls_per_s(self, kind: Kind) -> float:
        return median(each.calls_per_s for each in self.done[kind])

    def added_ms(self, direct: "Target", kind: Kind, q: float) -> float:
        pairs = zip(self.done[kind], direct.done[kind], strict=True)
        return 1_000 * median(
            quantile(ours.latencies_s, q) - quantile(theirs.latencies_s, q) for ours, theirs in pairs
        )


def bench(parts: Parts, scale: float, *, with_peer: bool) -> Iterator[Figure]:
    num_rounds, scale = max(1, round(ROUNDS * scale)), min(1.0, ROUNDS * scale)
    with upstream() as url, load() as running, parts.lane("proxy") as lane:
        headrace = Headrace(lane, url, num_callers=max(CALLERS))
        direct = Target("upstream", url, _anywhere())
        ours = Target("headrace", headrace.url, headrace.callers)
        targets = [direct, ours]
        if with_peer:
            with litellm_proxy(lane.folder / "litellm", url) as peer_url:
                peer = Target("litellm", peer_url, _anywhere(), _PEERS_SHARE) if peer_url else None
                _measure(running, [*targets, *([peer] if peer else [])], num_rounds, scale)
        else:
            peer = None
            _measure(running, targets, num_rounds, scale)
        check_record(headrace, ours.num_calls)
    yield from _figures(direct, ours, peer)


def _anywhere() -> Sequence[Sequence[Place]]:
    return [[Place("/v1/chat/completions", "none")]] * max(CALLERS)


def _measure(running: Load, targets: Sequence[Target], num_rounds: int, scale: float) -> None:
    for target in targets:
        target.warm_up(running, scale)
    for number in range(num_rounds):
        for kind in KINDS:
            for target in targets:
                done = running.do(target.work(kind, scale))
                target.done[kind].append(done)
                say(f"proxy: round {number + 1}, {_words(target, kind, done)}")


def _words(target: Target, kind: Kind, done: Done) -> str:
    p50, p99 = (1_000 * quantile(done.latencies_s, q) for q in (0.5, 0.99))
    what = "streams" if kind.is_stream else "calls"
    return (
        f"{target.name}: {len(done.latencies_s)} {what} by {kind.num_callers}, {done.calls_per_s:.0f} per s, "
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms; the load took {100 * done.cpu_s / done.took_s:.0f}% of a core"
    )


def _figures(direct: Target, ours: Target, peer: Target | None) -> Iterator[Figure]:
    added: Mapping[str, tuple[Kind, float]] = {
        **{f"added_p50_ms_{kind.num_callers}": (kind, 0.5) for kind in KINDS if not kind.is_stream},
        **{f"added_p99_ms_{kind.num_callers}": (kind, 0.99) for kind in KINDS if not kind.is_stream},
        **{f"stream_added_p50_ms_{kind.num_callers}": (kind, 0.5) for kind in KINDS if kind.is_stream},
    }
    for name, (kind, q) in added.items():
        theirs = Peer(f"litellm_{name}", peer.added_ms(direct, kind, q)) if peer else None
        yield Figure(f"proxy_{name}", ours.added_ms(direct, kind, q), "ms", theirs, is_cost=True)
    theirs = Peer("litellm_requests_per_s", _best(peer)) if peer else None
    yield Figure("proxy_requests_per_s", _best(ours), "requests/s", theirs)


def _best(target: Target) -> float:
    return max(target.calls_per_s(kind) for kind in KINDS if not kind.is_stream)
