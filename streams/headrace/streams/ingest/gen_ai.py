"""Names of OpenTelemetry's semantic conventions for generative AI that headrace reads and writes.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans, with the older names that
instrumentations still send.
"""

AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
CHOICE_COUNT = "gen_ai.request.choice.count"
STOP_SEQUENCES = "gen_ai.request.stop_sequences"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"

MODEL_CALLS = frozenset({"chat", "text_completion", "generate_content"})
"""Operations that sample tokens; embeddings, tools and agents are spans without a generation."""

SAMPLING = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
"""OpenAI's names of sampling parameters, and the conventions'."""

# Before 1.27, and OpenLLMetry's: `gen_ai.prompt.0.role`, `gen_ai.completion.0.content`.
OLD_PROMPT = "gen_ai.prompt"
OLD_COMPLETION = "gen_ai.completion"
OLD_INPUT_TOKENS = "gen_ai.usage.prompt_tokens"
OLD_OUTPUT_TOKENS = "gen_ai.usage.completion_tokens"
OLD_REQUEST_TYPE = "llm.request.type"
OLD_MODEL_CALLS = frozenset({"chat", "completion"})

# 1.28 to 1.36: one event a message.
MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
CHOICE_EVENT = "gen_ai.choice"

NO_TOKEN_IDS = "no_token_ids"  # noqa: S105  a reason, not a secret
"""Why a call without the engine's token ids is kept and not trained on: ids are never made up (G6)."""
