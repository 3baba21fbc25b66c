"""What `Adapted.save` wrote, read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from litebert import builtin
from litebert.errors import CheckpointError
from litebert.fewshot.adapt import ADAPTERS, SETTINGS, TENSORS, Adapted, empty_head
from litebert.fewshot.feature_sets import Around, spelling_of
from litebert.fewshot.head import View
from litebert.fewshot.support_set import Evidence, Given, Tuning
from litebert.fewshot.task import FewShot
from litebert.files import read_json
from litebert.inference.loading import Engine, check_engine, load_model
from litebert.inference.model import Model
from litebert.interop.formats import is_here
from litebert.model.lora import DepthAdapters
from litebert.tasks.text import TextInput


@dataclass(frozen=True)
class Saved:
    """What `Adapted.save` wrote."""

    path: Path
    model: dict[str, str]
    """A `name`, or a `folder` from here."""
    encoder: str
    labels: list[str]
    levels: list[float]
    familiar: list[float]
    evidence: dict[str, Any]
    label_names: bool | None
    tuning: dict[str, Any] | None
    around: int
    examples: list[list[str]]
    """A text or a pair, and its label."""

    @staticmethod
    def is_at(path: Path) -> bool:
        return (path / SETTINGS).is_file()

    @classmethod
    def read(cls, path: Path) -> Saved:
        given = read_json(path / SETTINGS)
        wanted = [field.name for field in fields(cls) if field.name != "path"]
        if missing := [name for name in wanted if name not in given]:
            raise CheckpointError(f"{path / SETTINGS}: lacks {', '.join(missing)}; adapt again")
        return cls(path, **{name: given[name] for name in wanted})

    @property
    def is_whole(self) -> bool:
        """Is the tuned model in the same folder?"""
        return self.model.get("folder") == "."

    @property
    def base(self) -> str | Path:
        folder, name = self.model.get("folder"), self.model.get("name")
        return self.path.resolve() / folder if folder is not None else str(name)

    def on(self, base: Model) -> Adapted:
        if isinstance(base, Adapted) or base.encoder_fingerprint() != self.encoder:
            raise CheckpointError(
                f"{self.path}: was made from {self.base}, which has other weights now; adapt again to the same examples"
            )
        try:
            evidence = Evidence(**_tuples(self.evidence))
            self._check(evidence, base.config.num_hidden_layers)
            tuning = None if self.tuning is None else Tuning(
                **_tuples(self.tuning) | {"sides": evidence.sides})  # fmt: skip
            tensors = safetensors.torch.load_file(self.path / TENSORS)
            if "rows" not in tensors:
                raise CheckpointError(
                    f"{self.path}: was saved by an earlier litebert; adapt again to the same examples"
                )
            around = Around(self.around, tensors.pop("around").numpy())
            learned = {name: tensors.pop(name) for name in list(tensors) if name.startswith(ADAPTERS)}
            adapters = _adapters_of({name.removeprefix(ADAPTERS): value for name, value in learned.items()})
            records = tuple(
                TextInput(text, other[0] if other else None, label) for text, *other, label in self.examples
            )
            pairs = records[0].text_b is not None
            kept = len(tensors["rows"]), len(tensors["values"])
            head = empty_head(base, evidence.sides, pairs, len(self.labels), *kept, spelling=spelling_of(base))
            head.load_state_dict(tensors)
            head.check()
            task = FewShot(self.labels, self.levels, self.familiar, pairs)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OSError, SafetensorError) as error:
            problem = str(error).splitlines()[0]
            raise CheckpointError(f"{self.path}: is damaged ({problem}); adapt again") from error
        return Adapted(base, task, head, Given(records, self.label_names, around), evidence, tuning, adapters)

    def _check(self, evidence: Evidence, passes: int) -> None:
        """What is not caught by putting it together."""
        if not set(evidence.depths) <= set(range(1, passes + 1)) or not set(evidence.views) <= set(get_args(View)):
            raise ValueError(f"depths {evidence.depths}, views {evidence.views}")
        if not isinstance(evidence.bent, bool) or not isinstance(evidence.characters, bool):
            raise ValueError(f"bent {evidence.bent}, characters {evidence.characters}")
        if not all(isinstance(label, str) for label in self.labels) or len(set(self.labels)) < len(self.labels):
            raise ValueError("labels must be different names")
        levels = np.asarray(self.levels, dtype=float)
        if levels.shape != (len(self.labels),) or not (np.isfinite(levels) & (levels > 0)).all():
            raise ValueError("levels must be one above 0 for each label")
        if not np.isfinite(np.asarray(self.familiar, dtype=float)).all() or not self.examples:
            raise ValueError("familiar must be numbers, and there must be examples")


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where our records have tuples."""
    return {name: _tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _tuple(values: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _adapters_of(tensors: dict[str, torch.Tensor]) -> DepthAdapters | None:
    if not tensors:
        return None
    passes, _, rank, hidden_size = tensors["down"].shape
    found = DepthAdapters(passes, hidden_size, rank)
    found.load_state_dict(tensors)
    return found


def load_any(path_or_name: str | Path, engine: Engine = "auto", share_with: Sequence[Model] = ()) -> Model:
    """A whole model, or one that `Adapted.save` wrote, on the model that it was adapted from."""
    check_engine(engine)
    path = builtin.folder_of(path_or_name)
    if not Saved.is_at(path):
        return load_model(path_or_name, engine, share_with)
    saved = Saved.read(path)
    if saved.is_whole:
        return saved.on(load_model(path, engine, share_with))
    if (path / "config.json").is_file():
        raise CheckpointError(f"{path}: holds a whole model and an adapted one; delete config.json or few_shot.json")
    if isinstance(saved.base, Path) and not is_here(saved.base):
        raise CheckpointError(
            f"{path}: was made from the model in {saved.base}, which is not there; put it back, or adapt another model "
            "to the same examples"
        )
    return saved.on(load_any(saved.base, engine, share_with))
