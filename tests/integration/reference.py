"""The same model in Hugging Face's own code: what prompts, logprobs and texts should have been."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.schemas.records import Generation

Json = dict[str, Any]
TOLERANCE = 1e-4


class Reference:
    """A folder's model and tokenizer, in float32."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def prompt_ids(self, messages: Sequence[Json], tools: Sequence[Json] | None = None) -> tuple[int, ...]:
        text = self.tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            tokenize=False,
            add_generation_prompt=True,
        )
        return self.ids(text)

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def logprobs(self, made: Generation, temperature: float = 1.0) -> tuple[float, ...]:
        """Of the response's tokens, each after all that stands before it: one forward pass over both."""
        ids = torch.tensor([made.prompt_token_ids + made.response_token_ids])
        with torch.inference_mode():
            logits = self._model(ids).logits[0, len(made.prompt_token_ids) - 1 : -1] / temperature
        chosen = torch.tensor(made.response_token_ids).unsqueeze(1)
        found = logits.log_softmax(dim=-1).gather(1, chosen).squeeze(1)
        return tuple(found.tolist())

    def difference(self, made: Generation, temperature: float = 1.0) -> float:
        """The largest between these logprobs and the recorded ones."""
        pairs = zip(made.response_logprobs, self.logprobs(made, temperature), strict=True)
        return max(abs(recorded - found) for recorded, found in pairs)
