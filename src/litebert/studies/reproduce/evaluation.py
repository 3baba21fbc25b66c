"""Evaluation of every model of `litebert reproduce` on held-out text and examples.

Shapes: P pairs, S sequences of L columns, H hidden.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from litebert.data.masking import Masking
from litebert.data.pretraining import PretrainingBatch, PretrainingData, TrainingStage
from litebert.data.segments import SentenceObjective
from litebert.data.shards import Shards, TokenStream
from litebert.data.tables import TableOptions
from litebert.device import has_bfloat16
from litebert.errors import DataError, require_extra
from litebert.fewshot.adapt import adapt_frozen
from litebert.inference import Model
from litebert.studies.reproduce.plan import Plan, TaskFiles
from litebert.tasks import Classify
from litebert.tasks.pretraining import PretrainingObjective
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.finetuning import finetune

BATCH_ROWS = 64
HELD_OUT_SEED, PROBE_SEED = 1, 2
MASKINGS = {"mlm": Masking("ngram", 0.15), "mlm_token": Masking("token", 0.15)}
"""Masking for evaluation, the same for all models: n-grams as in the paper, and single tokens."""
SENTENCE_TASKS: dict[str, SentenceObjective] = {"next": "next", "order": "order"}
CONVERGENCE_ROWS = 64
FEW_SHOT_DRAWS = 5
"""Few-shot samples, the same for all models, over which accuracy is averaged."""
MIN_TEST_EXAMPLES = 2  # per class


class ModelEvaluator:
    """Evaluates models on the same data."""

    def __init__(self, plan: Plan, device: torch.device, console: Console) -> None:
        self.plan, self.device, self.console = plan, device, console
        self.shards = Shards(plan.data)
        self.examples = read_few_shot_examples(plan)

    def __call__(self, model: Model, sentences: SentenceObjective, folder: Path, seed: int) -> dict[str, Any]:
        """All scores of a trained model. `sentences` is its sentence objective; fine-tuned models go to `folder`."""
        model.to(self.device)
        model.encoder.eval()
        scores: dict[str, Any] = {"parameters": sum(p.numel() for p in model.albert.parameters())}
        half = has_bfloat16(self.device) and self.plan.fixed["precision"] != "fp32"  # as it was trained
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            for name, masking in MASKINGS.items():
                scores |= self._masked_lm(model, name, self._batches(sentences, masking))
            for name, question in SENTENCE_TASKS.items():
                scores |= self._sentence_pairs(model, name, question, trained=question == sentences)
        with torch.no_grad():
            scores |= self._pass_movement(model)
        scores["few_shot"] = self._few_shot(model)
        finetuned = {task.name: self._finetune(task, model, folder / task.name, seed) for task in self.plan.tasks}
        scores["downstream"] = {name: score for name, (score, _) in finetuned.items()}
        scores["without_reading"] = {name: score for name, (_, score) in finetuned.items()}
        return scores

    def _batches(
        self, sentences: SentenceObjective, masking: Masking, held_out: bool = True, rows: int | None = None
    ) -> Iterator[PretrainingBatch]:
        stream: TokenStream = self.shards.held_out if held_out else self.shards.training
        data = PretrainingData(
            stream, self.shards.tokenizer, [TrainingStage(0, BATCH_ROWS, self.plan.fixed["length"])],
            seed=HELD_OUT_SEED if held_out else PROBE_SEED, masking=masking, sentences=sentences,
        )  # fmt: skip
        for number in range(-(-(rows or self.plan.rows) // BATCH_ROWS)):
            yield data.batch(number).to(self.device)

    def _masked_lm(self, model: Model, name: str, batches: Iterator[PretrainingBatch]) -> dict[str, float]:
        """Accuracy and loss on masked tokens."""
        objective = PretrainingObjective(model.albert).eval()
        unit_weight, hidden = torch.ones((), device=self.device), 0
        right = loss = 0.0
        for batch in batches:
            sums = objective(batch, model.config.num_hidden_layers, self.plan.fixed["length"], unit_weight, unit_weight)
            right, loss = right + float(sums["mlm_accuracy"]), loss + float(sums["mlm_loss"])
            hidden += len(batch.labels)
        return {name: right / hidden, f"{name}_loss": loss / hidden}

    def _sentence_pairs(
        self, model: Model, name: str, question: SentenceObjective, trained: bool
    ) -> dict[str, float | None]:
        """Accuracy on sentence pairs of a probe, and of the model's own head if it was trained for this task."""
        masking = MASKINGS["mlm"]
        train_set = self._cls_states(model, self._batches(question, masking, held_out=False, rows=self.plan.pairs))
        test_states, truth = self._cls_states(model, self._batches(question, masking))
        own_head = None
        if trained:
            answers = model.albert.heads["order"](model.encoder.pool(test_states)).argmax(-1)
            own_head = balanced_accuracy(truth.cpu().numpy(), answers.cpu().numpy())
        return {
            f"{name}_probe": probe_accuracy(train_set, (test_states, truth)),
            f"{name}_head": own_head,
            f"{name}_pairs": len(truth),
        }

    def _cls_states(self, model: Model, batches: Iterator[PretrainingBatch]) -> tuple[Tensor, Tensor]:
        """Final hidden states of [CLS], (P, H), and labels of the pairs, (P,)."""
        states, wrong = [], []
        for batch in batches:
            states.append(
                model.encoder.packed(
                    batch.input_ids, batch.lengths, batch.token_type_ids, longest=self.plan.fixed["length"],
                    rows=batch.cls_positions,
                )
            )  # fmt: skip
            wrong.append(batch.swapped)
        answers = torch.cat(wrong)
        if len(answers.unique()) < 2:
            raise DataError(
                f"{self.plan.data}: {len(answers)} pairs of sentences are too few to ask about; raise --rows, or "
                "prepare more text, or longer documents"
            )
        return torch.cat(states).float(), answers

    def _pass_movement(self, model: Model) -> dict[str, Any]:
        """Mean distance and angle between hidden states before and after every pass."""
        batch = next(self._batches("order", MASKINGS["mlm"], rows=CONVERGENCE_ROWS))
        lengths = [length for length in batch.lengths.tolist() if length]
        ids, types = (
            torch.nn.utils.rnn.pad_sequence(list(tensor.split(lengths)), batch_first=True)
            for tensor in (batch.input_ids, batch.token_type_ids)
        )  # (S, L)
        columns = torch.arange(ids.shape[1], device=self.device)
        real = columns < torch.tensor(lengths, device=self.device)[:, None]
        if batch.padding:
            real[-1] = False
        passes = range(model.config.num_hidden_layers + 1)
        states = [
            state[real].float() for state in model.encoder.hidden_states_at(passes, ids, real, types)
        ]  # (T, H) each
        distances = [float((after - before).norm(dim=-1).mean()) for before, after in pairwise(states)]
        angles = [
            float(
                torch.rad2deg(torch.nn.functional.cosine_similarity(before, after, dim=-1).clamp(-1, 1).acos()).mean()
            )
            for before, after in pairwise(states)
        ]
        return {"distances": distances, "angles": angles, "last_angle": angles[-1]}

    def _few_shot(self, model: Model) -> float:
        """Accuracy of `litebert adapt` with frozen weights, over several few-shot samples."""
        texts, labels = self.examples
        scores = []
        for draw in range(FEW_SHOT_DRAWS):
            chosen = draw_shots(labels, self.plan.shots, draw)
            others = sorted(set(range(len(labels))) - set(chosen))
            adapted = adapt_frozen(model, [texts[i] for i in chosen], [labels[i] for i in chosen])
            answers: list[Any] = adapted.predict([texts[i] for i in others])
            scores.append(float(np.mean([answers[n].label == labels[i] for n, i in enumerate(others)])))
        return float(np.mean(scores))

    def _finetune(self, task: TaskFiles, model: Model, out: Path, seed: int) -> tuple[float, float | None]:
        """Test scores of a fine-tuned model and of the majority baseline; the best epoch is chosen on a split of the
        training file."""
        shutil.rmtree(out, ignore_errors=True)  # what was killed begins again
        kind: Any = task.task
        device: Any = self.plan.fixed["device"]
        settings = FinetuneConfig(
            model=str(model.source), train=task.train, test=task.test, out=out, task=kind, metric=task.metric,
            epochs=self.plan.task_epochs, save_every=f"{self.plan.task_epochs}epoch", seed=seed, device=device,
        )  # fmt: skip
        result = finetune(settings, self.console)
        shutil.rmtree(out)
        if result is None:
            raise KeyboardInterrupt
        return result.test[result.metric], result.baseline.get(result.metric)


def read_few_shot_examples(plan: Plan) -> tuple[list[str], list[str]]:
    """Texts and labels for few-shot samples; classes with too few examples are left out."""
    records = Classify.read(plan.few_shot, TableOptions.parse(plan.columns, True))
    labels = [str(record.label) for record in records]
    kept = [i for i in range(len(records)) if labels.count(labels[i]) >= plan.shots + MIN_TEST_EXAMPLES]
    if len({labels[i] for i in kept}) < 2 or any(records[i].text_b is not None for i in kept):
        raise DataError(
            f"{plan.few_shot}: needs two classes or more of single texts, {plan.shots + MIN_TEST_EXAMPLES} of each; "
            "give another --few-shot file, or fewer --shots"
        )
    return [records[i].text for i in kept], [labels[i] for i in kept]


def draw_shots(labels: Sequence[str], shots: int, draw: int) -> list[int]:
    """Indices of `shots` examples of each class, the same for every model."""
    rng = random.Random(draw)
    by_class: dict[str, list[int]] = {}
    for number, label in enumerate(labels):
        by_class.setdefault(label, []).append(number)
    return [number for label in sorted(by_class) for number in rng.sample(by_class[label], shots)]


def probe_accuracy(train_set: tuple[Tensor, Tensor], test_set: tuple[Tensor, Tensor]) -> float:
    """Balanced accuracy of logistic regression on hidden states; chance is a half."""
    linear = require_extra("sklearn.linear_model", "train")
    mean, spread = train_set[0].mean(0), train_set[0].std(0).clamp_min(1e-6)
    (states, truth), (others, answers) = (
        (((states_of_set - mean) / spread).cpu().numpy(), wrong.cpu().numpy())
        for states_of_set, wrong in (train_set, test_set)
    )
    # as many numbers as pairs could be learned by heart: a ridge as long as the vectors holds against that
    probe = linear.LogisticRegression(C=1 / math.sqrt(states.shape[1]), max_iter=300, class_weight="balanced")
    return balanced_accuracy(answers, probe.fit(states, truth).predict(others))


def balanced_accuracy(truth: np.ndarray, answers: np.ndarray) -> float:
    """Mean recall over the classes: chance is a half for any class balance."""
    return float(np.mean([(answers[truth == kind] == kind).mean() for kind in np.unique(truth)]))
