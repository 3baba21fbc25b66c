"""A step can be recorded on a GPU only if nothing in it waits for a value: which losses keep to that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from litebert.data.batches import Example, collate
from litebert.data.windows import Window
from litebert.model import Albert, AlbertConfig
from litebert.tasks import Answer, Choose, Classify, Multilabel, Regress, Tag
from litebert.tasks.objective import objective

ASKING = {"nonzero", "masked_select", "_local_scalar_dense", "bincount", "repeat_interleave", "_unique2"}
SHAPE = {"vocab_size": 50, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "max_position_embeddings": 16}  # fmt: skip


class Asked(TorchDispatchMode):
    """Collects the operations for which a host waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in ASKING or by_mask:
            self.names.add(name)
        return func(*args, **(kwargs or {}))


def example(target: Any, *lengths: int, by_token: bool = False) -> Example:
    windows = [Window(list(range(3, 3 + n)), [0] * (n // 2) + [1] * (n - n // 2), 1, 0, n - 2) for n in lengths]
    return Example(windows, target, per_token=by_token)


def tagged(*lengths: int) -> list[Example]:
    return [example(np.arange(length) % 3, length, by_token=True) for length in lengths]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps are recorded, padding stays: a CPU looks how much there is, and leaves it out."""
    monkeypatch.setattr("litebert.model.backends.base.has_much_padding", lambda mask: False)


NAMES = ["O", "B-x", "I-x"]
HEADS = ("linear", "mlp", "cnn")
CASES: dict[str, tuple[Any, list[Example]]] = {
    **{f"classify, {head}": (Classify(["a", "b"], head), [example(1, 9), example(0, 12)]) for head in HEADS},
    "classify, windows": (Classify(["a", "b"], label_smoothing=0.1), [example(1, 9, 9), example(0, 12)]),
    "multilabel": (Multilabel(["a", "b"]), [example(np.float32([1, 0]), n) for n in (9, 12)]),
    "regress": (Regress(), [example(np.float32(n), n) for n in (9, 12)]),
    **{f"tag, {head}": (Tag(NAMES, head), tagged(9, 12)) for head in HEADS},
    **{f"answer, {head}": (Answer(head), [example(np.array([6, 7, 0]), 9), example(np.array([0, 0, 1]), 12)])
       for head in ("linear", "joint")},
    "choose, windows": (Choose(), [example(np.array([0, 2]), 9, 9, 9, 9), example(np.array([1, 2]), 12, 12)]),
}  # fmt: skip


def asked_by(task: Any, examples: list[Example], r_drop: float = 0.0, **shape: Any) -> set[str]:
    config = AlbertConfig(**SHAPE, **shape)
    model = Albert(config, {task.head_name: task.head(config)}).train()
    batch = collate(examples, 0, columns=16)
    with Asked() as asked:
        loss = objective(task, model, batch, r_drop=r_drop)["loss"]
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return asked.names


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "shape",
    [{}, {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}, {"lora_rank": 2},
     {"relative_attention_distance": 4, "depth_embedding": True}],
    ids=["plain", "dropout", "lora", "bias and depth"],
)  # fmt: skip
def test_a_step_waits_for_no_value(name: str, shape: dict[str, Any]) -> None:
    assert asked_by(*CASES[name], **shape) == set()


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("tag")])
def test_r_drop_waits_for_no_value(name: str) -> None:
    assert asked_by(*CASES[name], r_drop=1.0, hidden_dropout_prob=0.1) == set()


@pytest.mark.parametrize(
    ("task", "r_drop"), [(Tag(NAMES, "lstm"), 0.0), (Tag(NAMES, crf=True), 0.0), (Tag(NAMES), 1.0)],
    ids=["lstm", "crf", "R-Drop of tags"],
)  # fmt: skip
def test_what_is_left_out_of_recordings_does_wait(task: Any, r_drop: float) -> None:
    assert asked_by(task, tagged(9, 12), r_drop, hidden_dropout_prob=0.1)
