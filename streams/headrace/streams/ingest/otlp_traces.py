"""Traces out of spans that come in any order: one trace is one attempt.

Spans go to a temporary database on disk until the last file is read, so that a trace may be spread over
lines and files of any size; in memory is one trace at a time. Sequence ids follow start time, then span
id. Where spans say `headrace.attempt_id`, `headrace.rollout_id` or `headrace.sequence_id`, those count,
and spans without a sequence id come behind the others.

A trace that lacks a span, because it could not be read, ends with a `last_sequence_id` beyond its
spans: it is not complete, and must not train (G3). An attempt failed if a span without parent did.
"""

import re
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from headrace.schemas.codec import Codec
from headrace.schemas.ids import derived_uuid7
from headrace.schemas.records import Generation, Record, Span
from headrace.schemas.records.rollout import Mode
from headrace.streams.ingest import gen_ai
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.imported import ImportedAttempt
from headrace.streams.ingest.otlp import GROUP_ID, TASK_ID, BadSpan, ReadSpan, read_request
from headrace.streams.ingest.strict_json import decode

_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE spans (
  attempt TEXT, span TEXT, choice INTEGER, start_ns INTEGER, rollout TEXT, sequence INTEGER, body BLOB,
  PRIMARY KEY (attempt, span)
) WITHOUT ROWID;
CREATE UNIQUE INDEX sequences ON spans (attempt, sequence) WHERE sequence IS NOT NULL;
CREATE TABLE missing (attempt TEXT PRIMARY KEY, spans INTEGER);
"""
_ENCODED_FOR = "spans"
_TRACE_ID = re.compile(rb'"trace_?[iI]d"\s*:\s*"([0-9a-fA-F]{32})"')


class _Row(NamedTuple):
    span: str
    start_ns: int
    rollout: str | None
    sequence: int | None
    body: bytes


class TraceImport:
    """Requests in; records out at the end."""

    def __init__(self, *, mode: Mode = "train") -> None:
        self.mode = mode
        self.num_repeated = 0
        self._codec = Codec()
        # An unnamed database is a temporary file that vanishes with the connection.
        self._spool = sqlite3.connect("", isolation_level=None)
        self._spool.executescript(_SCHEMA + "BEGIN;")

    def feed(self, content: bytes) -> Iterator[BadSpan]:
        """Take in one request; yields its spans that can't be read. MalformedError, and nothing taken in,
        if it is none; then the traces that it names lack a span.
        """
        try:
            spans = list(read_request(decode(content)))
        except MalformedError:
            for trace_id in sorted(set(_TRACE_ID.findall(content))):
                self._count_missing(trace_id.decode().lower())
            raise
        for part, span in enumerate(spans, 1):
            if isinstance(span, BadSpan):
                if span.trace_id:
                    self._count_missing(span.trace_id)
                yield span
                continue
            problem = self._store(span)
            if problem is not None:
                self._count_missing(span.attempt_id or span.trace_id)
                yield BadSpan(part, problem, span.original(), span.trace_id)

    def close(self) -> Iterator[Record]:
        """Every trace, in order of its start."""
        attempts = self._spool.execute(
            "SELECT attempt FROM spans GROUP BY attempt ORDER BY min(start_ns), attempt"
        )
        for (attempt,) in attempts:
            yield from self._emit(attempt)
        self._spool.close()

    def _store(self, read: ReadSpan) -> MalformedError | None:
        attempt = read.attempt_id or read.trace_id
        for span in read.choices:
            try:
                body = self._codec.encode(span, _ENCODED_FOR)
            except UnicodeEncodeError:
                return MalformedError("invalid", "half a surrogate pair in its messages")
            choice = span.generation.choice_index if span.generation else 0
            row = (attempt, span.span_id, choice, read.start_ns, read.rollout_id, read.sequence_id, body)
            try:
                self._spool.execute("INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                there = self._spool.execute(
                    "SELECT body FROM spans WHERE attempt = ? AND span = ?", (attempt, span.span_id)
                ).fetchone()
                if there is None:
                    return MalformedError("conflict", f"sequence_id {read.sequence_id} is another span's")
                if there[0] != body:
                    return MalformedError("conflict", f"another span has the id {span.span_id}")
                self.num_repeated += 1
        return None

    def _count_missing(self, attempt: str) -> None:
        self._spool.execute(
            "INSERT INTO missing VALUES (?, 1) ON CONFLICT (attempt) DO UPDATE SET spans = spans + 1",
            (attempt,),
        )

    def _emit(self, attempt: str) -> Iterator[Record]:
        rows = [
            _Row(*row)
            for row in self._spool.execute(
                "SELECT span, start_ns, rollout, sequence, body FROM spans WHERE attempt = ? "
                "ORDER BY start_ns, span, choice",
                (attempt,),
            )
        ]
        spans = [self._codec.decode(row.body, Span) for row in rows]
        start_ms = rows[0].start_ns // 1_000_000
        # The ids name these spans: a trace read again with more of them is another attempt, not a
        # second story of this one.
        seed = (spans[0].trace_id, *sorted(row.span for row in rows))
        is_given = "-" in attempt
        rollout_id = next((row.rollout for row in rows if row.rollout), None) or (
            attempt if is_given else derived_uuid7(start_ms, "rollout", *seed)
        )
        attempt_id = attempt if is_given else derived_uuid7(start_ms, "attempt", *seed)
        sequence = _Sequence([row.sequence for row in rows])
        agents = _Agents(spans)
        for row, span in zip(rows, spans, strict=True):
            place = {"rollout_id": rollout_id, "attempt_id": attempt_id}
            generation = agents.named(span)
            number = sequence.number(row.sequence)
            yield span.model_copy(update=place | {"sequence_id": number, "generation": generation})
        yield from ImportedAttempt(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            group_id=_said(spans, GROUP_ID) or None,
            task_id=_said(spans, TASK_ID),
            mode=self.mode,
            started=spans[0].start_time,
            ended=_latest(spans),
            last_sequence_id=sequence.last + self._num_missing({attempt, *(span.trace_id for span in spans)}),
            error=_failure(spans),
        ).events()

    def _num_missing(self, names: set[str]) -> int:
        """Spans that could not be read, by attempt, or by trace where the attempt is not known from them."""
        found = (
            self._spool.execute("SELECT spans FROM missing WHERE attempt = ?", (name,)).fetchone()
            for name in names
        )
        return sum(row[0] for row in found if row)


class _Sequence:
    """Hands out sequence ids behind those that spans brought along."""

    def __init__(self, given: list[int | None]) -> None:
        self.last = max((number for number in given if number is not None), default=0)

    def number(self, given: int | None) -> int:
        if given is not None:
            return given
        self.last += 1
        return self.last


class _Agents:
    """Which agent made a call: its own name, or the nearest one above it in the trace."""

    def __init__(self, spans: list[Span]) -> None:
        self._parents = {span.span_id: span.parent_span_id for span in spans}
        self._names = {
            span.span_id: span.attributes[gen_ai.AGENT_NAME]
            for span in spans
            if gen_ai.AGENT_NAME in span.attributes
        }

    def named(self, span: Span) -> Generation | None:
        if span.generation is None or span.generation.agent:
            return span.generation
        at, seen = span.parent_span_id, set[str]()
        while at and at not in seen:
            if at in self._names:
                return span.generation.model_copy(update={"agent": self._names[at]})
            seen.add(at)
            at = self._parents.get(at, "")
        return span.generation


def _said(spans: list[Span], name: str) -> str:
    """The first value of this attribute, on a span or its resource."""
    values = (span.attributes.get(name) or span.resource_attributes.get(name) for span in spans)
    return next((value for value in values if value), "")


def _latest(spans: list[Span]) -> datetime:
    return max(span.end_time for span in spans)


def _failure(spans: list[Span]) -> str | None:
    roots = (span for span in spans if not span.parent_span_id and span.status == "error")
    return next((span.status_message or "its root span has status error" for span in roots), None)
