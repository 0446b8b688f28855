"""RolloutLog: the present state of rollouts, read from the topics themselves.

What was acknowledged before a question is in its answer: each reads to the ends that the topics have when it
is asked. One consumer serves all questions at once, in a thread that runs while there are any; a question
that begins further back makes it go back, which is harmless, since what is read twice changes nothing.
"""

import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError, FatalError, HeadraceError
from headrace.schemas.ids import uuid7_time_ms
from headrace.schemas.records import RolloutCommand, RolloutState
from headrace.schemas.topics import topic_name
from headrace.streams.client.partitions import partition_of
from headrace.streams.client.rollout_watch import Watch
from headrace.streams.client.tail import Place, Tail, Tailed
from headrace.streams.settings import KafkaSettings

CLOCK_SLACK_MS = 60_000
"""How far the clocks of whoever made a rollout's id and of whoever writes its states may be apart."""
_MAX_MARKS = 50_000
_RECENT_S = 1.0
# How long a question waits, at most, for the thread to notice it.
_POLL_S = 0.02
_JOIN_S = 10.0

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Question:
    """A watch, where it begins to read, and what it has still to read before it has caught up."""

    watch: Watch
    starts: Mapping[Place, int]
    behind: dict[Place, int]
    wants: set[Place]


class RolloutLog:
    """Safe to share between threads."""

    def __init__(self, settings: KafkaSettings, codec: Codec) -> None:
        self._codec = codec
        self._commands = topic_name(RolloutCommand, settings.topic_prefix)
        self._states = topic_name(RolloutState, settings.topic_prefix)
        # Where places begin and end is asked by a client of its own: one that is polled all the time has no
        # turn for others.
        self._offsets = Tail(settings, name="rollout-offsets")
        self._offsets_lock = threading.Lock()
        self._recent_ends: tuple[float, Mapping[Place, int]] | None = None
        self._tail = Tail(settings, name="rollouts")
        self._marks: OrderedDict[str, Mapping[Place, int]] = OrderedDict()
        self._lock = threading.Condition()
        self._asked: list[_Question] = []
        self._open: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # Of the thread alone, from here on.
        self._questions: list[_Question] = []
        self._by_key: dict[bytes, list[_Question]] = defaultdict(list)
        self._num_wanting: Counter[Place] = Counter()
        self._positions: dict[Place, int] = {}

    @property
    def _topics(self) -> tuple[str, str]:
        return self._commands, self._states

    def recent_ends(self) -> Mapping[Place, int]:
        """Where the topics ended a moment ago: what is enqueued from now on is found from there on."""
        with self._offsets_lock:
            recent = self._recent_ends
            if recent is None or time.monotonic() - recent[0] > _RECENT_S:
                recent = self._recent_ends = (time.monotonic(), self._offsets.ends(self._all_places()))
            return recent[1]

    def mark(self, rollout_ids: Iterable[str], ends: Mapping[Place, int]) -> None:
        """Remember that nothing of these rollouts is before these ends. Old marks give way to new ones."""
        with self._lock:
            for rollout_id in rollout_ids:
                self._marks[rollout_id] = ends
            while len(self._marks) > _MAX_MARKS:
                self._marks.popitem(last=False)

    def watch(self, rollout_ids: Iterable[str], notify: Callable[[], None]) -> Watch:
        """Begin to follow these rollouts; `release` ends it. KafkaUnavailableError if no broker answers."""
        watch = Watch(rollout_ids, notify)
        with self._offsets_lock:
            starts = self._starts(watch.rollout_ids)
            ends = self._offsets.ends(starts)
        behind = {place: ends[place] for place in starts if ends[place] > starts[place]}
        question = _Question(watch, starts, behind, set(starts))
        with self._lock:
            if self._is_closed:
                raise FatalError("this client is closed")
            self._open.add(watch)
            self._asked.append(question)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-rollouts", daemon=True)
                self._thread.start()
            self._lock.notify()
        return watch

    def release(self, watch: Watch) -> None:
        """Follow it no more."""
        with self._lock:
            self._open.discard(watch)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._tail.close()
        with self._offsets_lock:
            self._offsets.close()

    def _all_places(self) -> list[Place]:
        commands, states = (self._offsets.places(topic) for topic in self._topics)
        if len(commands) != len(states):
            raise FatalError(
                f"{self._commands} has {len(commands)} partitions and {self._states} has {len(states)}: "
                "a rollout must be in the same of both"
            )
        return [*commands, *states]

    def _starts(self, rollout_ids: Iterable[str]) -> dict[Place, int]:
        """Where each place must be read from so that nothing of these rollouts is missed."""
        num_partitions = len(self._all_places()) // 2
        starts: dict[Place, int] = {}
        times_ms: dict[Place, int] = {}
        for rollout_id in rollout_ids:
            partition = partition_of(rollout_id.encode(), num_partitions)
            with self._lock:
                mark = self._marks.get(rollout_id)
            for place in (Place(topic, partition) for topic in self._topics):
                if mark is not None:
                    starts[place] = min(mark[place], starts.get(place, mark[place]))
                else:
                    time_ms = uuid7_time_ms(rollout_id) - CLOCK_SLACK_MS
                    times_ms[place] = min(time_ms, times_ms.get(place, time_ms))
        for place, offset in self._offsets.offsets_at(times_ms).items():
            starts[place] = min(offset, starts.get(place, offset))
        return starts

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            try:
                asked, released = self._take()
                # New ones first, so that a place which both want is not dropped in between.
                self._begin(asked)
                for question in released:
                    self._end(question)
                for record in self._tail.poll(_POLL_S) if self._questions else ():
                    self._handle(record)
            except HeadraceError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001  whoever waits must hear of it, whatever it is
                self._fail(FatalError(f"reading the rollouts failed: {error!r}"))
        self._take()
        self._fail(FatalError("the client was closed"))

    def _take(self) -> tuple[list[_Question], list[_Question]]:
        """What was asked and what was released since; waits while there is nothing to do at all."""
        with self._lock:
            while not (self._asked or self._questions or self._is_closed):
                self._lock.wait()
            asked, self._asked = self._asked, []
            self._questions += asked
            return asked, [each for each in self._questions if each.watch not in self._open]

    def _begin(self, questions: Iterable[_Question]) -> None:
        moves: dict[Place, int] = {}
        for question in questions:
            self._num_wanting.update(question.wants)
            for rollout_id in question.watch.rollout_ids:
                self._by_key[rollout_id.encode()].append(question)
            for place, start in question.starts.items():
                if place not in self._positions or start < self._positions[place]:
                    moves[place] = min(start, moves.get(place, start))
        self._tail.move(moves)
        self._positions |= moves
        for question in questions:
            self._settle(question)

    def _end(self, question: _Question) -> None:
        self._questions.remove(question)
        for rollout_id in question.watch.rollout_ids:
            key = rollout_id.encode()
            self._by_key[key].remove(question)
            if not self._by_key[key]:
                del self._by_key[key]
        self._leave(question, question.wants)

    def _leave(self, question: _Question, places: Iterable[Place]) -> None:
        left = set(places)
        question.wants -= left
        self._num_wanting.subtract(left)
        unwanted = {place for place in left if not self._num_wanting[place]}
        for place in unwanted:
            del self._num_wanting[place]
            self._positions.pop(place, None)
        self._tail.drop(unwanted)

    def _handle(self, record: Tailed) -> None:
        if record.place not in self._positions:
            return
        if not record.at_end:
            for question in self._by_key.get(record.key or b"", ()):
                self._show(record, question.watch)
        position = self._positions[record.place] = record.offset + (not record.at_end)
        for question in self._questions:
            if position >= question.behind.get(record.place, position + 1):
                del question.behind[record.place]
                self._settle(question)

    def _show(self, record: Tailed, watch: Watch) -> None:
        try:
            if record.place.topic == self._states:
                watch.see(self._codec.decode(record.value, RolloutState))
            else:
                watch.see_command(self._codec.decode(record.value, RolloutCommand))
        except BadRecordError as error:
            place = f"{record.place.topic}:{record.place.partition}:{record.offset}"
            log.warning("not a record of a rollout", place=place, reason=str(error))

    def _settle(self, question: _Question) -> None:
        """Once caught up, only states matter: commands say nothing new."""
        if not question.behind:
            question.watch.catch_up()
            self._leave(question, [place for place in question.wants if place.topic == self._commands])

    def _fail(self, error: HeadraceError) -> None:
        """End every question with what went wrong; the next ones begin anew."""
        with self._lock:
            for question in self._questions:
                self._open.discard(question.watch)
        for question in self._questions:
            question.watch.fail(error)
        self._tail.drop(self._positions)
        self._questions.clear()
        self._by_key.clear()
        self._num_wanting.clear()
        self._positions.clear()
