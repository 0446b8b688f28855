"""Anthropic's Messages API, spoken to upstreams that know chat completions.

https://docs.anthropic.com/en/api/messages
"""

from headrace.proxy.anthropic.dialect import MESSAGES, AnthropicDialect
from headrace.proxy.anthropic.tokens import TOKENIZE_PATH, read_count, tokenize_request

__all__ = ["MESSAGES", "TOKENIZE_PATH", "AnthropicDialect", "read_count", "tokenize_request"]
