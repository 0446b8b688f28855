"""ResourceStore: the resources topic as it is now, kept up to date in the background.

After `start` it has read all that was published before. What it hands out is whole (G9): the newest version
of a name, or the one that is pinned.
"""

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import structlog

from headrace.schemas.codec import Codec
from headrace.schemas.errors import FatalError, HeadraceError, RetryableError
from headrace.schemas.records import ResourceVersion
from headrace.schemas.topics import topic_name
from headrace.streams.client.errors import KafkaUnavailableError
from headrace.streams.client.manifest import BadResourceError, ResourceChangedError, manifest_of
from headrace.streams.client.resource_publishing import VersionTakenError, publish_resource
from headrace.streams.client.resource_versions import ResourceVersions, UnknownResourceError
from headrace.streams.client.tail import Tail, Tailed
from headrace.streams.settings import KafkaSettings

__all__ = [
    "BadResourceError",
    "ResourceChangedError",
    "ResourceStore",
    "ResourceTimeoutError",
    "ResourceVersions",
    "UnknownResourceError",
    "VersionTakenError",
    "manifest_of",
    "publish_resource",
    "read_resources",
]

START_S = 60.0
_POLL_S = 0.5
_JOIN_S = 2.0
_RETRY_S = 1.0
# It only waits for what is new: the fewer fetches the better.
_FETCH_WAIT_MS = 1000

OnChange = Callable[[ResourceVersion], None]

log = structlog.get_logger(__name__)


class ResourceTimeoutError(RetryableError):
    """A version that did not come in time."""


def read_resources(settings: KafkaSettings, codec: Codec | None = None) -> ResourceVersions:
    """What the topic holds now."""
    versions = ResourceVersions(codec or Codec())
    with Tail(settings, name="resources") as tail:
        places = tail.places(topic_name(ResourceVersion, settings.topic_prefix))
        for record in tail.read(tail.beginnings(places), tail.ends(places)):
            versions.take(record.value, record.headers)
    return versions


class ResourceStore:
    """Safe to share between threads. Use it as a context manager, or call `start` and `close`."""

    def __init__(self, settings: KafkaSettings, codec: Codec | None = None) -> None:
        self._settings = settings
        self._topic = topic_name(ResourceVersion, settings.topic_prefix)
        self._changed = threading.Condition()
        self._versions = ResourceVersions(codec or Codec())
        self._callbacks: list[OnChange] = []
        self._caught_up = False
        self._closing = threading.Event()
        self._error: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-resources", daemon=True)

    def start(self, timeout_s: float = START_S) -> None:
        """Return when the topic is read to its end once; KafkaUnavailableError if it can't be in time."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._caught_up or isinstance(self._error, FatalError), timeout_s)
            if self._caught_up:
                return
        self.close()
        raise self._error or KafkaUnavailableError(
            f"{self._topic} at {self._settings.bootstrap_servers} could not be read within {timeout_s:g} s"
        )

    def resolve(self, pinned: Mapping[str, int] | None = None) -> Mapping[str, ResourceVersion]:
        """The newest version of each name, or the pinned one. UnknownResourceError if that does not exist."""
        with self._changed:
            found = dict(self._versions.newest())
            for name, version in (pinned or {}).items():
                if name not in found or found[name].version != version:
                    found[name] = self._versions.pinned(name, version)
            return found

    def wait_for(self, name: str, version: int, timeout_s: float = START_S) -> ResourceVersion:
        """That version, once it is there. ResourceTimeoutError says what was there instead.

        UnknownResourceError if the name has gone past it: it will not come any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._versions.newest_version(name) >= version, timeout_s)
            newest = self._versions.newest_version(name)
            if newest >= version:
                return self._versions.pinned(name, version)
        seen = f"the newest is {newest}" if newest >= 0 else "there is none of that name"
        why = f"; reading {self._topic} fails: {self._error}" if self._error else ""
        raise ResourceTimeoutError(f"{name} had no version {version} after {timeout_s:g} s: {seen}{why}")

    def on_change(self, callback: OnChange) -> None:
        """Be told of each version that becomes its name's newest from now on, in the order of the log.

        From the store's own thread: be quick. What the callback raises is logged, and changes nothing.
        """
        with self._changed:
            self._callbacks.append(callback)

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Read the topic, and again from its beginning after a failure: that is harmless."""
        while not self._closing.is_set():
            try:
                self._follow()
            except FatalError as error:
                self._fail(error)
                if not self._caught_up:
                    return
            except Exception as error:  # noqa: BLE001  an old version is better than none
                self._fail(error)
            self._closing.wait(_RETRY_S)

    def _follow(self) -> None:
        with Tail(self._settings, name="resources", fetch_wait_ms=_FETCH_WAIT_MS) as tail:
            places = tail.places(self._topic)
            positions = tail.beginnings(places)
            ends = tail.ends(places)
            behind = {place for place in places if positions[place] < ends[place]}
            tail.move(positions)
            self._catch_up(done=not behind)
            while not self._closing.is_set():
                for record in tail.poll(_POLL_S):
                    if not record.at_end:
                        self._take(record)
                    if record.place in behind and record.offset >= ends[record.place] - 1:
                        behind.discard(record.place)
                        self._catch_up(done=not behind)

    def _take(self, record: Tailed) -> None:
        with self._changed:
            taken, version = self._versions.take(record.value, record.headers)
            callbacks = list(self._callbacks) if taken == "newest" and self._caught_up else []
            self._changed.notify_all()
        if taken in {"bad", "lower", "conflict"}:
            # A version that is there already stays what it is (G9).
            log.warning(
                "resource version ignored",
                why=taken,
                place=f"{record.place.topic}:{record.place.partition}:{record.offset}",
                key=(record.key or b"").decode(errors="replace"),
            )
        if version is not None:
            for callback in callbacks:
                self._tell(callback, version)

    def _tell(self, callback: OnChange, version: ResourceVersion) -> None:
        try:
            callback(version)
        except Exception:
            log.exception("a callback failed", resource=version.name, version=version.version)

    def _catch_up(self, *, done: bool) -> None:
        if done:
            with self._changed:
                self._caught_up = True
                self._error = None
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        failure = error if isinstance(error, HeadraceError) else FatalError(f"{self._topic}: {error!r}")
        log.warning("resources can't be read", reason=str(failure))
        with self._changed:
            self._error = failure
            self._changed.notify_all()
