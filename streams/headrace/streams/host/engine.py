"""Faust, fitted to the host: group membership, assignment, changelog recovery and commits stay Faust's; what
loses or repeats work in Faust 0.15.3 is replaced here.

What was found in its code, and how it is closed:

- An event whose agent raised is acknowledged, and its agent restarted. There is no agent here: the drain loop
  hands whole fetches to the worker, and any exception crashes the app.
- `send_changelog` puts a change into a buffer which a commit does not reliably wait for, and a failed send is
  a line in the log. Here the worker awaits every acknowledgement before an offset can be committed.
- A commit is a run of acknowledged offsets, kept as lists, which gaps have upset (#606, robinhood/faust#625).
  Here it is the next offset (`positions.py`).
- On revocation acknowledged offsets are thrown away before they can be committed, and batches in flight are
  not waited for. Here the batch in hand is finished and committed first.
- After recovery Faust seeks to the committed offsets, but aiokafka leaves a partition without one where it
  is: records fetched and dropped meanwhile are gone, if a worker was killed before its first commit. Here
  every partition is sought explicitly, and only contiguous records are admitted.
- An empty set of active partitions means all of them to aiokafka, and the set is shared between threads.
  Here it is copied, and nothing is fetched while it is empty.
- Recovery applies one event at a time, only warns of errors in doing so, and waits for a record at the very
  end of the changelog, which compaction may have taken. Here whole fetches are written, each with its
  offset; errors crash the app; and the consumer's position counts as well.
- A fetch waits up to 1.5 s at the broker and no second one is sent meanwhile: a record for a partition that
  is not part of it waits as long. Here the wait is a setting.
- The producer may send a batch twice, and gives up. Here it is idempotent, with which aiokafka repeats a
  batch until it succeeds, in order and without copies.

Left as it is: a process that was frozen for longer than the session timeout may, when it wakes, still append
the changes that it was about to append. Only transactions would fence it off. It then ends, and its successor
goes on (`worker.py`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import faust
from aiokafka.errors import ConsumerStoppedError
from aiokafka.structs import TopicPartition as KafkaTopicPartition
from faust.stores.base import Store
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode import Service
from mode.threads import MethodQueue

from headrace.schemas.errors import FatalError
from headrace.streams.host.store import StateStore
from headrace.streams.host.worker import Worker

_POLL_S = 0.5
_RECOVERY_CHECK_S = 0.5


# ruff: noqa: SLF001 - subclasses reach into Faust and aiokafka, which offer no other way


class ConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    """The thread that aiokafka's consumer runs in."""

    _method_queue: Any

    @property
    def method_queue(self) -> Any:  # noqa: ANN401
        # Two workers, as by default, are both taken when a commit and a fetch wait for the broker: the seek
        # that a rebalance needs would then never run.
        if self._method_queue is None:
            self._method_queue = MethodQueue(num_workers=8, loop=self.thread_loop, beacon=self.beacon)
        return self._method_queue

    def _create_worker_consumer(self, transport: Any) -> Any:  # noqa: ANN401
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = self.app.fetch_max_wait_ms
        return consumer

    async def seek_all(self, offsets: Mapping[tuple[str, int], int]) -> None:
        await self.call_thread(self._seek_all, offsets)

    async def seek_to_start(self, tps: Iterable[TP]) -> dict[tuple[str, int], int]:
        """Seek to the committed offset, or to the first there is where nothing is committed."""
        start: dict[tuple[str, int], int] = await self.call_thread(self._seek_to_start, list(tps))
        return start

    async def _seek_all(self, offsets: Mapping[tuple[str, int], int]) -> None:
        consumer = self._ensure_consumer()
        for (topic, partition), offset in offsets.items():
            consumer.seek(KafkaTopicPartition(topic, partition), offset)

    async def _seek_to_start(self, tps: Sequence[TP]) -> dict[tuple[str, int], int]:
        consumer = self._ensure_consumer()
        partitions = [KafkaTopicPartition(*tp) for tp in tps]
        committed = await asyncio.gather(*(consumer.committed(tp) for tp in partitions))
        first = await consumer.beginning_offsets(partitions)
        start = {
            (tp.topic, tp.partition): first[tp] if offset is None else offset
            for tp, offset in zip(partitions, committed, strict=True)
        }
        await self._seek_all(start)
        return start


class Consumer(driver.Consumer):  # type: ignore[misc]
    """Hands fetches to the worker and commits what the worker has processed."""

    _round = -1

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _drain_messages(self, fetcher: Any) -> None:  # noqa: ANN401
        while not (self.should_stop or fetcher.should_stop):
            if not self.flow_active:
                await self.wait(self.can_resume_flow)
                continue
            active = set(self._get_active_partitions())
            if not active:
                await self.sleep(_POLL_S / 10)
                continue
            try:
                fetched = await self._thread.getmany(active, _POLL_S)
            except ConsumerStoppedError:
                if self.app.should_stop:
                    return
                raise
            if fetched:
                await self._receive({(tp.topic, tp.partition): records for tp, records in fetched.items()})

    async def _receive(self, fetched: dict[tuple[str, int], Sequence[Any]]) -> None:
        changelogs = self.app.tables.changelog_topics
        for tp in [tp for tp in fetched if tp[0] in changelogs]:
            self.app.tables.recovery.apply(TP(*tp), fetched.pop(tp))
        if not self.flow_active:
            self.app.worker.positions.dropped()
        elif fetched:
            rewinds = await self.app.worker.process(fetched)
            if rewinds:
                await self._thread.seek_all(rewinds)

    async def perform_seek(self) -> None:
        # Faust lets this run on when the next rebalance has begun: then nothing may be assigned any more.
        if self.app.rebalancing_count != self._round:
            return
        sources = [tp for tp in self.assignment() if not self._is_changelog_tp(tp)]
        start = await self._thread.seek_to_start(sources)
        if self.app.rebalancing_count == self._round:
            recovered = self.app.tables.recovery.recovered()
            self.app.worker.assign({tp.partition for tp in sources}, start, recovered)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        self._round = self.app.rebalancing_count
        await super().on_partitions_assigned(assigned, generation_id)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        self.stop_flow()
        await self.app.hand_back()
        await super().on_partitions_revoked(revoked)

    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:  # noqa: ANN401, ARG002, FBT001, FBT002
        positions = self.app.worker.positions
        offsets = positions.committable()
        if not offsets:
            return False
        committed: bool = await self._commit({TP(*tp): offset for tp, offset in offsets.items()})
        if committed:
            positions.committed(offsets)
        return committed

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust's own check looks at per-event statistics that are not kept here; see `lag.Watchdog`."""

    def verify_recovery_event_path(self, now: float, tp: TP) -> None:
        """As above."""


class Producer(driver.Producer):  # type: ignore[misc]
    """An idempotent producer: retried until it succeeds, in order, without copies."""

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"acks": "all", "enable_idempotence": True}


class Transport(driver.Transport):  # type: ignore[misc]
    Consumer: ClassVar[Any] = Consumer
    Producer: ClassVar[Any] = Producer


class ChangelogRecovery(Recovery):  # type: ignore[misc]
    """Applies whole fetches of the changelog to the state, each with its offset."""

    _applied: int = 0

    def apply(self, tp: TP, records: Sequence[Any]) -> None:
        """Write what is new in the records to the partition's file."""
        if tp not in self.active_tps:
            return  # fetched before a rebalance
        seen = self.active_offsets[tp]
        new = [record for record in records if seen is None or record.offset > seen]
        if not new:
            return
        last = new[-1].offset
        self.app.store.apply(tp.partition, [(record.key, record.value) for record in new], last)
        self.active_offsets[tp] = last
        self._applied += len(new)
        self._maybe_end()

    def recovered(self) -> dict[int, int]:
        """Return, by partition, the offset of the last change that the state has; -1 for none."""
        return {tp.partition: self.active_offsets[tp] for tp in self.active_tps}

    @property
    def progress(self) -> tuple[int, int]:
        return self._applied, self._generation_id

    def flush_buffers(self) -> None:
        """There are none."""

    def _set_recovery_started(self) -> None:
        self.signal_recovery_end.clear()
        super()._set_recovery_started()

    @Service.task  # type: ignore[untyped-decorator]
    async def _slurp_changelogs(self) -> None:
        before = -1
        while not self.should_stop:
            await self.sleep(_RECOVERY_CHECK_S)
            if self.in_recovery and before == self._applied:
                await self._skip_compacted()
                self._maybe_end()
            before = self._applied

    async def _skip_compacted(self) -> None:
        # Nothing came since the last look: what the position has passed is not there any more.
        applied = self._applied
        for tp, highwater in list(self.active_highwaters.items()):
            offset = self.active_offsets[tp]
            if highwater is None or offset is None or offset >= highwater:
                continue
            position = await self.app.consumer.position(tp)
            if position is not None and position > highwater and applied == self._applied:
                self.active_offsets[tp] = highwater

    def _maybe_end(self) -> None:
        if self.in_recovery and not self.need_recovery():
            self._set_recovery_ended()
            self.signal_recovery_end.set()


class Tables(TableManager):  # type: ignore[misc]
    _recovery: ChangelogRecovery | None

    async def on_start(self) -> None:
        # Faust sleeps for a second here, for tables that agents may add.
        await self._update_channels()
        await self.recovery.start()

    @property
    def recovery(self) -> ChangelogRecovery:
        if self._recovery is None:
            self._recovery = ChangelogRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery


class TableStore(Store):  # type: ignore[misc]
    """Faust's view of the state's files: opened and closed with the assignment."""

    def persisted_offset(self, tp: TP) -> int | None:
        return self.app.store[tp.partition].offset()  # type: ignore[no-any-return]

    async def on_rebalance(
        self,
        assigned: set[TP],  # noqa: ARG002 - Faust's signature
        revoked: set[TP],
        newly_assigned: set[TP],
        generation_id: int = 0,
    ) -> None:
        topic = self.table.changelog_topic_name
        for tp in revoked:
            if tp.topic == topic:
                self.app.store.close(tp.partition)
        for tp in newly_assigned:
            if tp.topic == topic:
                await self._open(tp.partition, generation_id)

    async def _open(self, partition: int, generation_id: int) -> None:
        # On one machine two processes may share the folder: the other one closes the file when it learns of
        # the rebalance, which may be after us.
        while self.app.consumer_generation_id == generation_id and not self.should_stop:
            try:
                self.app.store[partition]
            except Exception as exc:
                if "lock" not in str(exc).lower():
                    raise
                await self.sleep(0.2)
            else:
                return

    async def on_stop(self) -> None:
        self.app.store.close_all()

    def apply_changelog_batch(self, *_: object) -> None:
        raise NotImplementedError("ChangelogRecovery.apply writes the changelog")

    def reset_state(self) -> None:
        raise NotImplementedError("delete the state folder while the process is down")

    async def backup_partition(self, *_: object) -> None:
        raise NotImplementedError("the changelog is the backup")

    def restore_backup(self, *_: object) -> None:
        raise NotImplementedError("the changelog is the backup")


class Table(faust.Table):  # type: ignore[misc]
    def _new_store(self) -> TableStore:
        return TableStore(
            "rocksdb:", self.app, self, table_name=self.name, key_type=bytes, value_type=bytes, loop=self.loop
        )

    async def on_start(self) -> None:
        # The changelog was created, or found right, before the app was started.
        await self.add_runtime_dependency(self.data)


class App(faust.App):  # type: ignore[misc]
    """The Faust app of one processor."""

    worker: Worker
    store: StateStore
    fetch_max_wait_ms: int
    hand_back_timeout_s: float

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)

    def kafka_producer(self) -> Any:  # noqa: ANN401
        """Return aiokafka's producer, below Faust's buffer."""
        return self.producer._ensure_producer()

    async def hand_back(self) -> None:
        """Finish the batch in hand, commit, and let go of every partition: a rebalance begins, or the end."""
        try:
            async with asyncio.timeout(self.hand_back_timeout_s):
                await self.worker.lock.acquire()
        except TimeoutError:
            # The partitions will be another process's: this one must not go on with them.
            await self.crash(
                FatalError(f"batch not finished {self.hand_back_timeout_s:g} s after a rebalance began")
            )
            return
        try:
            # A commit under way covers what was processed when it began, and the next one the rest.
            for _ in range(2):
                await self.consumer.commit()
            self.worker.release()
        finally:
            self.worker.lock.release()
