"""VllmAdmin: what vLLM's own endpoints for reinforcement learning do, by name.

They are there where the server runs with `VLLM_SERVER_DEV_MODE=1`. The weights' version is a word that vLLM
keeps in memory for us: `default` on a server that has just started, else what was set last. Nothing of it is
checked there, and a failed load leaves an engine that dies with its next call, unless another load follows.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import orjson

from headrace.schemas.errors import RetryableError

_MAX_WORDS = 300
_CACHE_TRIES = 20
_CACHE_RETRY_S = 0.1
_MAX_BIAS = 100
_NEARLY_CERTAIN = -1e-2


class EngineError(RetryableError):
    """An engine that can't be reached, or that did not do what it was asked; it says so in its own words."""


class EngineAdmin(Protocol):
    """Every call may raise EngineError."""

    async def weight_version(self) -> str:
        """The word that was set last, since the engine started."""

    async def set_weight_version(self, version: str) -> None: ...

    async def pause(self) -> None:
        """Abort what runs; calls that come wait until `resume`."""

    async def load(self, folder: Path) -> None:
        """Put the folder's weights in place of those that it has; only while paused."""

    async def reset_prefix_cache(self) -> None:
        """Forget what was computed with other weights."""

    async def resume(self) -> None: ...

    async def probe(self) -> None:
        """Generate a token: weights that are not whole fail here, or give no finite logprob."""

    async def logprobs_of(self, token_ids: Sequence[int]) -> list[float]:
        """Of each token but the first, at temperature 1: what its weights compute."""

    async def base_models(self) -> frozenset[str]:
        """The names of the weights themselves: adapters (LoRA) have them as their parent."""

    async def gives_sampled_logprobs(self) -> bool:
        """Whether logprobs are those of the distribution that tokens are sampled from."""


def admin_session() -> aiohttp.ClientSession:
    """A connection for each request: one that idles may be closed by the engine just when it is used again,
    as one is after an error of the engine's.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    )


class VllmAdmin:
    def __init__(
        self,
        name: str,
        url: str,
        session: aiohttp.ClientSession,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        load_timeout_s: float = 900.0,
    ) -> None:
        """`url` has no `/v1`; `headers` go with every request; `session` is an `admin_session`."""
        self._name = name
        self._url = url
        self._session = session
        self._headers = {**(headers or {}), "content-type": "application/json"}
        self._timeout_s = timeout_s
        self._load_timeout_s = load_timeout_s

    async def weight_version(self) -> str:
        return str((await self._ask("GET", "/weight_info")).get("weight_version", ""))

    async def set_weight_version(self, version: str) -> None:
        await self._ask("POST", "/update_weight_version", {"new_version": version})

    async def pause(self) -> None:
        # Of the other modes, `keep` would end calls with other weights than they began with, and `wait`
        # has no bound.
        await self._ask("POST", "/pause?mode=abort")

    async def load(self, folder: Path) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._ask("POST", "/collective_rpc", body, timeout_s=self._load_timeout_s)

    async def reset_prefix_cache(self) -> None:
        # Refused while blocks are held, which aborted calls give back a moment later.
        for _ in range(_CACHE_TRIES):
            if (await self._ask("POST", "/reset_prefix_cache")).get("success"):
                return
            await asyncio.sleep(_CACHE_RETRY_S)
        raise EngineError(f"{self._name} did not reset its prefix cache: something still holds its blocks")

    async def resume(self) -> None:
        await self._ask("POST", "/resume")

    async def probe(self) -> None:
        await self._sample({})

    async def logprobs_of(self, token_ids: Sequence[int]) -> list[float]:
        body = {"prompt": list(token_ids), "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1}
        answer = await self._complete(body)
        try:
            places = answer["choices"][0]["prompt_logprobs"][1:]
            found = [place[str(token)]["logprob"] for place, token in zip(places, token_ids[1:], strict=True)]
        except (LookupError, TypeError, ValueError):
            raise EngineError(f"{self._name} does not say what it computes for a prompt") from None
        return [float(logprob) for logprob in found]

    async def base_models(self) -> frozenset[str]:
        models = (await self._ask("GET", "/v1/models")).get("data") or ()
        return frozenset(str(model["id"]) for model in models if "id" in model and not model.get("parent"))

    async def gives_sampled_logprobs(self) -> bool:
        # vLLM's default, raw_logprobs, takes no heed of temperature, penalties and biases. With all weight
        # put on it a token has a logprob of nearly 0, unless that does not count.
        token, logprob = await self._sample({})
        _, biased = await self._sample({"logit_bias": {str(token): _MAX_BIAS}})
        return biased > _NEARLY_CERTAIN or logprob > _NEARLY_CERTAIN

    async def _sample(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        """One token and its logprob."""
        body = {"prompt": [0], "max_tokens": 1, "logprobs": 0, "temperature": 1, "return_token_ids": True}
        answer = await self._complete(body | dict(parameters))
        try:
            choice = answer["choices"][0]
            token, logprob = choice["token_ids"][0], choice["logprobs"]["token_logprobs"][0]
        except (LookupError, TypeError):
            raise EngineError(f"{self._name} generated nothing when it was probed") from None
        if not isinstance(logprob, float | int) or not math.isfinite(logprob):
            raise EngineError(f"{self._name} gives no finite logprobs: its weights are not sound")
        return token, logprob

    async def _complete(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        models = (await self._ask("GET", "/v1/models")).get("data") or [{}]
        return await self._ask("POST", "/v1/completions", {"model": models[0].get("id"), **body})

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Mapping[str, Any]:
        """The answer's object; empty where it has none."""
        what = path.partition("?")[0]
        try:
            async with self._session.request(
                method,
                self._url + path,
                data=None if body is None else orjson.dumps(body),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s or self._timeout_s),
                allow_redirects=False,
            ) as response:
                status, text = response.status, await response.read()
        except TimeoutError:
            raise EngineError(f"{self._name} did not answer {what} in time") from None
        except aiohttp.ClientError as error:
            raise EngineError(f"{self._name} can't be reached for {what}: {type(error).__name__}") from None
        if status != 200:
            raise EngineError(f"{self._name} answered {what} with {status}: {_words(text)}")
        try:
            answer = orjson.loads(text or b"{}")
        except orjson.JSONDecodeError:
            raise EngineError(f"{self._name} answered {what} with what is no JSON") from None
        return answer if isinstance(answer, dict) else {}


def _words(body: bytes) -> str:
    """The server's own message, bounded."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    error = answer.get("error", answer.get("detail")) if isinstance(answer, dict) else None
    words = error.get("message") if isinstance(error, dict) else error
    text = " ".join(str(words).split()) if words else body[: 4 * _MAX_WORDS].decode(errors="replace").strip()
    return text if len(text) <= _MAX_WORDS else text[:_MAX_WORDS] + " …"
