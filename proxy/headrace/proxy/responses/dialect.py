"""ResponsesDialect: `POST /v1/responses` over an upstream's chat completions."""

from collections.abc import Callable
from typing import Literal

from headrace.proxy.dialect import Exchange, Json
from headrace.proxy.openai import OpenAIShapes
from headrace.proxy.problem import bad_request
from headrace.proxy.responses.exchange import ResponsesExchange
from headrace.proxy.responses.ids import ResponseIds, response_of_item
from headrace.proxy.responses.request import chat_request
from headrace.proxy.responses.store import KeptResponse, ResponseStore
from headrace.proxy.responses.transcript import Transcript
from headrace.schemas.ids import uuid7


class ResponsesDialect(OpenAIShapes):
    """A Dialect, of one attempt: it remembers the attempt's responses."""

    name = "openai_responses"
    operation: Literal["chat", "text_completion"] = "chat"
    upstream_path = "/v1/chat/completions"

    def __init__(self, store: ResponseStore, new_id: Callable[[], str] = uuid7) -> None:
        """`new_id` makes UUIDv7s."""
        self._store = store
        self._new_id = new_id

    def open(self, body: Json) -> Exchange:
        previous = self._previous(body)
        items = self._given(body, has_previous=previous is not None)
        instructions = body.get("instructions")
        if instructions is not None and not isinstance(instructions, str):
            raise bad_request("instructions must be a string", "instructions")
        transcript = Transcript(instructions)
        for item in previous.items() if previous else ():
            transcript.add(item, "previous_response_id")
        for index, item in enumerate(items):
            transcript.add(item, f"input[{index}]")
        request = chat_request(body, transcript.messages)
        ids = ResponseIds.of(self._new_id())

        def keep(output: list[Json]) -> None:
            if body.get("store") is not False:
                self._store.keep(ids.response, items + output, previous)

        return ResponsesExchange(body, request, ids, keep)

    def _previous(self, body: Json) -> KeptResponse | None:
        response_id = body.get("previous_response_id")
        if response_id is None:
            return None
        kept = self._store.find(response_id) if isinstance(response_id, str) else None
        if kept is None:
            raise bad_request(
                "no response of this id is kept for this attempt: it is unknown, was not stored, or has made "
                "room for later ones; send its items as input instead",
                "previous_response_id",
            )
        return kept

    def _given(self, body: Json, *, has_previous: bool) -> list[Json]:
        """The input as items, without references."""
        given = body.get("input")
        if isinstance(given, str):
            return [{"type": "message", "role": "user", "content": given}]
        if given is None and has_previous:
            return []
        if not isinstance(given, list) or not (given or has_previous):
            raise bad_request("input must be a string or a list of items", "input")
        return [self._resolved(item, f"input[{index}]") for index, item in enumerate(given)]

    def _resolved(self, item: object, where: str) -> Json:
        if not isinstance(item, dict):
            raise bad_request("an object is expected", where)
        # LangChain sends what it streamed of reasoning without its text.
        if item.get("type") == "reasoning" and not item.get("content") and not item.get("summary"):
            return self._kept_item(item.get("id")) or item
        # The type is optional where there is nothing but an id.
        if item.get("type") != "item_reference" and item.keys() != {"id"}:
            return item
        found = self._kept_item(item.get("id"))
        if found is None:
            raise bad_request("no item of this id is kept for this attempt: send it whole", f"{where}.id")
        return found

    def _kept_item(self, item_id: object) -> Json | None:
        kept = self._store.find(response_of_item(item_id)) if isinstance(item_id, str) else None
        if kept is None:
            return None
        return next((item for item in kept.added() if item.get("id") == item_id), None)
