"""OpenAI's `POST /v1/responses`, put in the words of chat completions and back.

Earlier responses are kept in memory, for `previous_response_id`: one `ResponseStore` for each attempt.
"""

from headrace.proxy.responses.dialect import ResponsesDialect
from headrace.proxy.responses.store import ResponseStore

__all__ = ["ResponseStore", "ResponsesDialect"]
