"""Finds which recorded exchanges are turns of one conversation, by their messages alone.

An exchange is the next turn of an earlier one if its messages begin with all messages of the earlier
one, followed by one of its answers. Messages are equal by role, content, name, tool calls and
tool_call_id. Not compared, since clients don't send them back alike: order of fields, fields that are
null or empty, a text alone or as one text part, spaces within a tool call's JSON arguments, and what
only answers carry (annotations, refusal, reasoning).

Of several earlier exchanges that match, the one with the longest prefix wins, then one that nothing
continues yet, then the nearest. This groups records and nothing more: what merges for training is
decided on token ids (G6).

Memory is bounded by a window of exchanges: one further back than that is not found any more.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

Message = Mapping[str, Any]

DEFAULT_WINDOW = 50_000
_ANSWER_ONLY = frozenset({"annotations", "audio", "refusal", "reasoning", "reasoning_content"})
_DIGEST_BYTES = 16


class Conversation:
    """What callers keep of a conversation, in a subclass."""

    num_in_window = 0


ConversationT = TypeVar("ConversationT", bound=Conversation)


class _Turn(Generic[ConversationT]):
    """An exchange in the window, found by the digests of its messages and each of its answers."""

    __slots__ = ("conversation", "identity", "keys")

    def __init__(self, conversation: ConversationT, identity: str, keys: tuple[bytes, ...]) -> None:
        self.conversation = conversation
        self.identity = identity
        self.keys = keys


class _Matches(Generic[ConversationT]):
    """The turns that share a key: those that nothing continues yet, in order, and the latest of all."""

    __slots__ = ("fresh", "latest")

    def __init__(self, latest: _Turn[ConversationT]) -> None:
        self.fresh: deque[_Turn[ConversationT]] = deque()
        self.latest = latest


class Conversations(Generic[ConversationT]):
    """The turns of the last `window` exchanges."""

    def __init__(self, window: int = DEFAULT_WINDOW) -> None:
        self.window = window
        self._turns: deque[_Turn[ConversationT]] = deque()
        self._matches: dict[bytes, _Matches[ConversationT]] = {}
        self._identities: set[str] = set()

    def has(self, identity: str) -> bool:
        """Whether this very exchange is in the window already."""
        return identity in self._identities

    def find(self, prefixes: Sequence[bytes]) -> ConversationT | None:
        """The conversation that an exchange with these `prefix_digests` goes on with, now continued."""
        for digest in reversed(prefixes):
            matches = self._matches.get(digest)
            if matches is not None:
                turn = matches.fresh.pop() if matches.fresh else matches.latest
                return turn.conversation
        return None

    def add(
        self, conversation: ConversationT, identity: str, keys: tuple[bytes, ...]
    ) -> Iterator[ConversationT]:
        """Take in an exchange with its `answer_digests`; yields the conversations that are now over."""
        turn = _Turn(conversation, identity, keys)
        conversation.num_in_window += 1
        self._turns.append(turn)
        self._identities.add(identity)
        for key in keys:
            matches = self._matches.setdefault(key, _Matches(turn))
            matches.fresh.append(turn)
            matches.latest = turn
        while len(self._turns) > self.window:
            yield from self._forget_oldest()

    def close(self) -> Iterator[ConversationT]:
        """Forget all; yields the conversations that were still open."""
        while self._turns:
            yield from self._forget_oldest()

    def _forget_oldest(self) -> Iterator[ConversationT]:
        turn = self._turns.popleft()
        self._identities.discard(turn.identity)
        for key in turn.keys:
            matches = self._matches[key]
            if matches.fresh and matches.fresh[0] is turn:
                matches.fresh.popleft()
            if matches.latest is turn:
                del self._matches[key]
        turn.conversation.num_in_window -= 1
        if not turn.conversation.num_in_window:
            yield turn.conversation


def prefix_digests(messages: Sequence[Message]) -> list[bytes]:
    """One digest for each beginning of the list, the shortest first: each costs one message."""
    digests = []
    digest = b""
    for message in messages:
        digest = _extend(digest, message)
        digests.append(digest)
    return digests


def answer_digests(prefix: bytes, answers: Sequence[Message]) -> tuple[bytes, ...]:
    """Digests of the messages up to `prefix` and each answer behind them; equal answers count once."""
    return tuple(dict.fromkeys(_extend(prefix, {"role": "assistant", **answer}) for answer in answers))


def _extend(digest: bytes, message: Message) -> bytes:
    text = json.dumps(comparable(message), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(digest + text.encode(), digest_size=_DIGEST_BYTES).digest()


def comparable(message: Message) -> dict[str, Any]:
    """What must be equal for two messages to be the same."""
    kept = {
        name: value
        for name, value in message.items()
        if name not in _ANSWER_ONLY and value is not None and value not in ("", [], {})
    }
    content = kept.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.get("type") == "text" and isinstance(part.get("text"), str) and len(part) == 2:
            kept["content"] = part["text"]
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [_comparable_call(call) for call in calls]
    return kept


def _comparable_call(call: Any) -> Any:  # noqa: ANN401  a part of a recorded message
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            # In a list, so that arguments that are a JSON text differ from the same value unparsed.
            function["arguments"] = [json.loads(arguments)]
        except (ValueError, RecursionError):
            function["arguments"] = arguments
    return {
        "type": call.get("type") or "function",
        "function": function,
        **{name: value for name, value in call.items() if name not in {"type", "function", "index"}},
    }
