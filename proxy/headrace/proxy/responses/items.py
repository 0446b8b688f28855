"""Items of a response's output while they grow: messages, reasoning, calls."""

from typing import Literal, NamedTuple

from headrace.proxy.dialect import Json
from headrace.proxy.responses.events import Tell
from headrace.proxy.responses.tools import custom_input

Status = Literal["completed", "incomplete"]


class Form(NamedTuple):
    """A kind of text."""

    part: str
    member: str
    event: str


OUTPUT_TEXT = Form("output_text", "text", "response.output_text")
REFUSAL = Form("refusal", "refusal", "response.refusal")
REASONING = Form("reasoning_text", "text", "response.reasoning_text")


class Part:
    """One content part."""

    def __init__(self, form: Form, place: Json, tell: Tell) -> None:
        self.form = form
        self.body: Json = {"type": form.part, form.member: ""}
        if form is OUTPUT_TEXT:
            self.body |= {"annotations": [], "logprobs": []}
        self._place = place
        self._tell = tell
        self._pieces: list[str] = []
        tell("response.content_part.added", place | {"part": self.body})

    def grow(self, text: str, logprobs: list[Json]) -> None:
        self._pieces.append(text)
        members = self._place | {"delta": text}
        if self.form is OUTPUT_TEXT:
            self.body["logprobs"] += logprobs
            members["logprobs"] = logprobs
        self._tell(f"{self.form.event}.delta", members)

    def close(self, logprobs: list[Json]) -> None:
        """With the logprobs of tokens that came to no text."""
        text = self.body[self.form.member] = "".join(self._pieces)
        members = self._place | {self.form.member: text}
        if self.form is OUTPUT_TEXT:
            self.body["logprobs"] += logprobs
            members["logprobs"] = self.body["logprobs"]
        self._tell(f"{self.form.event}.done", members)
        self._tell("response.content_part.done", self._place | {"part": self.body})


class TextItem:
    """A message, or reasoning."""

    def __init__(self, body: Json, output_index: int, tell: Tell) -> None:
        self.body = body
        self.is_reasoning = body["type"] == "reasoning"
        self._output_index = output_index
        self._tell = tell
        self._part: Part | None = None
        tell("response.output_item.added", {"output_index": output_index, "item": body})

    def grow(self, form: Form, text: str, logprobs: list[Json]) -> None:
        self.part_of(form).grow(text, logprobs)

    def part_of(self, form: Form) -> Part:
        """The part that is open, if it is of this form, else a new one."""
        if self._part is None or self._part.form is not form:
            self._close_part([])
            content = self.body["content"]
            place = {
                "item_id": self.body["id"],
                "output_index": self._output_index,
                "content_index": len(content),
            }
            self._part = Part(form, place, self._tell)
            content.append(self._part.body)
        return self._part

    def close(self, status: Status, logprobs: list[Json]) -> None:
        self._close_part(logprobs)
        if not self.is_reasoning:
            self.body["status"] = status
        self._tell("response.output_item.done", {"output_index": self._output_index, "item": self.body})

    def _close_part(self, logprobs: list[Json]) -> None:
        if self._part is not None:
            self._part.close(logprobs)


class CallItem:
    """A call of a function, or of a custom tool, whose input is known when it is whole."""

    def __init__(self, body: Json, output_index: int, tell: Tell) -> None:
        self.body = body
        self._output_index = output_index
        self._place = {"item_id": body["id"], "output_index": output_index}
        self._tell = tell
        self._pieces: list[str] = []
        tell("response.output_item.added", {"output_index": output_index, "item": body})

    def grow(self, arguments: str) -> None:
        self._pieces.append(arguments)
        if self.body["type"] == "function_call":
            self._tell("response.function_call_arguments.delta", self._place | {"delta": arguments})

    def close(self, status: Status) -> None:
        arguments = "".join(self._pieces)
        if self.body["type"] == "function_call":
            self.body |= {"arguments": arguments, "status": status}
            # The name is for libraries of before it was left out.
            members = {"name": self.body["name"], "arguments": arguments}
            self._tell("response.function_call_arguments.done", self._place | members)
        else:
            given = self.body["input"] = custom_input(arguments)
            if given:
                self._tell("response.custom_tool_call_input.delta", self._place | {"delta": given})
            self._tell("response.custom_tool_call_input.done", self._place | {"input": given})
        self._tell("response.output_item.done", {"output_index": self._output_index, "item": self.body})
