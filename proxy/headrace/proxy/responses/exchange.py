"""ResponsesExchange: one call's answer, as a response or as its events."""

from collections.abc import Callable
from typing import Any

import orjson

from headrace.proxy import ask
from headrace.proxy.dialect import Json
from headrace.proxy.openai import error_body
from headrace.proxy.problem import Problem
from headrace.proxy.responses.events import EventLog, untold
from headrace.proxy.responses.ids import ResponseIds
from headrace.proxy.responses.output import Output
from headrace.proxy.responses.response import (
    Ending,
    failure,
    response_base,
    response_object,
    token_logprobs,
)
from headrace.proxy.responses.tools import custom_names

_NO_ANSWER = Problem(502, "the upstream's answer has no choices", "upstream_no_answer")

Keep = Callable[[list[Json]], None]


class ResponsesExchange:
    """An Exchange."""

    def __init__(self, body: Json, request: Json, ids: ResponseIds, keep: Keep) -> None:
        """`keep` is called with the output once the exchange has ended well."""
        self.request = request
        self.is_stream = ask.is_stream(body)
        self._made_at_s = ids.made_at_s
        self._base = response_base(body, ids.response)
        self._keep = keep
        self._log = EventLog()
        self._output = Output(ids, custom_names(body), self._log.tell if self.is_stream else untold)
        self._has_begun = False
        self._has_answer = False
        self._finish_reason: str | None = None
        self._usage: Json | None = None

    def answer(self, completion: Json) -> bytes:
        self._learn(completion)
        self._take(completion, "message")
        return orjson.dumps(self._end())

    def feed(self, chunk: Json) -> bytes:
        if not self._has_begun:
            self._begin(chunk)
        self._take(chunk, "delta")
        return self._log.take()

    def finish(self) -> bytes:
        if not self._has_begun:
            self._begin({})
        if not self._has_answer:
            return self.fail(_NO_ANSWER)
        response = self._end()
        self._log.tell(f"response.{response['status']}", {"response": response})
        return self._log.take()

    def fail(self, problem: Problem) -> bytes:
        """`response.failed` for those who read events; OpenAI's library raises on a member named error."""
        if not self._has_begun:
            self._begin({})
        response = response_object(
            self._base, "failed", self._output.cut(), usage=self._usage, error=failure(problem)
        )
        self._log.tell("response.failed", {"response": response})
        error = orjson.loads(error_body(problem))["error"]
        members = {name: error[name] for name in ("code", "message", "param")}
        self._log.tell("error", members | {"error": error})
        return self._log.take()

    def _begin(self, chunk: Json) -> None:
        self._has_begun = True
        self._learn(chunk)
        response = response_object(self._base, "in_progress", [])
        self._log.tell("response.created", {"response": response})
        self._log.tell("response.in_progress", {"response": response})

    def _learn(self, payload: Json) -> None:
        """What only the upstream knows."""
        created = payload.get("created")
        self._base["created_at"] = created if isinstance(created, int) else self._made_at_s
        self._base["model"] = payload.get("model") or self._base["model"]
        self._base["service_tier"] = payload.get("service_tier") or "default"

    def _take(self, payload: Json, member: str) -> None:
        usage = payload.get("usage")
        self._usage = usage if isinstance(usage, dict) else self._usage
        choices = payload.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._take_choice(choice, choice.get(member))

    def _take_choice(self, choice: Json, message: Any) -> None:  # noqa: ANN401  JSON
        self._has_answer = True
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        message = message if isinstance(message, dict) else {}
        self._output.take(message, token_logprobs(choice.get("logprobs")))

    def _end(self) -> Json:
        if not self._has_answer:
            return response_object(self._base, "failed", [], usage=self._usage, error=failure(_NO_ANSWER))
        ending = Ending.of(self._finish_reason)
        self._output.close(ending.status)
        self._keep(self._output.items)
        return response_object(
            self._base, ending.status, self._output.items, usage=self._usage, reason=ending.reason
        )
