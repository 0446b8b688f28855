"""Store: the batcher's state as entries that are written once.

What is true is what the cursor says: the offset up to which the log has been handled. It is written after
all entries of a call and before their deletion, so that a write cut short leaves either entries beyond the
cursor, which the log will bring again just so, or entries of groups that are marked as finished, which are
dropped.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import orjson

from headrace.schemas.codec import Codec
from headrace.schemas.records import Trajectory
from headrace.streams.processor import State
from headrace.streams.processors.batcher.group import Group, Member
from headrace.streams.processors.batcher.settled import Settled
from headrace.streams.processors.expiry import FinishedMarks

_CURSOR = b"c"
_GROUP = b"g"
_MEMBER = b"m"
_PENDING = b"p"
_SETTLED = b"s"
_ID_BYTES = 16
_REJECTED, _ACCEPTED = b"0", b"1"


class Recovered(NamedTuple):
    """What a state holds."""

    cursor: int
    newest: dict[str, int]
    open: dict[str, Group]
    pending: dict[str, Group]
    """In the order in which they became ready."""
    settled: Settled
    leftovers: list[bytes]
    """Keys that should have been deleted."""


class GroupStore:
    """The cursor; of each group a head, its members, and once it is ready its place; finished marks; and how
    those did that were settled since the last batch.
    """

    def __init__(self, codec: Codec, retention_s: float) -> None:
        self._codec = codec
        self.finished = FinishedMarks(retention_s)

    # --- writing -------------------------------------------------------------------------------------

    def put_cursor(self, offset: int, newest: dict[str, int], state: State) -> None:
        state.put(_CURSOR, orjson.dumps([offset, newest]))

    def put_head(self, group: Group, state: State) -> None:
        head = [group.group_id, group.task_id, group.mode, group.size, group.first_offset, group.first_ms]
        state.put(_GROUP + _hashed(group.group_id), orjson.dumps(head))

    def put_member(self, group: Group, member: Member, value: bytes, state: State) -> None:
        """An accepted one with its record, which the batch will need."""
        entry = _ACCEPTED + value if member.accepted else _REJECTED + member.rollout_id.encode()
        state.put(_member_key(group, member), entry)

    def put_pending(self, group: Group, state: State) -> None:
        entry = [group.group_id, group.ready_ms, group.staleness]
        state.put(_PENDING + group.ready_offset.to_bytes(8, "big"), orjson.dumps(entry))

    def put_settled(self, before: Settled, after: Settled, state: State) -> None:
        """Under its place in the log: what was there before the cursor moved on stays until it has."""
        state.put(_settled_key(after), orjson.dumps([after.outcome_sum, after.num_outcomes]))
        if before.offset not in {-1, after.offset}:
            state.delete(_settled_key(before))

    def finish(self, group: Group, offset: int, time_ms: int, state: State) -> None:
        """Forget the group but for a mark: `offset` is of the record that decided."""
        hashed = _hashed(group.group_id)
        self.finished.set(hashed, time_ms, state, value=offset.to_bytes(8, "big"))
        for member in group.members.values():
            state.delete(_member_key(group, member))
        state.delete(_GROUP + hashed)
        state.delete(_PENDING + group.ready_offset.to_bytes(8, "big"))

    # --- reading -------------------------------------------------------------------------------------

    def is_finished(self, group_id: str, offset: int, state: State) -> bool:
        """Whether it was decided before this place in the log."""
        value = self.finished.get(_hashed(group_id), state)
        return value is not None and int.from_bytes(value, "big") < offset

    def records(self, group: Group, state: State) -> Iterator[tuple[Trajectory, int]]:
        """Its accepted trajectories with their sizes."""
        for member in group.accepted:
            entry = state.get(_member_key(group, member))
            assert entry is not None  # noqa: S101  written when the member was added
            yield self._codec.decode(entry[1:], Trajectory), len(entry) - 1

    def recover(self, state: State, *, at_least: int = -1) -> Recovered:
        """`at_least`: up to there the log is known to have been handled, whatever the cursor says."""
        value = state.get(_CURSOR)
        cursor, newest = orjson.loads(value) if value is not None else (-1, {})
        cursor = max(cursor, at_least)
        groups: dict[bytes, Group] = {}
        leftovers: list[bytes] = []
        for key, value in state.scan(_GROUP):
            head = orjson.loads(value)
            if self.is_finished(head[0], cursor + 1, state):
                leftovers.append(key)
            elif head[4] <= cursor:
                groups[key[1:]] = Group(*head)
        for key, value in state.scan(_MEMBER):
            hashed, offset = key[1 : 1 + _ID_BYTES], int.from_bytes(key[1 + _ID_BYTES :], "big")
            if offset <= cursor and hashed in groups:
                groups[hashed].add(self._member(value, offset))
            elif offset <= cursor:
                leftovers.append(key)
        by_id = {group.group_id: group for group in groups.values()}
        pending: dict[str, Group] = {}
        for key, value in state.scan(_PENDING):
            offset = int.from_bytes(key[1:], "big")
            group_id, ready_ms, staleness = orjson.loads(value)
            if offset <= cursor and group_id in by_id:
                group = pending[group_id] = by_id.pop(group_id)
                group.ready_offset, group.ready_ms, group.staleness = offset, ready_ms, staleness
            elif offset <= cursor:
                leftovers.append(key)
        settled, passed = self._recover_settled(cursor, pending.values(), state)
        return Recovered(cursor, newest, by_id, pending, settled, leftovers + passed)

    def _recover_settled(
        self, cursor: int, pending: Iterable[Group], state: State
    ) -> tuple[Settled, list[bytes]]:
        """The last that the cursor knows, and the keys of those before it."""
        known = []
        for key, value in state.scan(_SETTLED):
            offset = int.from_bytes(key[1:], "big")
            if offset <= cursor:
                known.append(Settled(offset, *orjson.loads(value)))
        if known:
            return known[-1], [_settled_key(each) for each in known[:-1]]
        # A state from before there were such entries.
        settled = Settled()
        for group in pending:
            settled = settled.plus(group, -1)
        return settled, []

    def _member(self, entry: bytes, offset: int) -> Member:
        if entry[:1] == _ACCEPTED:
            return Member.of(self._codec.decode(entry[1:], Trajectory), offset)
        return Member(entry[1:].decode(), offset, accepted=False)


def _hashed(group_id: str) -> bytes:
    """Of one length, so that no id is the beginning of another's key."""
    return hashlib.blake2b(group_id.encode(), digest_size=_ID_BYTES).digest()


def _settled_key(settled: Settled) -> bytes:
    return _SETTLED + settled.offset.to_bytes(8, "big")


def _member_key(group: Group, member: Member) -> bytes:
    return _MEMBER + _hashed(group.group_id) + member.offset.to_bytes(8, "big")
