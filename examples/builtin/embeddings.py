"""Give a pre-trained model vectors of sentences that tell meanings apart, without labels, and say what that is worth.

  python examples/builtin/embeddings.py --model runs/pt --data shards --sts tasks/glue/STS-B --out runs/st

The model stays as it is. In the mean over tokens frequent ones count less (sentence-transformers: WordWeights), and
what is learned is a linear map of it (Dense): with it a sentence, some of whose tokens are hidden, has to find among
many the same with others hidden, or the one after it. The sentences come from the shards that the model was trained
on, so what was held out or excluded there stays so. How much less tokens count, and which map is used, that one, a
whitening one or none, is decided on a tenth of STS-B's training pairs; the saved model is asked about its development
pairs once, at the end.
"""

from __future__ import annotations

import argparse
import random
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
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, Shards
from litebert.device import has_bfloat16, pick_device
from litebert.fewshot.feature_sets import token_frequency
from litebert.inference import Model
from litebert.model.sentence_head import SentenceMap, weighted_mean, whitened
from litebert.tasks import Regress
from litebert.tasks.base import hidden_states
from litebert.tasks.text import TextInput

SHORTEST, LONGEST = 8, 60  # tokens of a sentence that is looked at
HIDDEN = 0.15  # of its tokens
NEAR = 0.5  # share of the pairs that are neighbours; the others are one sentence twice
TEMPERATURE = 0.1
COMMON = {"all tokens alike": None, "rare tokens first": 1e-3, "rare tokens far first": 1e-4}
"""How frequent a token is that counts half as much as a rare one."""
WARMUP = 0.1
AT_ONCE = {"cuda": 1024, "cpu": 32}  # sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, help="what litebert prepare wrote")
    parser.add_argument("--sts", type=Path, required=True, help="a folder with train.tsv and dev.tsv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=100_000, help="neighbouring sentences to read")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=1024, help="pairs")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256], help="of whitening maps to try beside")
    parser.add_argument("--half", action="store_true", help="save weights in bfloat16")
    options = parser.parse_args()
    model = litebert.load(options.model).to(pick_device("auto"))
    model.bf16, model.sentence_map = has_bfloat16(model.device), None
    if options.pairs < 2 * model.config.hidden_size:
        parser.error(f"--pairs {options.pairs}: give {2 * model.config.hidden_size} or more")
    if min(options.steps, options.batch_size - 1) < 1:
        parser.error("--steps must be 1 or more, --batch-size 2 or more")
    train = Regress.read(options.sts / "train.tsv")
    tenth = random.Random(0).sample(train, len(train) // 10)
    pairs = pairs_of(Shards(options.data), options.pairs)
    firsts, seconds = ([pair[side] for pair in pairs] for side in (0, 1))
    counts = counts_of(model, firsts)
    means = [read(model, texts, seed, counts) for seed, texts in enumerate((firsts, firsts, seconds))]
    maps: dict[str, SentenceMap] = {}
    for name, tokens in counts.items():
        once, again, after = (one.pop(name) for one in means)
        found = {"no map": SentenceMap.plain(once.shape[1])}
        found |= {f"whitened, {size}": whitened(once, size) for size in options.sizes if size <= once.shape[1]}
        found["learned"] = learned(once, again, after, options)
        maps |= {
            f"{name}, {kind}": replace(one, tokens=None if (tokens == 1).all() else tokens)
            for kind, one in found.items()
        }
    chosen = choose(model, maps, tenth)
    Model(model.to("cpu").albert, model.tokenizer, model.task, model.max_length, chosen).save(
        options.out, half=options.half
    )
    saved = litebert.load(options.out).to(pick_device("auto"))
    for what, some in (("the tenth", tenth), ("the development pairs", Regress.read(options.sts / "dev.tsv"))):
        print(f"saved: Spearman {correlation(saved, saved.sentence_map, some):.4f} on {what}")


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


def counts_of(model: Model, texts: list[str]) -> dict[str, np.ndarray]:
    """(V,) What each token counts, to four digits, by the name of the way."""
    frequency = token_frequency(model, texts).numpy()[: model.tokenizer.vocab_size]
    exact = {name: np.ones_like(frequency) if at is None else at / (at + frequency) for name, at in COMMON.items()}
    return {name: np.array([f"{count:.4g}" for count in counts], np.float32) for name, counts in exact.items()}


@torch.inference_mode()
def read(model: Model, texts: list[str], seed: int, counts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """(N, H) means over tokens, some of which are hidden, for each way of counting them."""
    generator, shape = torch.Generator().manual_seed(seed), (len(texts), model.config.hidden_size)
    found = {name: np.empty(shape, np.float32) for name in counts}
    weights = {name: torch.from_numpy(tokens).to(model.device) for name, tokens in counts.items()}
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))  # texts of one length together
    size = AT_ONCE[model.device.type]
    model.albert.eval()
    for start in track(range(0, len(texts), size), "reading", console=Console(stderr=True)):
        some = order[start : start + size]
        batch = partly_hidden(model, [texts[number] for number in some], generator).to(model.device)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.bf16):
            states = hidden_states(model.encoder, batch)  # (n, L, H)
        for name, tokens in weights.items():
            found[name][some] = weighted_mean(states, tokens[batch.input_ids] * batch.real).cpu().numpy()
    return found


def partly_hidden(model: Model, texts: list[str], generator: torch.Generator) -> Batch:
    tokenizer = model.tokenizer
    encodings = tokenizer.encode(texts, max_length=model.max_length)
    batch = collate([Example([encoding]) for encoding in encodings], tokenizer.pad_id)
    special = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    hidden = (torch.rand(batch.input_ids.shape, generator=generator) < HIDDEN) & ~torch.isin(batch.input_ids, special)
    return replace(batch, input_ids=batch.input_ids.masked_fill(hidden, tokenizer.mask_id))


def learned(once: np.ndarray, again: np.ndarray, after: np.ndarray, options: argparse.Namespace) -> SentenceMap:
    """The map by which a sentence finds itself, or the one after it, among the others of a batch."""
    device, chance = pick_device("auto"), torch.Generator().manual_seed(0)
    one, same, near = (torch.from_numpy(means).to(device) for means in (once, again, after))
    middle, start = one.mean(0), half_white(once).to(device)
    weight, bias = (value.requires_grad_() for value in (start, -start @ middle))
    optimizer = torch.optim.AdamW([weight, bias], weight_decay=0.0)
    own = torch.arange(options.batch_size, device=device)
    for step in track(range(options.steps), "learning", console=Console(stderr=True)):
        share = (step + 0.5) / options.steps
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min(share / WARMUP, (1 - share) / (1 - WARMUP))
        chosen = torch.randint(len(one), (options.batch_size,), generator=chance).to(device)
        is_near = (torch.rand(options.batch_size, 1, generator=chance) < NEAR).to(device)
        left, right = one[chosen], torch.where(is_near, near[chosen], same[chosen])
        left, right = (F.normalize(means @ weight.T + bias, dim=1) for means in (left, right))
        alike = left @ right.T / TEMPERATURE  # (N, N)
        optimizer.zero_grad()
        (F.cross_entropy(alike, own) + F.cross_entropy(alike.T, own)).backward()
        optimizer.step()
    found = (alike.argmax(1) == own).float().mean().item()
    print(f"learned: at the end {found:.1%} found their own among {options.batch_size}")
    return SentenceMap(weight.detach().cpu().numpy(), bias.detach().cpu().numpy())


def half_white(means: np.ndarray) -> torch.Tensor:
    """(H, H) after which strong directions are still stronger than weak ones, by a square root."""
    spread, directions = np.linalg.eigh(np.cov(means.T))
    scale = np.maximum(spread, 1e-6 * spread.max()) ** -0.25
    return torch.from_numpy((directions * scale @ directions.T).astype(np.float32))


def choose(model: Model, maps: dict[str, SentenceMap], tenth: list[TextInput]) -> SentenceMap:
    found = {name: correlation(model, after, tenth) for name, after in maps.items()}
    for name, value in found.items():
        print(f"{name}: Spearman {value:.4f} on a tenth of the training pairs")
    best = max(found, key=lambda name: found[name])
    print(f"taken: {best}")
    return maps[best]


def correlation(model: Model, after: SentenceMap | None, pairs: list[TextInput]) -> float:
    """Between cosines and what people said."""
    model.sentence_map = after
    left, right = (model.embed([getattr(pair, side) for pair in pairs]) for side in ("text", "text_b"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return float(spearmanr(cosines, [pair.label for pair in pairs]).statistic)


if __name__ == "__main__":
    main()
