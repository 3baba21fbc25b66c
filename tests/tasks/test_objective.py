"""What fine-tuning makes smaller: the loss alone, R-Drop, FreeLB, SMART."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, kl_divergence

from litebert.data.batches import Batch, Example, collate
from litebert.data.windows import Window
from litebert.errors import ConfigError
from litebert.inference import Model
from litebert.model import Albert
from litebert.tasks import Classify, Multilabel, Regress
from litebert.tasks.objective import ASCENT_STEPS, NOISE_RADIUS, Adversarial, objective
from litebert.tasks.text import TextInput
from litebert.tokenizer import Tokenizer
from tests.tasks.test_text import MADE_UP, learned

LESSONS = [TextInput(text, label=text.split()[0]) for text in [*MADE_UP[:7], *MADE_UP[20:], "rain on the old tin roof"]]
ADVERSARIAL: list[Adversarial] = ["none", "freelb", "smart"]


class Watched(Classify):
    """Remembers the noise of every reading."""

    def scores(self, model: Albert, batch: Batch) -> dict[str, torch.Tensor]:
        self.noises: list[torch.Tensor | None] = [*getattr(self, "noises", []), batch.noise]
        return super().scores(model, batch)


@pytest.fixture
def task() -> Watched:
    return Watched(sorted({record.label for record in LESSONS}))


@pytest.fixture
def batch(task: Watched, tokenizer: Tokenizer) -> Batch:
    return collate(task.training_examples(LESSONS, task.features(LESSONS, tokenizer, 64)), tokenizer.pad_id)


@pytest.fixture
def trained(task: Watched, model: Model) -> Albert:
    """After some steps, without dropout, still learning."""
    return learned(task, LESSONS, model.tokenizer, model.config, steps=30).albert.train()


def with_dropout(albert: Albert) -> Albert:
    for module in albert.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
    return albert


def plain(task: Watched, albert: Albert, batch: Batch) -> torch.Tensor:
    return task.loss(task.scores(albert, batch), batch)


def test_alone_it_is_the_task_s_loss_to_the_bit(task: Watched, trained: Albert, batch: Batch) -> None:
    assert torch.equal(objective(task, trained, batch)["loss"], plain(task, trained, batch))


def test_without_dropout_two_readings_are_equal_and_add_nothing(task: Watched, trained: Albert, batch: Batch) -> None:
    assert torch.equal(objective(task, trained, batch, r_drop=3.0)["loss"], plain(task, trained, batch))


def test_r_drop_adds_the_weighted_distance_of_two_readings_to_their_mean_loss(
    task: Watched, trained: Albert, batch: Batch
) -> None:
    albert = with_dropout(trained)
    torch.manual_seed(0)
    first, second = task.scores(albert, batch), task.scores(albert, batch)
    distance = task.divergence(first, second, batch)
    assert distance > 0
    for weight in (0.5, 2.0):
        torch.manual_seed(0)
        expected = (task.loss(first, batch) + task.loss(second, batch)) / 2 + weight * distance
        assert objective(task, albert, batch, r_drop=weight)["loss"].item() == pytest.approx(expected.item(), rel=1e-6)


def two_scores(outputs: int) -> tuple[torch.Tensor, torch.Tensor, Batch]:
    torch.manual_seed(0)
    sequence = Window([2, 3], [0, 0], 1, 0, 0)
    return torch.randn(6, outputs) * 2, torch.randn(6, outputs) * 2, collate([Example([sequence])] * 6, 0)


def test_the_divergence_of_classes_is_torch_s_both_ways_halved() -> None:
    left, right, batch = two_scores(4)
    p, q = left.log_softmax(-1), right.log_softmax(-1)
    both = [F.kl_div(one, other, reduction="batchmean", log_target=True) for one, other in ((p, q), (q, p))]
    found = Classify(list("abcd")).divergence({"scores": left}, {"scores": right}, batch)
    assert found.item() == pytest.approx(sum(both).item() / 2, rel=1e-5)  # type: ignore[union-attr]


def test_the_divergence_of_labels_is_torch_s_both_ways_halved() -> None:
    left, right, batch = two_scores(4)
    p, q = Bernoulli(logits=left), Bernoulli(logits=right)
    expected = (kl_divergence(p, q) + kl_divergence(q, p)).mean() / 2
    found = Multilabel(list("abcd")).divergence({"scores": left}, {"scores": right}, batch)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_divergence_of_numbers_is_their_squared_distance_in_deviations() -> None:
    left, right, batch = two_scores(1)
    found = Regress(deviation=3.0).divergence({"scores": left}, {"scores": right}, batch)
    assert found.item() == pytest.approx(((left - right) ** 2).mean().item())  # the head speaks in deviations


@pytest.mark.parametrize("kind", [Classify(["a", "b"]), Multilabel(["a", "b"]), Regress()])
def test_the_divergence_of_a_long_text_is_that_of_the_means_of_its_windows(kind: Any) -> None:
    left, right, _ = two_scores(kind.num_outputs)
    sequence = Window([2, 3], [0, 0], 1, 0, 0)
    windowed = collate([Example([sequence] * 4), Example([sequence] * 2)], 0)
    means = [torch.stack([scores[:4].mean(0), scores[4:].mean(0)]) for scores in (left, right)]
    expected = kind.divergence({"scores": means[0]}, {"scores": means[1]}, collate([Example([sequence])] * 2, 0))
    found = kind.divergence({"scores": left}, {"scores": right}, windowed)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("adversarial", ["freelb", "smart"])
@pytest.mark.parametrize("seed", range(3))
def test_the_noise_stays_within_its_radius_and_off_the_padding(
    task: Watched, trained: Albert, batch: Batch, adversarial: Adversarial, seed: int
) -> None:
    torch.manual_seed(seed)
    task.noises = []
    objective(task, trained, batch, adversarial=adversarial)
    noises = [noise for noise in task.noises if noise is not None]
    assert len(noises) == (ASCENT_STEPS + 1 if adversarial == "freelb" else 2)
    words = trained.encoder.word_embeddings(batch.input_ids) * batch.real[..., None]
    radius = NOISE_RADIUS * words.flatten(1).norm(dim=1)
    for noise in noises:
        length = noise.flatten(1).norm(dim=1)
        assert (length <= radius * 1.0001).all()
    assert (noises[-1].flatten(1).norm(dim=1) > 0.5 * radius).all()
    assert not batch.real.all()
    assert (noises[-1][~batch.real] == 0).all()


def test_freelb_s_ascent_raises_the_loss(task: Watched, trained: Albert, batch: Batch) -> None:
    alone, rises, means = plain(task, trained, batch).item(), [], []
    for seed in range(5):
        torch.manual_seed(seed)
        task.noises = []
        means.append(objective(task, trained, batch, adversarial="freelb")["loss"].item())
        losses = [plain(task, trained, replace(batch, noise=noise)).item() for noise in list(task.noises)]
        assert means[-1] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        rises.append(losses[-1] - losses[0])
    assert min(rises) > 0
    assert sum(means) / len(means) > alone


def test_smart_adds_what_noise_changes_in_the_scores(task: Watched, trained: Albert, batch: Batch) -> None:
    torch.manual_seed(0)
    task.noises = []
    found = objective(task, trained, batch, adversarial="smart")["loss"]
    noisy = replace(batch, noise=task.noises[-1])
    still, moved = task.scores(trained, batch), task.scores(trained, noisy)
    distance = task.divergence(still, moved, batch)
    assert distance > 0
    assert found.item() == pytest.approx((task.loss(still, batch) + distance).item(), rel=1e-5)


def test_smart_adds_nothing_where_the_scores_do_not_depend_on_the_words(
    task: Watched, trained: Albert, batch: Batch
) -> None:
    linear: Any = trained.heads["classify"].linear
    torch.nn.init.zeros_(linear.weight)
    assert torch.equal(objective(task, trained, batch, adversarial="smart")["loss"], plain(task, trained, batch))


@pytest.mark.parametrize(
    ("r_drop", "adversarial"), [(0.0, "none"), (1.0, "none"), (0.0, "freelb"), (0.0, "smart"), (1.0, "smart")]
)
def test_gradients_reach_every_weight(
    task: Watched, trained: Albert, batch: Batch, adversarial: Adversarial, r_drop: float
) -> None:
    trained.zero_grad()
    objective(task, with_dropout(trained), batch, r_drop=r_drop, adversarial=adversarial)["loss"].backward()
    for name, parameter in trained.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_r_drop_counts_beside_smart_and_is_refused_beside_freelb(task: Watched, trained: Albert, batch: Batch) -> None:
    albert = with_dropout(trained)
    losses = []
    for r_drop in (0.0, 5.0):
        torch.manual_seed(0)
        losses.append(objective(task, albert, batch, r_drop=r_drop, adversarial="smart")["loss"].item())
    assert losses[0] != losses[1]
    with pytest.raises(ConfigError, match="use one of them"):
        objective(task, albert, batch, r_drop=1.0, adversarial="freelb")
