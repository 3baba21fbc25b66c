"""All that a server has: its models, its queue, what clients left with it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.numpy
from safetensors import SafetensorError

from litebert.errors import CheckpointError
from litebert.fewshot import Adapted
from litebert.fewshot.persistence import Saved
from litebert.files import read_json, write_json
from litebert.serve.client_store import InFolder, InMemory, Keeper, Listed, Store
from litebert.serve.engine import Engine
from litebert.serve.limits import Limits, Refused
from litebert.serve.registry import Registry, Served, base_of
from litebert.serve.runs import Runs
from litebert.serve.teaching import Teacher

TAUGHT = "adapted-"
T = TypeVar("T")


@dataclass(frozen=True)
class Taught:
    """A classifier that a client taught, and the name of the model that it was made from."""

    base: str
    adapted: Adapted


class TaughtKeeper:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def write(self, value: Taught, folder: Path) -> None:
        value.adapted.save(folder)
        write_json(folder / "served.json", {"base": value.base})

    def read(self, folder: Path) -> Taught:
        base = str(read_json(folder / "served.json").get("base"))
        return Taught(base, Saved.read(folder).on(base_of(self._registry.get(base).model)))


class ListKeeper:
    def write(self, value: Listed, folder: Path) -> None:
        write_json(folder / "texts.json", {"model": value.model, "texts": value.texts})
        safetensors.numpy.save_file({"vectors": value.vectors}, folder / "vectors.safetensors")

    def read(self, folder: Path) -> Listed:
        said: dict[str, Any] = read_json(folder / "texts.json")
        try:
            vectors = safetensors.numpy.load_file(folder / "vectors.safetensors")["vectors"]
            return Listed(said["model"], said["texts"], vectors)
        except (SafetensorError, KeyError) as error:
            raise CheckpointError(f"{folder}: is damaged ({error}); upload the list again") from error


class Service:
    def __init__(
        self, registry: Registry, limits: Limits, runs: Path | None = None, state_dir: Path | None = None,
        processes: int = 1,
    ) -> None:  # fmt: skip
        self.registry, self.limits, self.runs = registry, limits, Runs(runs)
        self.engine = Engine(limits)
        self.teacher = Teacher(self.engine)
        self._forgetful = processes > 1 and state_dir is None
        self.taught = self._store("taught classifiers", state_dir, "adapted", TaughtKeeper(registry))
        self.lists = self._store("lists to search in", state_dir, "lists", ListKeeper())

    def _store(self, kind: str, state_dir: Path | None, name: str, keeper: Keeper[T]) -> Store[T]:
        if state_dir is None:
            return InMemory(kind, self.limits)
        return InFolder(kind, self.limits, state_dir / name, keeper)

    def check_memory(self) -> None:
        """Refuse what the next request would not find again."""
        if self._forgetful:
            raise Refused(
                403, "this server runs several processes, which share nothing: it must be started with --state-dir DIR "
                "to teach and to search, or with --workers 1", "forbidden",
            )  # fmt: skip

    async def find(self, name: str) -> Served:
        """A model that is served, or one that a client taught."""
        if not name.startswith(TAUGHT):
            return self.registry.get(name)
        taught_id = name.removeprefix(TAUGHT)
        found = await self.engine.aside(self.taught.get, taught_id)
        return Served(name, found.adapted, taught_id=taught_id)

    async def close(self) -> None:
        await asyncio.to_thread(self.teacher.close)  # whose threads wait for the event loop
        await self.engine.close()
