"""WeightsFollower: brings every engine to the newest version of one resource, and keeps it there (G9).

A version is loaded only when its files are those of its manifest; till then an engine serves what it has. One
engine is updated at a time, so that others serve meanwhile. An engine serves with a version only if it says
itself that it has it: one that restarted says `default`, is taken out, and loaded again. What an engine says
while weights are exchanged is no version, so that no proxy after this one takes it for one. An engine belongs
to one proxy: calls of others would be aborted, or meet weights that their proxy does not know of.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, Self

import structlog

from headrace.proxy.engines import DrainError, Engine, Engines, Version
from headrace.proxy.vllm_admin import EngineAdmin, EngineError
from headrace.proxy.weight_files import BadWeightsError, WeightFiles, verify
from headrace.schemas.probe import Probe
from headrace.schemas.records import ResourceVersion
from headrace.streams.runner.mailbox import Mailbox

_LOADING = "loading "

log = structlog.get_logger(__name__)


class Versions(Protocol):
    """What is published: a ResourceStore."""

    def resolve(self, pinned: Mapping[str, int] | None = None) -> Mapping[str, ResourceVersion]: ...

    def on_change(self, callback: Callable[[ResourceVersion], None]) -> None: ...


class WeightsFollower:
    """An async context manager. On entry each engine was looked at once; it need not serve by then."""

    def __init__(
        self,
        engines: Engines,
        versions: Versions | None,
        name: str | None,
        admin: Callable[[Engine], EngineAdmin],
        *,
        drain_s: float = 60.0,
        cut_s: float = 10.0,
        check_s: float = 5.0,
        retry_s: float = 15.0,
        max_gap: float = math.inf,
    ) -> None:
        """Without `versions` or a `name` engines are only watched, and serve what they have.

        `drain_s` and `cut_s` are those of `Engines.drain`. An engine is looked at every `check_s`: make that
        less than one needs to start, else a restart can go unseen. What failed is tried again after
        `retry_s`, or with the next version. `max_gap` is the mean difference between the logprobs of a
        version's probe and those of an engine that has loaded it.
        """
        self._engines = engines
        self._versions = versions
        self._name = name
        self._admin = admin
        self._admins = {engine: admin(engine) for engine in engines if engine.is_managed}
        self._drain_s = drain_s
        self._cut_s = cut_s
        self._check_s = check_s
        self._retry_s = retry_s
        self._max_gap = max_gap
        self._newest: ResourceVersion | None = None
        self._files: WeightFiles | None = None
        """Of the newest version, when they were found right."""
        self._bad: str | None = None
        """Why they were not."""
        self._says: dict[Engine, str] = {}
        """What each engine said last; nothing of one that did not answer."""
        self._retry_at: dict[Engine | None, float] = {}
        """When an engine is loaded again, and, at None, when the newest version's files are read again."""
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def newest(self) -> Version | None:
        """What the engines are to have."""
        return Version(self._newest.name, self._newest.version) if self._newest else None

    @property
    def why_bad(self) -> str | None:
        """Why the newest version can't be loaded by any engine."""
        return self._bad

    async def __aenter__(self) -> Self:
        if self._versions is not None and self._name is not None:
            mailbox = Mailbox(asyncio.get_running_loop())
            self._versions.on_change(lambda version: mailbox.post(lambda: self._hear(version)))
            newest = self._versions.resolve().get(self._name)
            if newest is not None:
                self._hear(newest)
        await asyncio.gather(*(self._look(engine) for engine in self._admins))
        self._tasks = [asyncio.create_task(self._watch(engine)) for engine in self._admins]
        self._tasks.append(asyncio.create_task(self._follow()))
        return self

    def manage(self, engine: Engine) -> None:
        """One of the engines that turned out to be managed: look at it from now on."""
        self._admins[engine] = self._admin(engine)
        self._tasks.append(asyncio.create_task(self._watch(engine)))

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hear(self, version: ResourceVersion) -> None:
        is_newer = self._newest is None or version.version > self._newest.version
        if version.name == self._name and is_newer:
            self._newest, self._files, self._bad = version, None, None
            self._retry_at.clear()
            self._work.set()

    # --- looking at engines --------------------------------------------------------------------------

    async def _watch(self, engine: Engine) -> None:
        while True:
            engine.attention.clear()
            await self._look(engine)
            await _wait(engine.attention, self._check_s)

    async def _look(self, engine: Engine) -> None:
        """Compare what the engine says with what is believed of it; it serves, or is taken out."""
        before = engine.state, engine.version
        if _is_updating(engine):
            return
        try:
            says = await self._admins[engine].weight_version()
            if engine.gives_sampled_logprobs is None and not says.startswith(_LOADING):
                await look_at_logprobs(engine, self._admins[engine])
        except EngineError as error:
            if before == (engine.state, engine.version):
                self._says.pop(engine, None)
                engine.gives_sampled_logprobs = None
                self._take_out(engine, str(error))
            else:
                engine.attention.set()
            return
        if before != (engine.state, engine.version):
            # It is being updated, or was: the answer may be of before.
            engine.attention.set()
            return
        self._says[engine] = says
        self._judge(engine, says)
        if self._is_behind(engine):
            self._work.set()

    def _judge(self, engine: Engine, says: str) -> None:
        has, wanted = Version.of(says), self.newest
        if engine.state == "serving":
            if has != engine.version:
                self._take_out(engine, f"it has restarted: it serves {says!r} now")
                engine.gives_sampled_logprobs = engine.gap = None
        elif engine.num_calls and has != engine.version:
            self._take_out(engine, "calls from before its restart have not ended")
        elif wanted is None or (has is not None and has.name == wanted.name):
            self._serve(engine, has)
        elif self._bad is not None:
            self._take_out(engine, f"it has no version of {wanted.name}, and {wanted} can't be loaded")

    def _serve(self, engine: Engine, version: Version | None) -> None:
        self._engines.serve(engine, version)
        shown = str(version) if version else None
        log.info("engine serves", engine=engine.name, version=shown, gap=engine.gap)

    def _take_out(self, engine: Engine, reason: str) -> None:
        if (engine.state, engine.reason) != ("out", reason):
            log.warning("engine out", engine=engine.name, reason=reason)
        self._engines.take_out(engine, reason)

    # --- loading -------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            self._work.clear()
            for engine in tuple(self._admins):
                if self._is_behind(engine) and self._is_due(engine) and await self._has_files():
                    await self._update(engine)
            await _wait(self._work, self._retry_s)

    def _is_behind(self, engine: Engine) -> bool:
        """It answers, and has not what it should."""
        wanted = self.newest
        return wanted is not None and engine in self._says and self._says[engine] != str(wanted)

    async def _has_files(self) -> bool:
        """Whether the newest version's files are right. They are read again only if they changed since."""
        version = self._newest
        if version is None or (self._files is not None and self._files.is_unchanged()):
            return version is not None
        if not self._is_due(None):
            return False
        files, bad = None, None
        try:
            files = await asyncio.to_thread(verify, version)
        except BadWeightsError as error:
            bad = str(error)
            log.error("weights can't be loaded", version=str(self.newest), reason=bad)  # noqa: TRY400
        if version is not self._newest:
            # A newer one came meanwhile, and is next.
            return False
        self._files, self._bad = files, bad
        if bad is not None:
            self._postpone(None)
        return files is not None

    async def _update(self, engine: Engine) -> None:
        target, record, files = self.newest, self._newest, self._files
        if target is None or record is None or files is None:
            return
        try:
            await self._engines.drain(engine, drain_s=self._drain_s, cut_s=self._cut_s)
        except DrainError as error:
            log.warning("engine not updated", engine=engine.name, version=str(target), reason=str(error))
            self._postpone(engine)
            return
        try:
            await _load(self._admins[engine], target, files)
            engine.gap = await _gap(self._admins[engine], record, self._max_gap)
            await _say(self._admins[engine], target)
            if engine.gives_sampled_logprobs is None:
                await look_at_logprobs(engine, self._admins[engine])
        except (EngineError, BadWeightsError) as error:
            self._take_out(engine, f"{target} could not be loaded: {error}")
            self._postpone(engine)
            engine.attention.set()
            return
        self._says[engine] = str(target)
        self._serve(engine, target)

    def _is_due(self, what: Engine | None) -> bool:
        return asyncio.get_running_loop().time() >= self._retry_at.get(what, 0.0)

    def _postpone(self, what: Engine | None) -> None:
        self._retry_at[what] = asyncio.get_running_loop().time() + self._retry_s


async def look_at_logprobs(engine: Engine, admin: EngineAdmin) -> None:
    """And at which models are its own. EngineError if it can't be found out."""
    engine.base_models = await admin.base_models()
    engine.gives_sampled_logprobs = await admin.gives_sampled_logprobs()
    if not engine.gives_sampled_logprobs:
        log.warning(
            "logprobs are not of what is sampled: calls are recorded as untrainable; start vLLM with "
            "--logprobs-mode processed_logprobs",
            engine=engine.name,
        )


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    # wait_for of Python 3.11 can lose a cancellation.
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _is_updating(engine: Engine) -> bool:
    return engine.state == "updating"


async def _load(admin: EngineAdmin, target: Version, files: WeightFiles) -> None:
    """Into an engine without calls. After an error it must not serve."""
    await admin.set_weight_version(_LOADING + str(target))
    await admin.pause()
    await admin.load(files.folder)
    if not files.is_unchanged():
        raise BadWeightsError(f"the files in {files.folder} changed while they were loaded")
    await admin.reset_prefix_cache()
    await admin.resume()
    await admin.probe()


async def _gap(admin: EngineAdmin, record: ResourceVersion, allowed: float) -> float | None:
    """Between what it computes and what the trainer did; None where the version carries no probe."""
    probe = Probe.of(record.metadata)
    if probe is None:
        return None
    gap = probe.gap(await admin.logprobs_of(probe.token_ids))
    if not gap <= allowed:
        raise EngineError(
            "it does not compute what the trainer does with these weights: its logprobs differ by "
            f"{gap:.2g} in the mean, and {allowed:g} is allowed"
        )
    return gap


async def _say(admin: EngineAdmin, target: Version) -> None:
    await admin.set_weight_version(str(target))
    says = await admin.weight_version()
    if says != str(target):
        raise EngineError(f"it says that it has {says!r}")
