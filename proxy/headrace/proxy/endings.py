"""Endings of calls that are not whole: a word for the span, and a problem for the client."""

from collections.abc import Mapping
from typing import Any

from headrace.proxy.attempts import PROXY_STOPPED
from headrace.proxy.problem import Problem

ABORTED = "abort"
"""vLLM's finish_reason for a call that was ended by somebody else."""
CLIENT_GONE = "client_disconnected"
CLIENT_STALLED = "client_stalled"

ABORTED_PROBLEM = Problem(
    503, "the engine took new weights and could not finish this call; try again", "aborted", 1
)
NOT_UNDERSTOOD = Problem(502, "the upstream's answer is not as the API has them", "upstream_failed")
NOT_RECORDED = Problem(
    503,
    "Kafka did not take the record of this call, so its answer is withheld",
    "kafka_unavailable",
    2,
)
STALLED_PROBLEM = Problem(499, "the client has stopped reading", CLIENT_STALLED)
_CUTS: Mapping[str, Problem] = {
    CLIENT_GONE: Problem(499, "the client has gone", CLIENT_GONE),
    "attempt_closed": Problem(410, "this attempt has ended", "attempt_ended"),
    PROXY_STOPPED: Problem(503, "the proxy is being stopped; try again", PROXY_STOPPED, 1),
}
_MAX_WORDS = 500


def problem_of_cut(why: str) -> Problem:
    """For the reason that a call was cut with."""
    return _CUTS.get(why, ABORTED_PROBLEM)


def words_of(error: Any) -> str:  # noqa: ANN401  JSON
    """What an upstream says of its own error, bounded; empty if it says nothing."""
    message = error.get("message") if isinstance(error, dict) else error
    return message.strip()[:_MAX_WORDS] if isinstance(message, str) else ""
