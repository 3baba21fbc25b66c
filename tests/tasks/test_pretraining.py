"""The pre-training objective, and what happens to a model that grows."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy  # type: ignore[import-untyped]
from torch import Tensor

from litebert.data.pretraining import PretrainingBatch, PretrainingData, TrainingStage
from litebert.data.segments import SentenceObjective
from litebert.data.shards import TokenStream
from litebert.inference import Model
from litebert.model import Albert, AlbertConfig, preset, pretraining_heads
from litebert.model.config import Sharing
from litebert.tasks.pretraining import (
    PretrainingObjective,
    extrapolate,
    flops_per_token,
    grow_positions,
    grow_vocabulary,
    stack_layers,
    unigram_entropy,
)
from litebert.tokenizer import Tokenizer
from tests.data.counting import corpus_of, prose

LENGTH = 32


@pytest.fixture(scope="module")
def data(tokenizer: Tokenizer) -> PretrainingData:
    return data_of(tokenizer)


def data_of(tokenizer: Tokenizer, sentences: SentenceObjective = "order") -> PretrainingData:
    """Batches of a corpus whose ids the model knows."""
    stream = corpus_of(prose(60, longest=10)).stream
    stream = TokenStream([10 + ids * 7919 % (tokenizer.vocab_size - 10) for ids in stream.ids], stream.bits)
    return PretrainingData(stream, tokenizer, [TrainingStage(0, 16, LENGTH)], seed=0, sentences=sentences)


def figures(objective: PretrainingObjective, batches: list[PretrainingBatch], depth: int = 3) -> dict[str, Tensor]:
    """Summed over the parts, after the gradients were, too."""
    masked = torch.tensor(float(sum(len(batch.labels) for batch in batches)))
    paired = torch.tensor(float(sum(len(batch.cls_positions) for batch in batches))).clamp(min=1)
    objective.zero_grad()
    total: dict[str, Tensor] = {}
    for batch in batches:
        part = objective(batch, depth, LENGTH, masked, paired)
        part["loss"].backward()
        total = {name: total.get(name, torch.zeros(())) + value.detach() for name, value in part.items()}
    return total


def gradients(objective: PretrainingObjective) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}


def test_the_loss_is_the_cross_entropy_of_the_full_logits(model: Model, data: PretrainingData) -> None:
    batch = data.batch(0)
    found = figures(PretrainingObjective(model.albert), [batch])
    encoder, heads = model.albert.encoder, model.albert.heads
    hidden = []
    at = 0
    for length in batch.lengths.tolist():  # one sequence at a time, by the padded way in
        own = slice(at, at + length)
        hidden.append(encoder(batch.input_ids[None, own], None, batch.token_type_ids[None, own])[0])
        at += length
    states = torch.cat(hidden)
    logits = heads["mlm"](states, encoder.word_embeddings.weight)  # (T, V)
    targets = torch.full((len(states),), -100)
    targets[batch.masked_positions] = batch.labels
    order = heads["order"](encoder.pool(states[batch.cls_positions]))
    mlm_loss, order_loss = F.cross_entropy(logits, targets), F.cross_entropy(order, batch.swapped)
    assert found["mlm_loss"].item() == pytest.approx(mlm_loss.item(), abs=1e-5)
    assert found["loss"].item() == pytest.approx((mlm_loss + order_loss).item(), abs=1e-5)
    right = (logits.argmax(-1) == targets)[batch.masked_positions].float().mean()
    assert found["mlm_accuracy"].item() == pytest.approx(right.item())
    assert found["order_accuracy"].item() == pytest.approx((order.argmax(-1) == batch.swapped).float().mean().item())


@pytest.mark.parametrize("parts", [2, 3, 8, 20])  # of 16 rows: some of 20 parts are empty
def test_the_figures_and_gradients_of_micro_batches_add_up(model: Model, data: PretrainingData, parts: int) -> None:
    objective = PretrainingObjective(model.albert)
    whole, wanted = figures(objective, [data.batch(1)]), gradients(objective)
    summed = figures(objective, [data.batch(1, part, parts) for part in range(parts)])
    torch.testing.assert_close(summed, whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients(objective), wanted, atol=1e-5, rtol=1e-5)


def test_the_weight_of_the_order_changes_the_loss_and_nothing_else(model: Model, data: PretrainingData) -> None:
    none, one, two = (figures(PretrainingObjective(model.albert, weight), [data.batch(0)]) for weight in (0, 1, 2))
    assert none["loss"] == none["mlm_loss"] == two["mlm_loss"]
    assert one["loss"] > none["loss"]
    assert (two["loss"] - none["loss"]).item() == pytest.approx(2 * (one["loss"] - none["loss"]).item(), rel=1e-4)


def test_without_pairs_the_loss_is_that_of_the_tokens(model: Model, tokenizer: Tokenizer) -> None:
    found = figures(PretrainingObjective(model.albert), [data_of(tokenizer, "none").batch(0)])
    assert found["loss"] == found["mlm_loss"] > 0
    assert found["order_accuracy"] == 0


@pytest.mark.parametrize("sentences", ["order", "none"])
def test_sizes_that_come_again_change_no_figure_and_no_gradient(
    model: Model, tokenizer: Tokenizer, sentences: SentenceObjective
) -> None:
    data, objective, sizes = data_of(tokenizer, sentences), PretrainingObjective(model.albert), set()
    for step in range(4):
        batch = data.batch(step)
        wanted, slopes = figures(objective, [batch]), gradients(objective)
        rounded = batch.padded_to_buckets(LENGTH, tokenizer.pad_id)
        more = len(rounded.input_ids) - len(batch.input_ids)
        assert rounded.padding == batch.padding + more
        assert rounded.lengths.sum() == len(rounded.input_ids)
        assert rounded.lengths.max() <= LENGTH
        sizes |= {len(tensor) % 8 for tensor in rounded.tensors().values()}
        objective.zero_grad()
        masked, paired = (torch.tensor(float(max(1, len(some)))) for some in (batch.labels, batch.cls_positions))
        found = objective(rounded, 3, LENGTH, masked, paired)
        found["loss"].backward()
        torch.testing.assert_close({name: value.detach() for name, value in found.items()}, wanted)
        torch.testing.assert_close(gradients(objective), slopes)
    assert sizes == {0}


def test_padding_at_the_end_changes_nothing(model: Model, data: PretrainingData) -> None:
    batch = next(batch for batch in map(data.batch, range(20)) if batch.padding)
    size = len(batch.input_ids) - batch.padding
    bare = replace(
        batch,
        input_ids=batch.input_ids[:size],
        token_type_ids=batch.token_type_ids[:size],
        lengths=batch.lengths[:-1],
        padding=0,
    )
    objective = PretrainingObjective(model.albert)
    torch.testing.assert_close(figures(objective, [batch]), figures(objective, [bare]), atol=1e-6, rtol=1e-6)


def test_depth_changes_the_loss(model: Model, data: PretrainingData) -> None:
    shallow, deep = (figures(PretrainingObjective(model.albert), [data.batch(0)], depth) for depth in (1, 3))
    assert shallow["loss"] != deep["loss"]


def trained(config: AlbertConfig, data: PretrainingData, depth: int) -> tuple[Albert, torch.optim.Optimizer]:
    """A model after two steps at a depth, so that its optimizer remembers something."""
    torch.manual_seed(0)
    albert = Albert(config, pretraining_heads(config))
    optimizer = torch.optim.AdamW(albert.parameters(), lr=0.01)
    for step in range(2):
        figures(PretrainingObjective(albert), [data.batch(step)], depth)
        optimizer.step()
    return albert, optimizer


@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("sharing", ["none", "attention", "ffn"])
def test_new_layers_are_copies_of_the_old_with_the_optimizers_memory(
    tiny_config: AlbertConfig, data: PretrainingData, sharing: Sharing, inner: int
) -> None:
    config = replace(tiny_config, num_hidden_layers=5, sharing=sharing, inner_group_num=inner)
    albert, optimizer = trained(config, data, depth=2)
    before = copy.deepcopy(albert.state_dict())
    stack_layers(albert, optimizer, 2, 5)
    for half in ("attention", "ffn"):
        blocks = getattr(albert.encoder, half)
        if config.shares(half):
            assert len(blocks) == inner
            continue
        for number, block in enumerate(blocks):
            source = number % (2 * inner)
            for name, parameter in block.named_parameters():
                assert torch.equal(parameter, before[f"encoder.{half}.{source}.{name}"])
                old, new = (optimizer.state[p] for p in (blocks[source].get_parameter(name), parameter))
                assert old.keys() == new.keys() >= {"exp_avg", "exp_avg_sq", "step"}
                assert all(torch.equal(old[key], new[key]) for key in old)
                assert number < 2 * inner or old["exp_avg"] is not new["exp_avg"]
    others = {name for name in before if ".attention." not in name and ".ffn." not in name}
    assert all(torch.equal(before[name], albert.state_dict()[name]) for name in others)


def test_a_new_group_is_a_copy_of_the_old(tiny_config: AlbertConfig, data: PretrainingData) -> None:
    config = replace(tiny_config, num_hidden_layers=4, num_hidden_groups=2)
    albert, optimizer = trained(config, data, depth=2)
    stack_layers(albert, optimizer, 2, 4)
    first, second = albert.encoder.attention
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize(("sharing", "groups", "before"), [("all", 1, 2), ("all", 2, 3), ("none", 1, 4)])
def test_nothing_is_copied_where_no_layer_is_new(
    tiny_config: AlbertConfig, data: PretrainingData, sharing: Sharing, groups: int, before: int
) -> None:
    config = replace(tiny_config, num_hidden_layers=4, sharing=sharing, num_hidden_groups=groups)
    albert, optimizer = trained(config, data, depth=before)
    weights, memory = copy.deepcopy(albert.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
    stack_layers(albert, optimizer, before, 4)
    torch.testing.assert_close(dict(albert.state_dict()), dict(weights), atol=0, rtol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], memory, atol=0, rtol=0)


def test_training_goes_on_after_new_layers(tiny_config: AlbertConfig, data: PretrainingData) -> None:
    config = replace(tiny_config, num_hidden_layers=4, sharing="none")
    albert, optimizer = trained(config, data, depth=2)
    stack_layers(albert, optimizer, 2, 4)
    figures(PretrainingObjective(albert), [data.batch(3)], depth=4)
    optimizer.step()
    old, new = (albert.encoder.ffn[layer].get_parameter("widen.weight") for layer in (0, 2))
    assert not torch.equal(old, new)  # the copies have parted


def test_a_larger_vocabulary_scores_old_words_as_before(model: Model, data: PretrainingData) -> None:
    batch, old = data.batch(0), model.albert.config.vocab_size
    grown = grow_vocabulary(model.albert, old + 9).eval()

    def logits(albert: Albert) -> Tensor:
        encoder = albert.encoder
        hidden = encoder.packed(batch.input_ids, batch.lengths, batch.token_type_ids)
        return albert.heads["mlm"](hidden, encoder.word_embeddings.weight)

    with torch.no_grad():
        before, after = logits(model.albert), logits(grown)
    assert grown.config.vocab_size == after.shape[1] == old + 9
    torch.testing.assert_close(after[:, :old], before)
    assert (after[:, old:] <= before.max(dim=1, keepdim=True).values).all()  # nobody expects a new word yet


def walk_of(steps: int) -> Tensor:
    """Three turning pairs somewhere in 32 directions, as trained positions are."""
    frequencies, time = torch.tensor([0.05, 0.6, 1.3]), torch.arange(steps)[:, None]
    circles = torch.cat([(time * frequencies).cos(), (time * frequencies).sin()], dim=1)
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(32, 6, generator=generator)).Q.T
    return circles @ directions + torch.randn(32, generator=generator)


def test_a_walk_that_turns_goes_on_turning() -> None:
    walk = walk_of(300)
    noise = 0.02 * torch.randn(100, 32, generator=torch.Generator().manual_seed(1))
    close = extrapolate(walk[:100] + noise, 200).float()
    assert (close - walk[100:]).norm() < 0.3 * (walk[100:] - walk.mean(0)).norm()
    assert close.norm(dim=1).mean() == pytest.approx(walk.norm(dim=1).mean().item(), rel=0.1)  # no shorter on the way


@pytest.mark.parametrize("cut", [2, 4])
def test_positions_that_were_never_trained_go_on_as_the_trained_ones(model: Model, cut: int) -> None:
    """Half of them are trained, and stay, though texts may have been cut shorter since."""
    encoder = copy.deepcopy(model.encoder)
    table, size = encoder.position_embeddings.weight, encoder.config.max_position_embeddings
    known, began = size // 2, table[size // 2 :].detach().norm(dim=1)
    with torch.no_grad():
        table[:known] = walk_of(known).repeat(1, -(-table.shape[1] // 32))[:, : table.shape[1]]
    trained = table.detach().clone()
    assert grow_positions(encoder, size // cut, size)
    edge = max(1, known // 32)
    torch.testing.assert_close(table[: known - edge], trained[: known - edge], atol=0, rtol=0)
    assert (table[known:].norm(dim=1) > 5 * began).all()
    assert torch.linalg.matrix_rank(table[known:], rtol=1e-3) > 2  # they differ
    assert not grow_positions(encoder, size // cut, size)  # once is enough
    assert not grow_positions(encoder, 4, 8)  # too few to tell


@pytest.mark.parametrize(("length", "mflop"), [(512, 570), (128, 528)])
def test_the_cost_of_a_token_is_the_one_known_for_base_less_what_is_left_out(length: int, mflop: float) -> None:
    left_out = 0.85 * 3 * 2 * 9 * 768**2 / 1e6  # tokens that are not masked skip nine of the last pass's matrices
    assert flops_per_token(preset("base"), 12, length, 0.15) / 1e6 == pytest.approx(mflop - left_out, rel=0.01)


def test_the_cost_of_a_token_grows_with_depth_length_and_masking() -> None:
    base = flops_per_token(preset("base"), 12, 128, 0.15)
    assert 0.45 * base < flops_per_token(preset("base"), 6, 128, 0.15) < 0.5 * base  # the last pass is the cheapest
    assert flops_per_token(preset("base"), 12, 256, 0.15) > base
    assert flops_per_token(preset("base"), 12, 128, 0.3) > base
    assert flops_per_token(preset("base", inner_group_num=2), 6, 128, 0.15) == pytest.approx(base)


def test_the_entropy_of_unigrams_is_that_of_their_shares() -> None:
    ids = np.random.default_rng(0).zipf(1.5, 5000).clip(max=300)
    expected = entropy(np.unique(ids, return_counts=True)[1])
    assert unigram_entropy([ids[:1000], ids[1000:]]) == pytest.approx(expected)
    assert unigram_entropy([np.arange(64)]) == pytest.approx(np.log(64))
    assert unigram_entropy([np.zeros(9, dtype=np.int64)]) == 0


def test_the_entropy_of_a_large_corpus_is_taken_from_the_front_of_each_shard() -> None:
    shards = [np.repeat([1, 2], 50), np.repeat([3, 4], 50)]
    assert unigram_entropy(shards, most=100) == pytest.approx(np.log(2))
