"""Watches the lag of the running app: for the metrics, and to end a process that is stuck.

The log's ends are asked of the broker itself, apart from fetching: a consumer that has silently stopped
fetching (faust #175, #532, #640) does not know that it is behind.
"""

import asyncio
import time

import structlog
from aiokafka.errors import KafkaError

from headrace.streams.host.engine import App
from headrace.streams.host.lag import Watchdog
from headrace.streams.host.metrics import HostMetrics
from headrace.streams.host.positions import TopicPartition

_EVERY_S = 1.0
_ANSWER_S = 5.0

log = structlog.get_logger(__name__)


class Observer:
    """Of one app."""

    def __init__(self, app: App, metrics: HostMetrics, watchdog_s: float) -> None:
        self._app = app
        self._metrics = metrics
        self._watchdog_s = watchdog_s

    async def run(self) -> None:
        """Return when the app is stuck: a clear log line is written then."""
        watchdog = Watchdog(self._watchdog_s, time.monotonic())
        while True:
            await asyncio.sleep(_EVERY_S)
            pending = await self._observe()
            if watchdog.bites(time.monotonic(), pending=pending, mark=self._progress()):
                log.critical(
                    "no progress: ending the process, to be started again",
                    app=self._app.conf.id,
                    limit_s=self._watchdog_s,
                    rebalancing=self._app.rebalancing,
                    recovering=self._app.in_recovery,
                    lag={
                        f"{t}-{p}": lag.records
                        for (t, p), lag in self._app.worker.lags.items()
                        if lag.records
                    },
                )
                return

    def _progress(self) -> object:
        return (
            self._app.worker.positions.committed_total(),
            self._app.tables.recovery.progress,
            self._app.rebalancing_count,
        )

    async def _observe(self) -> bool:
        """Record the lag; return whether there is work to do that the broker would let us do."""
        worker = self._app.worker
        positions = worker.positions.all()
        if not positions:
            # Recovering or rebalancing is work; to be in the group without a partition is not.
            return bool(self._app.rebalancing or self._app.in_recovery)
        try:
            async with asyncio.timeout(_ANSWER_S):
                ends = await self._app.consumer.highwaters(*(TopicPartition(*tp) for tp in positions))
        except (TimeoutError, KafkaError):
            return False
        now_s = time.time()
        pending = False
        for (topic, partition), end in ends.items():
            lag = worker.lags.get((topic, partition))
            if lag is None or (topic, partition) not in worker.positions:
                return True  # a rebalance began meanwhile
            seconds = lag.observe(now_s, worker.positions[topic, partition], end)
            self._metrics.set_lag(topic, partition, lag.records, seconds)
            pending = pending or lag.records > 0
        return pending
