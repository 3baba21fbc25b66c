"""All that a server has: its models, its queue, what clients left with it."""

from __future__ import annotations

from pathlib import Path

from litebert.predict import Adapted
from litebert.serve.engine import Engine
from litebert.serve.jobs import Found, Store
from litebert.serve.limits import Limits
from litebert.serve.registry import Registry, Served
from litebert.serve.runs import Runs
from litebert.serve.teaching import Teacher

TAUGHT = "adapted-"


class Service:
    def __init__(self, registry: Registry, limits: Limits, runs: Path | None = None) -> None:
        self.registry, self.limits, self.runs = registry, limits, Runs(runs)
        self.engine = Engine(limits)
        self.teacher = Teacher(self.engine)
        self.taught: Store[Adapted] = Store("taught classifiers", limits)
        self.lists: Store[Found] = Store("lists to search in", limits)

    def find(self, name: str) -> Served:
        """A model that is served, or one that a client taught."""
        if name.startswith(TAUGHT):
            return Served(name, self.taught.get(name.removeprefix(TAUGHT)))
        return self.registry.get(name)

    async def close(self) -> None:
        self.teacher.close()
        await self.engine.close()
