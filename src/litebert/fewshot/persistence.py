"""Reading the folder that `Adapted.save` wrote."""

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
from litebert.fewshot.adapt import ADAPTERS, BACKGROUND, SETTINGS, TENSOR_NAMES, TENSORS, Adapted, empty_head
from litebert.fewshot.feature_sets import Background, token_ngrams
from litebert.fewshot.head import FeatureView, FewShotHead
from litebert.fewshot.support_set import LeaveOneOutReport, SupportSet, Tuning
from litebert.fewshot.task import FewShot
from litebert.files import read_json
from litebert.inference.loading import Engine, check_engine, load_model
from litebert.inference.model import Model
from litebert.interop.formats import checkpoint_exists
from litebert.model.lora import DepthAdapters
from litebert.tasks.text import TextInput


@dataclass(frozen=True)
class SavedClassifier:
    """The content of few_shot.json."""

    path: Path
    model: dict[str, str]
    """The base model: a `name`, or a `folder` relative to this one."""
    encoder: str
    """The fingerprint of its weights."""
    labels: list[str]
    levels: list[float]
    familiar: list[float]
    evidence: dict[str, Any]
    label_names: bool | None
    tuning: dict[str, Any] | None
    around: int
    """The number of background windows."""
    examples: list[list[str]]
    """A text or a pair, and its label."""

    @staticmethod
    def is_at(path: Path) -> bool:
        return (path / SETTINGS).is_file()

    @classmethod
    def read(cls, path: Path) -> SavedClassifier:
        content = read_json(path / SETTINGS)
        names = [field.name for field in fields(cls) if field.name != "path"]
        if missing := [name for name in names if name not in content]:
            raise CheckpointError(f"{path / SETTINGS}: lacks {', '.join(missing)}; adapt again")
        return cls(path, **{name: content[name] for name in names})

    @property
    def is_whole(self) -> bool:
        """Whether the tuned model is in the same folder."""
        return self.model.get("folder") == "."

    @property
    def base(self) -> str | Path:
        folder, name = self.model.get("folder"), self.model.get("name")
        return self.path.resolve() / folder if folder is not None else str(name)

    def restore(self, base: Model) -> Adapted:
        """The classifier, on the model that it was adapted from."""
        if isinstance(base, Adapted) or base.encoder_fingerprint() != self.encoder:
            raise CheckpointError(
                f"{self.path}: was made from {self.base}, which has other weights now; adapt again to the same examples"
            )
        try:
            return self._restore(base)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OSError, SafetensorError) as error:
            problem = str(error).splitlines()[0]
            raise CheckpointError(f"{self.path}: is damaged ({problem}); adapt again") from error

    def _restore(self, base: Model) -> Adapted:
        report = LeaveOneOutReport.from_json(_with_tuples(self.evidence))
        self._check(report, base.config.num_hidden_layers)
        tuning = None if self.tuning is None else Tuning.from_json(_with_tuples(self.tuning), report.features)
        tensors = safetensors.torch.load_file(self.path / TENSORS)
        if "rows" not in tensors:
            raise CheckpointError(f"{self.path}: was saved by an earlier litebert; adapt again to the same examples")
        background = Background(self.around, tensors.pop(BACKGROUND).numpy())
        adapters = _read_adapters(tensors)
        records = tuple(TextInput(text, other[0] if other else None, label) for text, *other, label in self.examples)
        pairs = records[0].text_b is not None
        task = FewShot(self.labels, self.levels, self.familiar, pairs)
        support = SupportSet(records, self.label_names, background)
        return Adapted(base, task, self._head(base, report, pairs, tensors), support, report, tuning, adapters)

    def _head(
        self, base: Model, report: LeaveOneOutReport, pairs: bool, tensors: dict[str, torch.Tensor]
    ) -> FewShotHead:
        sizes = len(tensors["rows"]), len(tensors["values"])
        head = empty_head(base, report.features, pairs, len(self.labels), *sizes, token_ngrams=token_ngrams(base))
        names = {saved: name for name, saved in TENSOR_NAMES.items()}
        head.load_state_dict({names.get(name, name): value for name, value in tensors.items()})
        head.check()
        return head

    def _check(self, report: LeaveOneOutReport, passes: int) -> None:
        """Refuse settings that cannot be right and raise no error by themselves."""
        views = set(get_args(FeatureView))
        if not set(report.depths) <= set(range(1, passes + 1)) or not set(report.views) <= views:
            raise ValueError(f"depths {report.depths}, views {report.views}")
        if not isinstance(report.exponential, bool) or not isinstance(report.characters, bool):
            raise ValueError(f"bent {report.exponential}, characters {report.characters}")
        if not all(isinstance(label, str) for label in self.labels) or len(set(self.labels)) < len(self.labels):
            raise ValueError("labels must be different names")
        levels = np.asarray(self.levels, dtype=float)
        if levels.shape != (len(self.labels),) or not (np.isfinite(levels) & (levels > 0)).all():
            raise ValueError("levels must be one above 0 for each label")
        if not np.isfinite(np.asarray(self.familiar, dtype=float)).all() or not self.examples:
            raise ValueError("familiar must be numbers, and there must be examples")


def _with_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where dataclasses have tuples."""
    return {name: _tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _tuple(values: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _read_adapters(tensors: dict[str, torch.Tensor]) -> DepthAdapters | None:
    """Take the adapters out of the tensors of a file."""
    names = [name for name in tensors if name.startswith(ADAPTERS)]
    weights = {name.removeprefix(ADAPTERS): tensors.pop(name) for name in names}
    if not weights:
        return None
    passes, _, rank, hidden_size = weights["down"].shape
    adapters = DepthAdapters(passes, hidden_size, rank)
    adapters.load_state_dict(weights)
    return adapters


def load_any(path_or_name: str | Path, engine: Engine = "auto", share_with: Sequence[Model] = ()) -> Model:
    """A whole model, or a few-shot classifier with the model that it was adapted from."""
    check_engine(engine)
    path = builtin.folder_of(path_or_name)
    if not SavedClassifier.is_at(path):
        return load_model(path_or_name, engine, share_with)
    saved = SavedClassifier.read(path)
    if saved.is_whole:
        return saved.restore(load_model(path, engine, share_with))
    if (path / "config.json").is_file():
        raise CheckpointError(f"{path}: holds a whole model and an adapted one; delete config.json or few_shot.json")
    if isinstance(saved.base, Path) and not checkpoint_exists(saved.base):
        raise CheckpointError(
            f"{path}: was made from the model in {saved.base}, which is not there; put it back, or adapt another model "
            "to the same examples"
        )
    return saved.restore(load_any(saved.base, engine, share_with))
