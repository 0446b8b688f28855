"""Engines with fake insides, and who keeps them at the newest weights."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.proxy.fake_admin import FakeAdmin, FakeVersions, published, write_weights
from tests.proxy.loops import until

from headrace.proxy.engines import Engine, Engines, Version
from headrace.proxy.weights import WeightsFollower

NEVER_S = 1000.0


class Fleet:
    """Engines with fake insides, and what is published for them."""

    def __init__(self, tmp_path: Path, *words: str, name: str | None = "policy", **timing: float) -> None:
        self._tmp_path = tmp_path
        self.admins = [FakeAdmin(word) for word in words or ("default",)]
        self.all = [Engine(f"e{place}", "http://127.0.0.1:1") for place in range(len(self.admins))]
        self.engines = Engines(self.all)
        self.versions = FakeVersions()
        by_engine = dict(zip(self.all, self.admins, strict=True))
        self.follower = WeightsFollower(
            self.engines,
            self.versions,
            name,
            by_engine.__getitem__,
            **{"check_s": 0.005, "retry_s": NEVER_S, **timing},
        )

    def write(self, number: int) -> Path:
        return write_weights(self._tmp_path / f"v{number}", f"weights of {number}")

    def publish(self, number: int) -> Path:
        folder = self.write(number)
        self.versions.publish(published(folder, number))
        return folder

    def serves(self, number: int | None, place: int = 0) -> bool:
        engine = self.all[place]
        version = None if number is None else Version("policy", number)
        return engine.state == "serving" and engine.version == version

    def is_out(self, why: str, place: int = 0) -> bool:
        return self.all[place].state == "out" and why in self.all[place].reason

    @asynccontextmanager
    async def serving(self, number: int | None) -> AsyncIterator[None]:
        async with self.follower:
            await until(lambda: all(self.serves(number, place) for place in range(len(self.all))))
            for admin in self.admins:
                admin.done.clear()
            yield
