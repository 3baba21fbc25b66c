"""Teach a pre-trained model to tell sentences apart by meaning, without labels, and say what that is worth.

  python examples/builtin/embeddings.py --model runs/pt --data shards --sts tasks/glue/STS-B --out runs/st

First the encoder learns, with pre-training going on beside, which two of many sentences belong together: a sentence
with some of its tokens hidden and the same with others hidden, or the one after it. They come from the shards it was
trained on, so what was held out or excluded there stays so. Then a linear map that whitens the vectors is tried. How
long is learned, and whether the map is used and how many directions it keeps, is decided on a tenth of STS-B's training
pairs; the saved model is asked about its development pairs once, at the end.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from scipy.stats import spearmanr

import litebert
from litebert.data.batches import Batch, Example, collate
from litebert.data.pretraining import PretrainingBatch, PretrainingData, Stage
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, Shards
from litebert.model.sentences import SentenceMap, whitened
from litebert.predict import Model
from litebert.tasks import Regress
from litebert.tasks.base import hidden_of
from litebert.tasks.pretraining import PretrainingObjective
from litebert.tasks.text import TextInput
from litebert.train.optimizers import adamw
from litebert.train.runtime import has_bfloat16, pick_device

SHORTEST, LONGEST = 8, 60  # tokens of a sentence that is looked at
HIDDEN = 0.15  # of its tokens
NEAR = 0.5  # share of the pairs that are neighbours; the others are one sentence twice
TEMPERATURE = 0.05
BESIDE = 64  # tokens of pre-training for each pair
WARMUP = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, help="what litebert prepare wrote")
    parser.add_argument("--sts", type=Path, required=True, help="a folder with train.tsv and dev.tsv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000, help="0: learn nothing, try the map alone")
    parser.add_argument("--batch-size", type=int, default=256, help="pairs")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--looks", type=int, default=5, help="how often the tenth is asked on the way")
    parser.add_argument("--sentences", type=int, default=50_000, help="from which the map is made")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 768])
    parser.add_argument("--half", action="store_true", help="save weights in bfloat16")
    options = parser.parse_args()
    model = litebert.load(options.model).to(pick_device("auto"))
    model.bf16, model.after = has_bfloat16(model.device), None
    if options.sentences < 2 * model.config.hidden_size:
        parser.error(f"--sentences {options.sentences}: give {2 * model.config.hidden_size} or more")
    if min(options.steps, options.looks - 1, options.batch_size - 1) < 0:
        parser.error("--steps must be 0 or more, --looks and --batch-size 1 or more")
    train = Regress.read(options.sts / "train.tsv")
    tenth = random.Random(0).sample(train, len(train) // 10)
    shards = Shards(options.data)
    pairs = pairs_of(shards, max(options.sentences, options.steps * options.batch_size))
    if options.steps:
        teach(model, pairs, beside(shards, model, options.batch_size), tenth, options)
    chosen = choose_map(model, [first for first, _ in pairs[: options.sentences]], tenth, options.sizes)
    Model(model.to("cpu").albert, model.tokenizer, model.task, model.max_length, chosen).save(
        options.out, half=options.half
    )
    saved = litebert.load(options.out).to(pick_device("auto"))
    for what, some in (("the tenth", tenth), ("the development pairs", Regress.read(options.sts / "dev.tsv"))):
        print(f"saved: Spearman {correlation(saved, saved.after, some):.4f} on {what}")


def pairs_of(shards: Shards, count: int) -> list[tuple[str, str]]:
    """So many neighbouring sentences or fewer, from all over the text, the same every time."""
    stream, chance, found = shards.training, np.random.default_rng(0), list[tuple[str, str]]()
    for ids, bits in zip(stream.ids, stream.bits, strict=True):
        starts = np.flatnonzero(bits & SENTENCE_START)
        sizes, goes_on = np.diff(starts), (bits[starts] & DOCUMENT_START) == 0
        fits = (sizes >= SHORTEST) & (sizes <= LONGEST)
        usable = np.flatnonzero(fits[:-1] & fits[1:] & goes_on[1:-1])
        wanted = min(len(usable), -(-count * len(ids) // stream.tokens))
        for at in chance.choice(usable, wanted, replace=False).tolist():
            first, second = (ids[starts[i] : starts[i + 1]].tolist() for i in (at, at + 1))
            found.append((shards.tokenizer.decode(first), shards.tokenizer.decode(second)))
    return [found[i] for i in chance.permutation(len(found)).tolist()]


# --- learning ---------------------------------------------------------------------------------------------------------


def beside(shards: Shards, model: Model, pairs: int) -> PretrainingData:
    """What goes on being learned, so that it is not forgotten."""
    rows = max(1, BESIDE * pairs // model.max_length)
    return PretrainingData(shards.training, shards.tokenizer, [Stage(0, rows, model.max_length)], seed=1)


def teach(
    model: Model,
    pairs: list[tuple[str, str]],
    text: PretrainingData,
    tenth: list[TextInput],
    options: argparse.Namespace,
) -> None:
    """Leave the model as it was when the tenth liked it best."""
    optimizer = adamw(model.albert, weight_decay=0.01)
    best, state = correlation(model, None, tenth), copied(model)
    print(f"before: Spearman {best:.4f} on a tenth of the training pairs", flush=True)
    for step, (first, second) in enumerate(
        track(batches_of(pairs, options), total=options.steps, console=Console(stderr=True)), start=1
    ):
        share = (step - 0.5) / options.steps
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min(share / WARMUP, (1 - share) / (1 - WARMUP))
        told, known = learn(model, optimizer, first, second, text.batch(step), torch.Generator().manual_seed(step))
        if step % max(1, options.steps // options.looks) == 0 or step == options.steps:
            now = correlation(model, None, tenth)
            figures = ", ".join(f"{name} {value.item():.1%}" for name, value in known.items() if "accuracy" in name)
            print(f"step {step}: found {told:.1%}, {figures}, Spearman {now:.4f}", flush=True)
            if now > best:
                best, state = now, copied(model)
    model.albert.load_state_dict(state)


def copied(model: Model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.albert.state_dict().items()}


def batches_of(pairs: list[tuple[str, str]], options: argparse.Namespace) -> Iterator[tuple[list[str], list[str]]]:
    chance = random.Random(1)
    for step in range(options.steps):
        some = [pairs[(step * options.batch_size + i) % len(pairs)] for i in range(options.batch_size)]
        yield [first for first, _ in some], [second if chance.random() < NEAR else first for first, second in some]


def learn(
    model: Model,
    optimizer: torch.optim.Optimizer,
    first: list[str],
    second: list[str],
    text: PretrainingBatch,
    generator: torch.Generator,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One step; the share of sentences that found their own, and what pre-training says."""
    device = model.device
    model.albert.train()
    batch = partly_hidden(model, first + second, generator).to(device)
    masked, paired = (torch.tensor(max(1, len(what)), device=device) for what in (text.labels, text.swapped))
    with torch.autocast(device.type, torch.bfloat16, enabled=model.bf16):
        states = hidden_of(model.encoder, batch)  # (2N, L, H)
        known = PretrainingObjective(model.albert)(
            text.to(device), model.config.num_hidden_layers, model.max_length, masked, paired
        )
    means = states.float().sum(1) / batch.lengths[:, None]
    one, other = F.normalize(means, dim=1).chunk(2)
    alike = one @ other.T / TEMPERATURE  # (N, N)
    own = torch.arange(len(one), device=device)
    contrast = (F.cross_entropy(alike, own) + F.cross_entropy(alike.T, own)) / 2
    optimizer.zero_grad(set_to_none=True)
    (contrast + known["loss"]).backward()
    torch.nn.utils.clip_grad_norm_(model.albert.parameters(), 1.0)
    optimizer.step()
    return (alike.argmax(1) == own).float().mean(), known


def partly_hidden(model: Model, texts: list[str], generator: torch.Generator) -> Batch:
    tokenizer = model.tokenizer
    encodings = tokenizer.encode(texts, max_length=model.max_length)
    batch = collate([Example([encoding]) for encoding in encodings], tokenizer.pad_id)
    special = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    hidden = (torch.rand(batch.input_ids.shape, generator=generator) < HIDDEN) & ~torch.isin(batch.input_ids, special)
    return replace(batch, input_ids=batch.input_ids.masked_fill(hidden, tokenizer.mask_id))


# --- the map ----------------------------------------------------------------------------------------------------------


def choose_map(model: Model, sentences: list[str], tenth: list[TextInput], sizes: list[int]) -> SentenceMap | None:
    model.after = None
    means = model.embed(sentences)
    maps: dict[str, SentenceMap | None] = {"the mean": None}
    maps |= {f"whitened, {size}": whitened(means, size) for size in sizes if size <= means.shape[1]}
    found = {name: correlation(model, after, tenth) for name, after in maps.items()}
    for name, value in found.items():
        print(f"{name}: Spearman {value:.4f} on a tenth of the training pairs")
    best = max(found, key=lambda name: found[name])
    print(f"taken: {best}")
    return maps[best]


def correlation(model: Model, after: SentenceMap | None, pairs: list[TextInput]) -> float:
    """Between cosines and what people said."""
    model.after = after
    left, right = (model.embed([getattr(pair, side) for pair in pairs]) for side in ("text", "text_b"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return float(spearmanr(cosines, [pair.label for pair in pairs]).statistic)


if __name__ == "__main__":
    main()
