"""The command: which benches run, at what size. Figures go to standard output, one a line."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog
from tests.bench import assembler, freshness, memory, proxy, publisher, rollouts, sink, span_store, trainer
from tests.bench.figures import GROUPS, SETS, Figure, median, select
from tests.bench.parts import Parts, parts, say

from headrace.schemas.errors import HeadraceError

QUICK = 0.01

Bench = Callable[[Parts, float], Iterator[Figure]]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    # What parts log, the trainer's and the feeder's, is no figure.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    scale = QUICK if options.quick else options.scale
    with_peer = not (options.quick or options.no_peer)
    benches: Mapping[str, Bench] = {
        "publisher": publisher.bench,
        "assembler": assembler.bench,
        "sink": sink.bench,
        "freshness": freshness.bench,
        "span_store": partial(span_store.bench, with_peer=with_peer),
        "rollouts": partial(rollouts.bench, with_peer=with_peer),
        "proxy": partial(proxy.bench, with_peer=with_peer),
        "trainer": trainer.bench,
        "memory": memory.bench,
    }
    try:
        groups = select(options.only)
        with parts() as running:
            for group in groups:
                say(f"{group}: load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
                for figure in _repeated(partial(benches[group], running, scale), options.repeat):
                    print(figure.line(), flush=True)
    except HeadraceError as error:
        raise SystemExit(f"bench failed: {error}") from error


def _repeated(bench: Callable[[], Iterator[Figure]], repeat: int) -> Iterator[Figure]:
    """The figures of one run as they come, or the medians of several."""
    if repeat == 1:
        yield from bench()
        return
    runs = []
    for _ in range(repeat):
        runs.append(list(bench()))
        for figure in runs[-1]:
            say(f"run {len(runs)} of {repeat}: {figure.line()}")
    for repeats in zip(*runs, strict=True):
        yield median(repeats)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measures headrace on real Kafka and ClickHouse, started for it and stopped again. "
        "One line a figure: bench NAME VALUE UNIT [peer NAME VALUE ratio R].",
    )
    names = ", ".join([*SETS, *GROUPS])
    parser.add_argument("--only", metavar="NAME", help=f"a set, a group or a figure: {names} (default: log)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--scale", type=float, default=1.0, help="more or less work (default: 1)")
    size.add_argument("--quick", action="store_true", help="as little as possible, to see that it runs")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="each so often, and the median (default: 1)"
    )
    parser.add_argument("--no-peer", action="store_true", help="without peers of other projects")
    return parser
