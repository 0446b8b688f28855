"""ResponseStore: the items of an attempt's earlier responses, for `previous_response_id`. Bounded, in memory.

A response keeps what it adds to the one before it, so that a conversation takes space once. The oldest goes
first; what it added stays for as long as a later response stands on it, and is counted. All stores of a
process share a budget: past it, the store that was not used for longest lets go of its oldest.
"""

from collections import OrderedDict
from collections.abc import Sequence

import orjson

from headrace.proxy.dialect import Json

MAX_RESPONSES = 256
MAX_BYTES = 4 * 1024 * 1024


class KeptResponse:
    """What one response added, and what it stands on. A handle: good also when the store has let go of it."""

    __slots__ = ("data", "num_users", "previous")

    def __init__(self, data: bytes, previous: "KeptResponse | None") -> None:
        self.data = data
        self.previous = previous
        self.num_users = 0
        """Kept responses that need it: itself, and those that follow it directly."""

    def added(self) -> list[Json]:
        items: list[Json] = orjson.loads(self.data)
        return items

    def items(self) -> list[Json]:
        """The whole conversation, its first item first."""
        chain: list[KeptResponse] = []
        kept: KeptResponse | None = self
        while kept is not None:
            chain.append(kept)
            kept = kept.previous
        return [item for kept in reversed(chain) for item in kept.added()]


class ResponseBudget:
    """What the stores of all attempts hold together. For one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._stores: OrderedDict[ResponseStore, int] = OrderedDict()
        """Bytes of each that holds any, the one used last at the end."""
        self.num_bytes = 0

    def use(self, store: "ResponseStore") -> None:
        """It was asked for something, or has changed."""
        self._count(store)
        if store.num_bytes:
            self._stores.move_to_end(store)
        while self.num_bytes > self._max_bytes:
            oldest = next(iter(self._stores))
            oldest.drop_oldest()
            self._count(oldest)

    def _count(self, store: "ResponseStore") -> None:
        self.num_bytes += store.num_bytes - self._stores.get(store, 0)
        if store.num_bytes:
            self._stores[store] = store.num_bytes
        else:
            self._stores.pop(store, None)

    def forget(self, store: "ResponseStore") -> None:
        """Its attempt is over."""
        self.num_bytes -= self._stores.pop(store, 0)


class ResponseStore:
    """Of one attempt: what it holds is gone with it. For one thread."""

    def __init__(
        self,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        budget: ResponseBudget | None = None,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._budget = budget
        self._by_id: dict[str, KeptResponse] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, response_id: str) -> KeptResponse | None:
        found = self._by_id.get(response_id)
        if found is not None and self._budget is not None:
            self._budget.use(self)
        return found

    def keep(self, response_id: str, items: Sequence[Json], previous: KeptResponse | None) -> None:
        """Keep what came in and out, without what `previous` has. Over a limit, the oldest are let go of."""
        kept = KeptResponse(orjson.dumps(items), previous)
        self._by_id[response_id] = kept
        self._hold(kept)
        while len(self._by_id) > self._max_responses or (self.num_bytes > self._max_bytes and self._by_id):
            self.drop_oldest()
        if self._budget is not None:
            self._budget.use(self)

    def drop_oldest(self) -> None:
        self._release(self._by_id.pop(next(iter(self._by_id))))

    def close(self) -> None:
        if self._budget is not None:
            self._budget.forget(self)

    def _hold(self, kept: KeptResponse | None) -> None:
        while kept is not None:
            kept.num_users += 1
            if kept.num_users > 1:
                return
            self.num_bytes += len(kept.data)
            kept = kept.previous

    def _release(self, kept: KeptResponse | None) -> None:
        while kept is not None:
            kept.num_users -= 1
            if kept.num_users:
                return
            self.num_bytes -= len(kept.data)
            kept = kept.previous
