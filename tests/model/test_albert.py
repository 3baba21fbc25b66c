"""The encoder: sizes, sharing, layouts, depth and the optional parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from litebert.errors import ConfigError, DataError
from litebert.model import PRESETS, Albert, AlbertConfig, Encoder, preset, pretraining_heads
from litebert.model.attention import choose_attention
from litebert.model.layout import Dense
from litebert.train.optimizers import adamw


def count(config: AlbertConfig, heads: bool = False) -> int:
    with torch.device("meta"):
        model = Albert(config, pretraining_heads(config) if heads else None)
    return sum(p.numel() for p in model.parameters())


def encoder_of(config: AlbertConfig, seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    encoder = Encoder(config).eval()
    for part in (encoder.relative_bias, encoder.depth_embeddings and encoder.depth_embeddings.weight):
        if part is not None:
            torch.nn.init.normal_(part, std=0.5)  # they start at zero, where they would prove nothing
    return encoder


def padded_batch(config: AlbertConfig, lengths: tuple[int, ...] = (9, 4, 1)) -> tuple[Tensor, Tensor, Tensor]:
    """ids, mask and segments of a padded batch."""
    torch.manual_seed(1)
    ids = torch.randint(5, config.vocab_size, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids, mask, torch.randint(0, 2, ids.shape)


@pytest.mark.parametrize(
    ("name", "backbone", "with_heads"),
    [
        ("base", 11_683_584, 11_813_810),
        ("large", 17_683_968, 17_847_474),
        ("xlarge", 58_724_864, 59_021_490),
        ("xxlarge", 222_595_584, 223_158_450),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, backbone: int, with_heads: int) -> None:
    assert count(PRESETS[name]) == backbone
    assert count(PRESETS[name], heads=True) == with_heads


@pytest.mark.parametrize(("name", "millions"), [("tiny", 4.1), ("small", 4.7)])
def test_small_presets_have_the_size_of_the_chinese_models(name: str, millions: float) -> None:
    assert count(preset(name, vocab_size=21128)) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(
    ("embedding", "sharing", "millions"),
    [
        (128, "all", 12), (128, "attention", 64), (128, "ffn", 38), (128, "none", 89),
        (768, "all", 31), (768, "attention", 83), (768, "ffn", 57), (768, "none", 108),
    ],
)  # fmt: skip
def test_sharing_modes_have_the_paper_s_sizes(embedding: int, sharing: str, millions: int) -> None:
    assert abs(count(preset("base", embedding_size=embedding, sharing=sharing)) / 1e6 - millions) < 2


def test_a_shared_layer_is_one_tensor_in_memory_and_in_the_optimizer(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(replace(tiny_config, num_hidden_layers=12))
    memory = {p.untyped_storage().data_ptr() for _, p in encoder.named_parameters(remove_duplicate=False)}
    one_layer = encoder_of(replace(tiny_config, num_hidden_layers=1))
    assert len(memory) == len(list(encoder.named_parameters(remove_duplicate=False)))
    assert len(memory) == len(list(one_layer.parameters()))
    assert len(adamw(encoder, weight_decay=0.0).state_dict()["param_groups"][0]["params"]) == len(
        [p for p in one_layer.parameters() if p.dim() >= 2]
    )


def test_after_an_optimizer_step_all_depths_still_agree(tiny_config: AlbertConfig) -> None:
    """The trained model equals an untied one whose every layer holds the new weights."""
    encoder = encoder_of(tiny_config)
    ids, mask, segments = padded_batch(tiny_config)
    before = encoder(ids, mask, segments).detach()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=0.1)
    (encoder(ids, mask, segments) * torch.randn_like(before)).sum().backward()
    optimizer.step()
    untied = Encoder(replace(tiny_config, sharing="none")).eval()
    untied.load_state_dict(encoder.state_dict(), strict=False)
    for layer in range(3):
        untied.attention[layer].load_state_dict(encoder.attention[0].state_dict())
        untied.ffn[layer].load_state_dict(encoder.ffn[0].state_dict())
    after = encoder(ids, mask, segments)
    assert torch.equal(after, untied(ids, mask, segments))
    assert not torch.equal(after, before)


def test_layers_fall_into_groups_as_in_transformers() -> None:
    for layers in range(1, 49):
        for groups in range(1, layers + 1):
            config = AlbertConfig(num_hidden_layers=layers, num_hidden_groups=groups)
            ours = [config.group(layer) for layer in range(layers)]
            assert ours == [int(layer / (layers / groups)) for layer in range(layers)]
            assert set(ours) == set(range(groups)), "a group without a layer"


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
@pytest.mark.parametrize("groups", [1, 3])
def test_the_gradient_of_a_shared_weight_is_the_sum_over_its_uses(
    tiny_config: AlbertConfig, sharing: str, groups: int
) -> None:
    config = replace(tiny_config, sharing=sharing, num_hidden_groups=groups, num_hidden_layers=6)  # type: ignore[arg-type]
    tied = encoder_of(config)
    untied = encoder_of(replace(config, sharing="none"))
    states = tied.state_dict()
    for layer in range(6):
        for half in ("attention", "ffn"):
            source = getattr(tied, half)[config.block_at(half, layer, 0)]
            getattr(untied, half)[layer].load_state_dict(source.state_dict())
    rest = {name: value for name, value in states.items() if not name.startswith(("attention.", "ffn."))}
    untied.load_state_dict(rest, strict=False)
    ids, mask, segments = padded_batch(config)
    torch.testing.assert_close(tied(ids, mask, segments), untied(ids, mask, segments), rtol=0, atol=1e-6)
    for encoder in (tied, untied):
        encoder(ids, mask, segments).square().sum().backward()
    for half, name in (("attention", "qkv"), ("ffn", "widen")):
        for block in range(config.blocks_of(half)):  # type: ignore[arg-type]
            users = [layer for layer in range(6) if config.block_at(half, layer, 0) == block]  # type: ignore[arg-type]
            summed = sum(getattr(getattr(untied, half)[layer], name).weight.grad for layer in users)
            torch.testing.assert_close(
                getattr(getattr(tied, half)[block], name).weight.grad, summed, rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize(
    "changes",
    [{}, {"relative_attention_distance": 3}, {"inner_group_num": 2, "num_hidden_groups": 3}, {"sharing": "ffn"}],
    ids=["plain", "bias", "groups", "ffn"],
)
def test_sdpa_and_eager_agree_in_values_and_gradients(tiny_config: AlbertConfig, changes: dict[str, object]) -> None:
    config = replace(tiny_config, **changes)  # type: ignore[arg-type]
    encoder = encoder_of(config)
    ids, mask, segments = padded_batch(config)
    results = []
    for implementation in ("sdpa", "eager"):
        encoder.attention_implementation = implementation  # type: ignore[assignment]
        encoder.zero_grad()
        hidden = encoder(ids, mask, segments)
        (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
        results.append((hidden, {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}))
    (ours, our_gradients), (reference, gradients) = results
    assert (ours - reference).abs().max() <= 1e-5
    for name, gradient in gradients.items():
        assert (our_gradients[name] - gradient).norm() <= 1e-5 * gradient.norm().clamp_min(1.0), name


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("distance", [0, 2])
def test_packed_and_dense_agree_on_real_tokens(tiny_config: AlbertConfig, implementation: str, distance: int) -> None:
    config = replace(tiny_config, relative_attention_distance=distance)
    encoder = encoder_of(config)
    encoder.attention_implementation = implementation  # type: ignore[assignment]
    ids, mask, segments = padded_batch(config)
    dense = encoder(ids, mask, segments)[mask]
    packed = encoder.packed(ids[mask], mask.sum(1), segments[mask])
    assert packed.shape == (14, config.hidden_size)
    assert (dense - packed).abs().max() <= 1e-5
    gradients = []
    for hidden in (dense, packed):
        encoder.zero_grad()
        hidden.square().sum().backward()
        gradients.append(encoder.attention[0].qkv.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["forward", "hidden_states_at", "resume"])
def test_much_padding_is_left_out_of_all_but_attention_and_changes_nothing(tiny_config: AlbertConfig, way: str) -> None:
    encoder, (ids, mask, segments) = encoder_of(tiny_config), padded_batch(tiny_config)
    start = encoder.hidden_states_at([1], ids, mask, segments)[0].detach()
    ways = {
        "forward": lambda: encoder(ids, mask, segments),
        "hidden_states_at": lambda: encoder.hidden_states_at([0, 2], ids, mask, segments)[1],
        "resume": lambda: encoder.resume(start, mask, 1),
    }
    widened: list[int] = []
    encoder.ffn[0].register_forward_hook(lambda module, given, out: widened.append(len(out)))
    found = []
    for implementation in ("eager", "auto"):  # eager, which graphs are made with, computes padding too
        encoder.attention_implementation = implementation  # type: ignore[assignment]
        encoder.zero_grad()
        hidden = ways[way]() * mask[..., None]
        hidden.square().sum().backward()
        found.append((hidden.detach(), encoder.ffn[0].widen.weight.grad.clone()))
    assert set(widened) == {mask.numel(), int(mask.sum())}
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_padding_returns_zero_and_its_content_changes_nothing(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(tiny_config)
    ids, mask, segments = padded_batch(tiny_config)
    hidden = encoder(ids, mask, segments)
    assert hidden[~mask].abs().max() == 0
    other = encoder(ids.masked_fill(~mask, 7), mask, segments)
    assert torch.equal(hidden, other)


def test_padding_may_stand_anywhere_and_position_is_the_column(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(tiny_config)
    ids, _, segments = padded_batch(tiny_config, (6, 6))
    hole = torch.ones_like(ids, dtype=torch.bool)
    hole[:, 2] = False
    with_hole = encoder(ids, hole, segments)
    assert with_hole[:, 2].abs().max() == 0
    changed = ids.clone()
    changed[:, 2] = 9
    assert torch.equal(with_hole, encoder(changed, hole, segments))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_sequence_of_padding_only_gives_zeros_and_finite_gradients(
    tiny_config: AlbertConfig, implementation: str
) -> None:
    encoder = encoder_of(tiny_config)
    encoder.attention_implementation = implementation  # type: ignore[assignment]
    ids, mask, segments = padded_batch(tiny_config)
    mask[1] = False
    hidden = encoder(ids, mask, segments)
    hidden.square().sum().backward()
    assert hidden[1].abs().max() == 0
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "changes", [{}, {"inner_group_num": 2}, {"relative_attention_distance": 2}, {"sharing": "none"}], ids=str
)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_wanted_rows_and_their_gradients_are_those_of_a_whole_run(
    tiny_config: AlbertConfig, changes: dict[str, Any], checkpointing: bool, depth: int
) -> None:
    config = replace(tiny_config, num_hidden_layers=3, **changes)
    ids, mask, segments = padded_batch(config)
    rows = torch.tensor([0, 9, 18, 3, 12])  # the first of each sequence, and two others
    lengths = mask.sum(1)
    packed_rows = torch.tensor([0, 9, 13, 3, 12])

    def run(encoder: Encoder, wanted: bool, packed: bool) -> Tensor:
        encoder.gradient_checkpointing = checkpointing
        if packed:
            given = {"rows": packed_rows} if wanted else {}
            found = encoder.packed(ids[mask], lengths, segments[mask], depth=depth, **given)
            return found if wanted else found[packed_rows]
        given = {"rows": rows} if wanted else {}
        found = encoder(ids, mask, segments, depth=depth, **given)
        return found if wanted else found.flatten(0, 1)[rows]

    for packed in (False, True):
        results = []
        for wanted in (False, True):
            encoder = encoder_of(config)
            found = run(encoder, wanted, packed)
            found.square().sum().backward()
            results.append((found, {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}))
        (expected, slopes), (found, own) = results
        torch.testing.assert_close(found, expected)
        assert own.keys() == slopes.keys()
        for name in own:
            torch.testing.assert_close(own[name], slopes[name], rtol=1e-4, atol=1e-5, msg=name)


def test_rows_that_nobody_wants_cost_the_last_pass_little(tiny_config: AlbertConfig) -> None:
    config = replace(tiny_config, num_hidden_layers=1)
    encoder, (ids, mask, _) = encoder_of(config), padded_batch(config)
    widened: list[int] = []
    encoder.ffn[0].register_forward_hook(lambda module, given, out: widened.append(len(out)))
    encoder(ids, mask)
    encoder(ids, mask, rows=torch.tensor([0, 9]))
    assert widened == [int(mask.sum()), 2]


@pytest.mark.parametrize("distance", [0, 3])
def test_bfloat16_on_a_cpu_is_as_exact_as_the_fused_kernel(tiny_config: AlbertConfig, distance: int) -> None:
    """Hidden states and gradients, against float32."""
    config = replace(tiny_config, relative_attention_distance=distance)
    ids, mask, segments = padded_batch(config, (40, 23, 7))

    def errors(implementation: str) -> tuple[float, float]:
        results = []
        for half in (False, True):
            encoder = encoder_of(config)
            encoder.attention_implementation = implementation if half else "sdpa"  # type: ignore[assignment]
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                hidden = encoder(ids, mask, segments)
            hidden.float().square().sum().backward()
            slopes = torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None])
            results.append((hidden.detach().float(), slopes))
        (exact, exact_slopes), (rounded, rounded_slopes) = results
        return tuple(float((a - b).norm() / a.norm()) for a, b in ((exact, rounded), (exact_slopes, rounded_slopes)))  # type: ignore[return-value]

    fused, own = errors("sdpa"), errors("auto")
    assert choose_attention(torch.bfloat16, False, Dense(32, 256, None), None, 0.0) == "eager"
    assert choose_attention(torch.bfloat16, False, Dense(32, 512, None), None, 0.0) == "sdpa"  # it would take gigabytes
    for ours, theirs in zip(own, fused, strict=True):
        assert 0 < ours < 2 * theirs < 0.1


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_depth_runs_that_many_passes_of_the_shared_layer(tiny_config: AlbertConfig, depth: int) -> None:
    encoder = encoder_of(tiny_config)
    as_deep = Encoder(replace(tiny_config, num_hidden_layers=depth)).eval()
    as_deep.load_state_dict(encoder.state_dict())
    ids, mask, segments = padded_batch(tiny_config)
    assert torch.equal(encoder(ids, mask, segments, depth=depth), as_deep(ids, mask, segments))


@pytest.mark.parametrize(
    ("changes", "depth"),
    [({}, 0), ({"sharing": "none"}, 4), ({"num_hidden_groups": 3}, 4), ({"depth_embedding": True}, 4)],
)
def test_a_depth_that_does_not_exist_is_refused(
    tiny_config: AlbertConfig, changes: dict[str, object], depth: int
) -> None:
    encoder = Encoder(replace(tiny_config, **changes))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"depth={depth} must lie between 1 and 3"):
        encoder(torch.tensor([[5, 6]]), depth=depth)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_passes_can_go_on_from_what_is_kept(tiny_config: AlbertConfig, done: int) -> None:
    encoder = encoder_of(replace(tiny_config, depth_embedding=True, relative_attention_distance=2))
    ids, mask, segments = padded_batch(tiny_config)
    kept = encoder.hidden_states_at([done], ids, mask, segments)[0]
    last = encoder.resume(kept, mask, done).where(mask[..., None], 0.0)
    torch.testing.assert_close(last, encoder(ids, mask, segments))


def test_inputs_embeds_stand_in_for_words(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(tiny_config)
    ids, mask, segments = padded_batch(tiny_config)
    words = encoder.word_embeddings(ids)
    assert torch.equal(encoder(None, mask, segments, inputs_embeds=words), encoder(ids, mask, segments))
    with pytest.raises(DataError, match=r"inputs_embeds \(batch, length, 16\)"):
        encoder(inputs_embeds=torch.zeros(1, 2, 32))
    with pytest.raises(DataError, match="exactly one"):
        encoder(ids, inputs_embeds=words)


def test_relative_bias_is_added_to_the_scores_by_distance_and_head(tiny_config: AlbertConfig) -> None:
    config = replace(tiny_config, relative_attention_distance=2)
    encoder = encoder_of(config)
    bias = encoder.attention_bias(5)
    assert bias is not None
    assert bias.shape == (4, 5, 5)
    table = encoder.relative_bias
    assert table is not None
    for head in range(4):
        for query in range(5):
            for key in range(5):
                distance = max(-2, min(2, query - key))
                assert bias[head, query, key] == table[distance + 2, head]


@pytest.mark.parametrize("changes", [{"relative_attention_distance": 3}, {"depth_embedding": True}])
def test_optional_parts_start_as_no_change_and_then_change_the_result(
    tiny_config: AlbertConfig, changes: dict[str, object]
) -> None:
    plain = encoder_of(tiny_config)
    richer = Encoder(replace(tiny_config, **changes)).eval()  # type: ignore[arg-type]
    richer.load_state_dict(plain.state_dict(), strict=False)
    ids, mask, segments = padded_batch(tiny_config)
    torch.testing.assert_close(richer(ids, mask, segments), plain(ids, mask, segments), rtol=0, atol=1e-6)
    trained = encoder_of(replace(tiny_config, **changes))  # type: ignore[arg-type]
    trained.load_state_dict(plain.state_dict(), strict=False)
    assert (trained(ids, mask, segments) - plain(ids, mask, segments)).abs().max() > 1e-3


def test_optional_parts_cost_what_the_settings_say(tiny_config: AlbertConfig) -> None:
    plain = count(tiny_config)
    assert count(replace(tiny_config, relative_attention_distance=5)) - plain == 11 * 4
    assert count(replace(tiny_config, depth_embedding=True)) - plain == 3 * 32


def test_depth_embedding_tells_the_passes_apart(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(replace(tiny_config, depth_embedding=True))
    ids, mask, segments = padded_batch(tiny_config)
    before = encoder(ids, mask, segments, depth=2)
    assert encoder.depth_embeddings is not None
    with torch.no_grad():
        encoder.depth_embeddings.weight[2] += 1  # the third pass alone
    assert torch.equal(encoder(ids, mask, segments, depth=2), before)


def test_gradient_checkpointing_gives_the_same_gradients(tiny_config: AlbertConfig) -> None:
    config = replace(tiny_config, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    encoder = encoder_of(config).train()
    ids, mask, segments = padded_batch(config)
    gradients = []
    for checkpointing in (False, True):
        encoder.gradient_checkpointing = checkpointing
        encoder.zero_grad()
        torch.manual_seed(3)
        encoder(ids, mask, segments).square().sum().backward()
        gradients.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=1e-5, atol=1e-6)


def test_gradient_checkpointing_keeps_fewer_activations(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(replace(tiny_config, num_hidden_layers=12)).train()
    ids, mask, segments = padded_batch(tiny_config)
    saved = {}
    for checkpointing in (False, True):
        encoder.gradient_checkpointing = checkpointing
        numbers = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal numbers
            numbers += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            encoder(ids, mask, segments)
        saved[checkpointing] = numbers
    assert saved[True] < saved[False] / 4


def test_eager_attention_can_be_differentiated_twice(tiny_config: AlbertConfig) -> None:
    encoder = encoder_of(tiny_config)
    encoder.attention_implementation = "eager"
    ids, mask, segments = padded_batch(tiny_config)
    weight = encoder.attention[0].qkv.weight
    (first,) = torch.autograd.grad(encoder(ids, mask, segments).square().sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    assert second.abs().max() > 0


@pytest.mark.parametrize("setting", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_acts_in_training_only(tiny_config: AlbertConfig, setting: str) -> None:
    encoder = encoder_of(replace(tiny_config, **{setting: 0.5}))  # type: ignore[arg-type]
    ids, mask, segments = padded_batch(tiny_config)
    assert torch.equal(encoder(ids, mask, segments), encoder(ids, mask, segments))
    encoder.train()
    assert not torch.equal(encoder(ids, mask, segments), encoder(ids, mask, segments))


def test_the_mlm_head_scores_chosen_positions_as_it_would_score_all(tiny_config: AlbertConfig) -> None:
    torch.manual_seed(0)
    model = Albert(tiny_config, pretraining_heads(tiny_config)).eval()
    ids, mask, segments = padded_batch(tiny_config)
    hidden = model.encoder(ids, mask, segments)
    table = model.encoder.word_embeddings.weight
    everywhere = model.heads["mlm"](hidden, table)
    chosen = model.heads["mlm"](hidden.flatten(0, 1)[[1, 10]], table)
    torch.testing.assert_close(chosen, everywhere.flatten(0, 1)[[1, 10]], rtol=0, atol=1e-6)
    chosen.sum().backward()
    assert table.grad is not None  # tied: the table learns from the head


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 30}, "num_attention_heads=4 must divide hidden_size=30; try 3"),
        ({"hidden_act": "tanh"}, "hidden_act='tanh' must be one of gelu, gelu_new, relu, silu"),
        ({"sharing": "most"}, "sharing='most' must be one of all, attention, ffn, none"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 must be a whole number between 1 and 1,000"),
        ({"num_hidden_groups": 9}, "num_hidden_groups=9 must not exceed num_hidden_layers=3"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob=1.5 must be a number between 0 and 1"),
        ({"vocab_size": "many"}, "vocab_size='many' must be a whole number"),
        ({"pad_token_id": 5000}, "pad_token_id=5000 must be below vocab_size"),
    ],
)
def test_a_setting_out_of_range_names_value_rule_and_remedy(
    tiny_config: AlbertConfig, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(tiny_config, **changes)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_an_unknown_preset_or_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="preset='huge' must be one of tiny, small"):
        preset("huge")
    with pytest.raises(ConfigError, match="hiden_size: no such setting"):
        preset("base", hiden_size=3)


def test_a_sequence_longer_than_the_model_says_so(tiny_config: AlbertConfig) -> None:
    encoder = Encoder(tiny_config)
    with pytest.raises(DataError, match=r"65 tokens is longer than the model's 64"):
        encoder(torch.full((1, 65), 5))
    with pytest.raises(DataError, match=r"65 tokens is longer than the model's 64"):
        encoder.packed(torch.full((70,), 5), torch.tensor([5, 65]))
