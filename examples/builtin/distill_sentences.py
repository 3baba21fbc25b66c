"""Teach an ALBERT the sentence vectors of several teachers at once; their vocabulary and width may differ from its own.

  python examples/builtin/distill_sentences.py --texts texts/*.xz --out runs/sentences --seconds 1200 \\
      --teacher minilm,mean,1 --teacher bge,cls,1 --teacher e5,mean,1,query: --pairs tasks/glue/STS-B/dev.tsv

A teacher is FOLDER,POOLING,WEIGHT[,PREFIX]: a BERT with tokenizer.json and either model.safetensors or an int8
model.onnx, whose weights are dequantised. All teachers share one vocabulary. Their vectors are centred over all texts
and normalised, then weighted and laid side by side; the leading principal components of that are the target. So one
linear map of the mean of the student's tokens learns all teachers, its leading dimensions are usable alone
(Matryoshka), and nothing is dropped afterwards. The student learns at several numbers of passes at once: the layer is
shared, so the states after 3 and 6 of 12 passes come for free.

--tokens-only tokenises the texts, leaves the ids beside them, and ends.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sentence_teachers import Teacher, Tokens, check_vocabularies, targets_of, tokenise
from torch import Tensor, nn

import litebert
from litebert.builtin import DEFAULT, folder_of
from litebert.device import pick_device
from litebert.inference import Model
from litebert.model import Albert, Encoder
from litebert.model.backends.base import Passes
from litebert.model.layout import Packed
from litebert.model.sentence_head import SentenceMap
from litebert.tasks import Similarity
from litebert.train.optimizers import adamw

DEPTHS = {3: 0.3, 6: 1.0, 12: 1.0}
"""Numbers of passes after which vectors are learned, and the weight of each in the loss."""
DEEPEST = {6: 0.7, 12: 0.3}
"""How far a step goes, and how often; it learns at all depths up to there."""
MATRYOSHKA = 128
TEMPERATURE, CONTRAST = 0.05, 0.1
WARMUP_STEPS, CONSTANT = 300, 0.3
"""The rate is constant for this fraction of the time, then falls linearly to zero."""


def means_after(encoder: Encoder, ids: Tensor, lengths: Tensor, depths: Sequence[int], longest: int) -> list[Tensor]:
    """Means of the states after these numbers of passes, (B, H) each: passes of one shared layer are all alike."""
    layout = Packed.of(lengths, longest, len(ids))
    bias = encoder.attention_bias(layout.length)
    means, hidden, done = [], encoder.packed(ids, lengths, depth=depths[0], longest=longest), depths[0]
    for depth in depths:
        if depth > done:
            passes = Passes(0, depth - done, depth - done)
            hidden, done = encoder.backend(encoder, hidden, layout, passes, bias, None), depth
        total = hidden.new_zeros(len(lengths), hidden.shape[1], dtype=torch.float32)
        means.append(total.index_add(0, layout.sequence, hidden.float()) / lengths[:, None])
    return means


def loss_of(vectors: Tensor, targets: Tensor, gram: float) -> tuple[Tensor, Tensor]:  # (B, D) twice
    """Cosine, contrast against the targets of the batch, and the leading dimensions; and the mean cosine alone."""
    own, loss = torch.arange(len(vectors), device=vectors.device), vectors.new_zeros(())
    for size, weight in ((vectors.shape[1], 1.0), (min(MATRYOSHKA, vectors.shape[1]), 0.3)):
        left, right = F.normalize(vectors[:, :size], dim=1), F.normalize(targets[:, :size], dim=1)
        cosine = (left * right).sum(1).mean()
        contrast = F.cross_entropy(left @ right.T / TEMPERATURE, own)
        loss = loss + weight * (2 * (1 - cosine) + CONTRAST * contrast)
        if weight == 1.0:
            alone = cosine.detach()
            if gram:
                loss = loss + gram * (left @ left.T - right @ right.T).square().mean()
    return loss, alone


def learn(model: Model, head: nn.Linear, tokens: Tokens, targets: Tensor, options: argparse.Namespace) -> None:
    device, random, starts = model.device, np.random.default_rng(options.seed), tokens.starts
    optimizer = adamw(nn.ModuleList([model.encoder, head]), weight_decay=0.01, betas=(0.9, 0.98))
    start_time, shown, step, seen = time.perf_counter(), 0.0, 0, 0
    loss, cosines = torch.zeros(()), Printed()
    seconds = options.seconds - (start_time - options.start_time)
    for rows in shuffled(len(targets), options.batch_size, options.seed):
        used = time.perf_counter() - start_time
        share = max(used / seconds, step / options.steps)
        if share >= 1 or used - shown >= options.every:
            shown = used
            print(f"{used:.0f} s, step {step:,}, {seen / 1e6:.0f} M tokens, {seen / used:,.0f} tokens/s:", end=" ")
            print(f"loss {loss.item():.4f}, cosines {cosines}; {correlations(model, head, options.pairs)}", flush=True)
            save(model, head, options.out)
            if not loss.isfinite():
                raise SystemExit("the loss is not finite; take a lower --learning-rate")
            if share >= 1:
                return
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min((step + 1) / WARMUP_STEPS, 1, (1 - share) / (1 - CONSTANT))
        deepest = random.choice(list(DEEPEST), p=list(DEEPEST.values()))
        weights = {depth: weight for depth, weight in DEPTHS.items() if depth <= deepest}
        ids, lengths = tokens.packed(starts, rows)
        goal = targets[rows.to(device, non_blocking=True)].float()
        model.albert.train()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            means = means_after(model.encoder, ids, lengths, list(weights), options.max_length)
        results = [loss_of(head(mean), goal, options.gram) for mean in means]
        losses, cosines = torch.stack([loss for loss, _ in results]), Printed([cosine for _, cosine in results])
        loss = (losses * losses.new_tensor(list(weights.values()))).sum() / sum(weights.values())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([weight for group in optimizer.param_groups for weight in group["params"]], 1.0)
        optimizer.step()
        step, seen = step + 1, seen + len(ids)


class Printed(list[Tensor]):
    """Numbers that are read from the device only when they are printed."""

    def __str__(self) -> str:
        return " ".join(f"{value.item():.4f}" for value in self)


def shuffled(count: int, size: int, seed: int) -> Iterator[Tensor]:
    """Rows of batches, epoch after epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator)[: max(count // size, 1) * size].split(size)


def correlations(model: Model, head: nn.Linear, file: Path | None) -> str:
    """Spearman's, between cosines and people's scores, after each number of passes."""
    if file is None:
        return ""
    pairs, scores = Similarity.read(file), []
    reader = Model(model.albert, model.tokenizer, None, model.max_length, sentence_map=map_of(head))
    reader.bf16 = model.device.type == "cuda"
    for depth in DEPTHS:
        reader.passes = depth
        vectors = reader.embed([text for pair in pairs for text in pair.texts])
        scores.append(spearmanr((vectors[::2] * vectors[1::2]).sum(1), [pair.label for pair in pairs])[0])
    model.encoder.depth = None
    return "Spearman " + " ".join(f"{value:.4f}" for value in scores)


def head_of(model: Model, dimensions: int) -> nn.Linear:
    """A new map, or that of a model of an earlier run, which goes on with the targets.safetensors of that run."""
    head, made = nn.Linear(model.config.hidden_size, dimensions), model.sentence_map
    if made is not None and made.of_length_one and made.weight.shape == head.weight.shape:
        head.load_state_dict({"weight": torch.from_numpy(made.weight), "bias": torch.from_numpy(made.bias)})
    return head


def map_of(head: nn.Linear) -> SentenceMap:
    weight, bias = (value.detach().float().cpu().numpy() for value in (head.weight, head.bias))
    return SentenceMap(weight, bias, of_length_one=True)


def save(model: Model, head: nn.Linear, out: Path) -> None:
    """A folder of the weights as they are now, in bfloat16."""
    config = replace(model.config, num_hidden_layers=6)
    with torch.random.fork_rng([]):
        albert = Albert(config, {})
    albert.encoder.load_state_dict(model.encoder.state_dict())
    Model(albert, model.tokenizer, sentence_map=map_of(head)).save(out / "model", half=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="files of short_texts.py")
    parser.add_argument("--teacher", type=Teacher.parse, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, help="pairs with scores, to see how it goes: STS-B's dev.tsv")
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--gram", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for everything, loading included")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between looks at --pairs and checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens-only", action="store_true")
    options = parser.parse_args(namespace=argparse.Namespace(start_time=time.perf_counter()))
    model = litebert.load(options.model)
    folders = [folder_of(options.model), options.teacher[0].folder]
    check_vocabularies(options.teacher)
    parts = [tokenise(file, folders, options.max_length) for file in options.texts]
    if options.tokens_only:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    device = pick_device("auto")
    own, theirs = (Tokens.joined([part[which] for part in parts], device) for which in (0, 1))
    targets = targets_of(options.teacher, theirs, options.dimensions, options.out / "targets.safetensors")
    torch.manual_seed(options.seed)
    head = head_of(model, options.dimensions).to(device)
    model = Model(model.to(device).albert.with_heads({}), model.tokenizer, None, options.max_length)
    model.encoder.requires_grad_(True)
    learn(model, head, own, targets, options)


if __name__ == "__main__":
    main()
