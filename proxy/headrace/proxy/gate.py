"""Gate: who may do what. API keys open attempts; an attempt's token speaks for that attempt alone.

Without keys whoever reaches the proxy may do all, and the proxy listens on loopback only.
"""

import asyncio

import structlog

from headrace.proxy.attempts import Attempts, OpenAttempt
from headrace.proxy.keys import KeyRing, matches
from headrace.proxy.problem import Problem, RefusedError
from headrace.schemas.errors import FatalError

_REFRESH_S = 5.0

log = structlog.get_logger(__name__)


class Gate:
    def __init__(self, attempts: Attempts, keys: KeyRing | None) -> None:
        self._attempts = attempts
        self._keys = keys

    def check_key(self, secret: str) -> None:
        """RefusedError 401 without one of the keys."""
        if self._keys is not None and self._keys.name_of(secret) is None:
            raise RefusedError(_denied("this needs an API key of the proxy"))

    def attempt_for(self, attempt_id: str, secret: str) -> OpenAttempt:
        """The open attempt, for its token or a key; RefusedError 401, 404 or 410."""
        if self._keys is None or self._keys.name_of(secret) is not None:
            return self._attempts.get(attempt_id)
        try:
            attempt = self._attempts.get(attempt_id)
        except RefusedError:
            # Strangers do not learn which attempts there are.
            raise RefusedError(_denied("no open attempt has this id and token")) from None
        if not matches(secret, attempt.token_digest):
            raise RefusedError(_denied("no open attempt has this id and token"))
        return attempt

    async def refresh(self) -> None:
        """Until cancelled, take in changes of the key file: a revoked key ends within seconds."""
        while self._keys is not None:
            await asyncio.sleep(_REFRESH_S)
            try:
                await asyncio.to_thread(self._keys.refresh)
            except FatalError as error:
                log.error("keys can't be read; those known before go on counting", reason=str(error))  # noqa: TRY400


def _denied(message: str) -> Problem:
    return Problem(401, message, "invalid_api_key")
