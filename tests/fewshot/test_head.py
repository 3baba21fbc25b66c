"""What a text looks like to a head that is solved for."""

from __future__ import annotations

import math

import pytest
import torch

from litebert.data.batches import pad
from litebert.fewshot.feature_sets import token_ngrams
from litebert.fewshot.head import (
    NGRAM_BUCKETS,
    OVERLAP_FEATURES,
    SIF_CONSTANT,
    TOKEN_BUCKETS,
    FeatureView,
    FewShotHead,
    concatenate,
    hash_ngrams,
    hash_tokens,
    kernel,
    mean_states,
    ngram_features,
    ngram_idf,
    token_features,
)
from litebert.inference import Model

TEXTS = ["the rain in the north", "eggs", "butter and eggs for breakfast in the rain"]


@torch.no_grad()
def test_states_after_some_passes_are_those_of_a_shallower_model(model: Model) -> None:
    batch = pad(model.tokenizer.encode(TEXTS), model.tokenizer.pad_id)
    layers = model.config.num_hidden_layers
    found = model.encoder.hidden_states_at([layers, 1], batch.input_ids, batch.real, batch.token_type_ids)
    for depth, states in zip((layers, 1), found, strict=True):
        expected = model.encoder(batch.input_ids, batch.real, batch.token_type_ids, depth=depth)
        torch.testing.assert_close(states[batch.real], expected[batch.real])


@torch.no_grad()
def test_rare_tokens_count_more_and_padding_not_at_all(model: Model) -> None:
    frequency = torch.full((model.config.vocab_size,), SIF_CONSTANT)
    encodings = model.tokenizer.encode(TEXTS)
    batch = pad(encodings, model.tokenizer.pad_id)
    means = mean_states(model.encoder, [1], ["whole"], frequency, batch.input_ids, batch.real, batch.token_type_ids)
    alone = pad(encodings[1:2], model.tokenizer.pad_id)
    single = mean_states(model.encoder, [1], ["whole"], frequency, alone.input_ids, alone.real, alone.token_type_ids)
    torch.testing.assert_close(means[1:2], single)
    states = model.encoder(alone.input_ids, depth=1)
    torch.testing.assert_close(single[:, 0], states.mean(1))
    frequency[alone.input_ids[0, 1:]] = 1.0  # so that only the first is rare
    rare = mean_states(model.encoder, [1], ["whole"], frequency, alone.input_ids, alone.real, alone.token_type_ids)
    assert (rare[0, 0] - states[0, 0]).norm() < 0.02 * (single[0, 0] - states[0, 0]).norm()


def test_tokens_and_their_neighbours_are_told_apart_whatever_the_padding() -> None:
    frequency = torch.full((50,), 0.01)
    ids, real = torch.tensor([[7, 8, 9, 0], [8, 7, 9, 0], [7, 8, 9, 30]]), torch.ones(3, 4, dtype=torch.bool)
    real[:2, 3] = False
    found = hash_tokens(ids, real, frequency)
    assert found.shape == (3, TOKEN_BUCKETS)
    torch.testing.assert_close(found[0], hash_tokens(ids[:1, :3], real[:1, :3], frequency)[0])
    assert (found != 0).sum(1).tolist() == [5, 5, 7]  # three tokens and two pairs; four and three
    cosine = torch.nn.functional.cosine_similarity(found[0], found[1], dim=0)
    assert 0.5 < cosine < 0.7  # the same tokens in another order


def test_words_that_are_spelled_alike_look_alike() -> None:
    words = ["", " card", " cards", " rain", "a", " " + "x" * 50]
    spelling, frequency = hash_ngrams(words), torch.tensor([0.05, 0.001, 0.001, 0.01, 0.1, 1e-5])
    runs = (spelling < NGRAM_BUCKETS).sum(1).tolist()
    assert runs == [0, 4 + 3 + 2, 5 + 4 + 3, 4 + 3 + 2, 0, 19 + 18 + 17]
    assert len(set(spelling[5].tolist())) == 6  # " x", " xx", " xxx", "xx", "xxx", "xxxx"
    idf = ngram_idf(spelling, frequency)
    torch.testing.assert_close(idf[spelling[1, 0].long()], -torch.tensor(0.002).log())  # " c", in two of them
    torch.testing.assert_close(idf[spelling[3, 0].long()], -torch.tensor(0.01).log())
    ids, real = torch.tensor([[1, 0], [2, 0], [3, 0], [4, 5]]), torch.tensor([[1, 1], [1, 0], [1, 0], [1, 0]]).bool()
    found = ngram_features(ids, real, spelling, idf)
    assert found.shape == (4, NGRAM_BUCKETS)
    assert found[3].norm() == 0  # one character, and padding
    expected = torch.zeros(NGRAM_BUCKETS)
    for place in spelling[1][spelling[1] < NGRAM_BUCKETS].long():
        expected[place] += idf[place]
    torch.testing.assert_close(found[0], expected)
    card, cards, rain = torch.nn.functional.normalize(found[:3], dim=1)
    assert card @ cards > 0.7
    assert card @ rain < 0.1


def test_all_sides_have_the_same_say() -> None:
    means, tokens = torch.randn(3, 2, 8) * torch.tensor([1.0, 100.0])[:, None], torch.randn(3, TOKEN_BUCKETS)
    rows = concatenate(means, tokens)
    assert rows.shape == (3, 16 + TOKEN_BUCKETS)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))
    for side in (rows[:, :8], rows[:, 8:16], rows[:, 16:]):
        torch.testing.assert_close(side.norm(dim=1), torch.full((3,), 3**-0.5))


@torch.no_grad()
def test_a_pair_is_seen_as_a_whole_and_by_what_lies_between(model: Model) -> None:
    frequency = torch.full((model.config.vocab_size,), SIF_CONSTANT)
    batch = pad(model.tokenizer.encode(TEXTS, TEXTS[::-1]), model.tokenizer.pad_id)
    given = batch.input_ids, batch.real, batch.token_type_ids
    whole, apart = mean_states(model.encoder, [1], ["whole", "apart"], frequency, *given).unbind(1)
    states = model.encoder(*given, depth=1)
    for row in range(len(TEXTS)):
        real, second = states[row][batch.real[row]], batch.token_type_ids[row][batch.real[row]] == 1
        torch.testing.assert_close(whole[row], real.mean(0))
        torch.testing.assert_close(apart[row], (real[~second].mean(0) - real[second].mean(0)).abs())
    shared = token_features(*given, frequency, OVERLAP_FEATURES)
    torch.testing.assert_close(shared.norm(dim=1), torch.ones(3))
    assert shared[1, 0] > 0.8 > shared[0, 0]  # but for [CLS] it says the same twice


@pytest.mark.parametrize(
    ("depths", "pieces", "views", "bent", "characters"),
    [((1,), TOKEN_BUCKETS, ("whole",), True, True), ((1, 2), 0, ("whole",), False, False),
     ((), TOKEN_BUCKETS, ("whole",), False, True), ((1,), TOKEN_BUCKETS, ("whole",), False, False),
     ((1,), OVERLAP_FEATURES, ("whole", "apart"), True, False)],
)  # fmt: skip
@torch.no_grad()
def test_a_head_reads_what_it_scores(
    model: Model, depths: tuple[int, ...], pieces: int, views: tuple[FeatureView, ...], bent: bool, characters: bool
) -> None:
    config = model.config
    shape = config.hidden_size, config.vocab_size, depths, pieces, 4, views, bent
    spelling = token_ngrams(model) if characters else None
    head = FewShotHead(*shape, token_ngrams=spelling)
    if spelling is not None:
        head.ngram_idf.copy_(ngram_idf(spelling, head.frequency))
    head.centre.normal_(std=0.1)
    others = None if len(views) == 1 else TEXTS[1:] + TEXTS[:1]
    batch = pad(model.tokenizer.encode(TEXTS, others), model.tokenizer.pad_id)
    means, *writing = head.features(model.encoder, batch.input_ids, batch.real, batch.token_type_ids)
    rows, weights = concatenate(means - head.centre, *writing), torch.randn(3, 4)
    head.set_examples(rows, weights)
    head.check()
    scores = head(means, *writing)
    alike = torch.expm1(rows @ rows.T) / (math.e - 1) if bent else rows @ rows.T
    torch.testing.assert_close(scores, alike @ weights, atol=1e-5, rtol=1e-5)
    assert len({round(value, 4) for value in scores[:, 0].tolist()}) == 3
    again = FewShotHead(*shape, 3, len(head.values), spelling)
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(means, *writing), scores, atol=0, rtol=0)


def test_a_head_that_points_at_nothing_is_refused() -> None:
    wrong = [
        ("example_index", 2),
        ("example_index", 1),
        ("feature_index", TOKEN_BUCKETS),
        ("feature_index", -1),
        ("values", math.nan),
        ("weights", math.inf),
    ]
    for name, value in [*wrong, ("frequency", 0.0), ("rows", 9.0), ("ngram_idf", -1.0)]:
        spelling = torch.zeros(10, 1, dtype=torch.int16) if name == "ngram_idf" else None
        head = FewShotHead(4, 10, (1,), TOKEN_BUCKETS, 3, num_examples=2, num_nonzero=5, token_ngrams=spelling)
        head.check()
        getattr(head, name)[0] = value
        with pytest.raises(ValueError, match=r"is not|is below|between"):
            head.check()


def test_likeness_is_between_nothing_and_equal() -> None:
    cosines = torch.tensor([0.0, 0.5, 1.0])
    assert kernel(cosines, exponential=False) is cosines
    found = kernel(cosines, exponential=True)
    assert found[0] == 0
    assert 0.3 < found[1] < 0.45
    torch.testing.assert_close(found[2], torch.tensor(1.0))
