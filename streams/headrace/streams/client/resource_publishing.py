"""Publishing a resource's version: numbered, whole and checksummed before anybody hears of it (G9).

The log decides between two who publish at once: the first record of a version is that version, and the other
publisher, who reads its own back, takes the next number.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import structlog
from confluent_kafka import KafkaError, Message
from pydantic import ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.errors import FatalError
from headrace.schemas.records import ResourceVersion, now
from headrace.schemas.topics import topic_name
from headrace.streams.client.errors import DeliveryError
from headrace.streams.client.manifest import BadResourceError, manifest_of
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.resource_versions import RESTORED, ResourceVersions, Taken
from headrace.streams.client.rollouts import Client
from headrace.streams.client.tail import Place, Tail

ResourceKind = Literal["weights", "prompt", "sampling", "endpoint"]
_MAX_TRIES = 20

log = structlog.get_logger(__name__)


class VersionTakenError(FatalError):
    """Another publisher has this version, or a higher one."""


def publish_resource(
    publisher: Publisher | Client,
    name: str,
    kind: ResourceKind,
    *,
    uri: str = "",
    content: str | None = None,
    files: Path | None = None,
    metadata: Mapping[str, str] | None = None,
    trained_on: Iterable[str] = (),
    consumed_offsets: Mapping[str, int] | None = None,
    parent_version: int | None = None,
    version: int | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> ResourceVersion:
    """Publish the next version of a name and return it once Kafka has it and it is known to be the one.

    `files` is a folder or a file on this machine: all of it is read and hashed first, and an empty `uri`
    becomes where it lies. `version` asks for a number above the newest: VersionTakenError if it is not, or
    another publisher was first. Without it the number is the newest and one, whoever else publishes.
    BadResourceError for what can't be a resource; ResourceChangedError for files that are still written.
    """
    target = publisher.publisher if isinstance(publisher, Client) else publisher
    if not uri and content is None and files is None:
        raise BadResourceError(f"nothing is given for {name}: a uri, content or files")
    manifest = manifest_of(files, on_bytes=on_bytes) if files is not None else {}
    if not uri and files is not None:
        uri = files.resolve().as_uri()
    try:
        draft = ResourceVersion(
            name=name,
            version=version or 0,
            kind=kind,
            uri=uri,
            content=content,
            manifest=manifest,
            trained_on=tuple(trained_on),
            consumed_offsets=dict(consumed_offsets or {}),
            parent_version=parent_version,
            metadata=dict(metadata or {}),
            time=now(),
        )
    except ValidationError as error:
        raise BadResourceError(describe(error)) from None
    with Tail(target.settings, name="resource-publisher") as tail:
        return _Publishing(target, tail, name).publish(draft, version)


class _Publishing:
    """The topic as it is read, and this publisher's tries to be next in it."""

    def __init__(self, publisher: Publisher, tail: Tail, name: str) -> None:
        self._publisher = publisher
        self._tail = tail
        self._name = name
        self._topic = topic_name(ResourceVersion, publisher.settings.topic_prefix)
        self._versions = ResourceVersions(publisher.codec)
        self._positions = tail.beginnings(tail.places(self._topic))

    def publish(self, draft: ResourceVersion, asked: int | None) -> ResourceVersion:
        self._read_to(self._tail.ends(self._positions))
        self._restore()
        for _ in range(_MAX_TRIES):
            newest = self._versions.newest_version(self._name)
            if asked is not None and asked <= newest:
                raise VersionTakenError(
                    f"version {asked} of {self._name} can't be published: "
                    f"versions only go up, and the newest is {newest}"
                )
            number = max(newest, 0) + 1 if asked is None else asked
            record = draft.model_copy(update={"version": number, "time": now()})
            place, offset = self._acknowledged(record)
            if self._read_to({place: offset + 1}) == "newest":
                return record
            self._restore()
            log.info("another publisher was first", resource=self._name, version=number)
        raise VersionTakenError(
            f"{self._name}: {_MAX_TRIES} times another publisher was first, the newest version is {newest}"
        )

    def _read_to(self, ends: Mapping[Place, int]) -> Taken | None:
        """Take in the log up to there; what the last record was."""
        taken: Taken | None = None
        for record in self._tail.read(self._positions, ends):
            taken = self._versions.take(record.value, record.headers).taken
        self._positions |= ends
        return taken

    def _restore(self) -> None:
        """Publish again what lost its place to a later record of its key: compaction must keep the first."""
        covered = self._versions.covered()
        for key, value in covered:
            self._publisher.publish_bytes(self._topic, key, value, headers={RESTORED: b"1"})
        if covered:
            self._publisher.flush()

    def _acknowledged(self, record: ResourceVersion) -> tuple[Place, int]:
        """Where Kafka has put it."""
        places: list[tuple[Place, int]] = []
        errors: list[str] = []

        def settle(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error.str())
            else:
                places.append((Place(self._topic, message.partition() or 0), message.offset() or 0))

        self._publisher.publish(record, on_delivery=settle)
        self._publisher.flush()
        if not places:
            raise DeliveryError(1, [(self._topic, record.key, "; ".join(errors) or "no acknowledgement")])
        return places[0]
