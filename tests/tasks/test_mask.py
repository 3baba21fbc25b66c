"""Filling gaps, and how likely texts are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from litebert.errors import ConfigError, DataError
from litebert.inference import Model
from litebert.model import Albert
from litebert.tasks.mask import Fill, Mask, MaskInput, MaskOutput, fill_text, mask_random_tokens
from litebert.tokenizer import Tokenizer, train_wordpiece
from tests.conftest import PROSE, peer

GAPS = "The [MASK] opened at [MASK], and by [MASK] the shelves were [MASK] empty."


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return train_wordpiece([*PROSE, *["今天天气很好，我们去公园", "playing and played, opening and opened"] * 20], 260)


@pytest.fixture
def theirs(model: Model, tmp_path: Path) -> Any:
    """The same model in transformers."""
    transformers = peer("transformers")
    model.save(tmp_path)
    return transformers.AlbertForMaskedLM.from_pretrained(tmp_path).eval()


def number_of(tokenizer: Tokenizer, token: str) -> int:
    return next(number for number in range(tokenizer.vocab_size) if tokenizer.token(number) == token)


def test_probabilities_are_the_model_s_softmax_at_the_mask(model: Model) -> None:
    text = "the baker opened at [MASK]"
    fills = model.fill_mask(text, top=4)
    encoding = model.tokenizer.encode([text])[0]
    at = encoding.ids.index(model.tokenizer.mask_id)
    with torch.inference_mode():
        hidden = model.encoder(torch.tensor([encoding.ids]))[0, at]
        expected = model.albert.heads["mlm"](hidden, model.encoder.word_embeddings.weight).softmax(-1).topk(4)
    assert [fill.probability for fill in fills] == pytest.approx(expected.values.tolist())  # type: ignore[union-attr]
    tokens = [model.tokenizer.token(number) for number in expected.indices.tolist()]
    assert [fill.token for fill in fills] == tokens  # type: ignore[union-attr]


def test_transformers_fill_mask_pipeline_agrees(model: Model, tmp_path: object) -> None:
    transformers = peer("transformers")
    model.save(str(tmp_path))
    theirs = transformers.pipeline("fill-mask", model=str(tmp_path), device="cpu")(
        "the baker opened at [MASK]", top_k=5
    )
    ours = model.fill_mask("the baker opened at [MASK]", top=5)
    assert [fill.token for fill in ours] == [model.tokenizer.token(t["token"]) for t in theirs]  # type: ignore[union-attr]
    assert [fill.probability for fill in ours] == pytest.approx([t["score"] for t in theirs], abs=1e-6)  # type: ignore[union-attr]


def test_a_mask_beyond_the_model_s_length_is_named(model: Model) -> None:
    with pytest.raises(DataError, match=r"no \[MASK\] in its first 64 tokens"):
        model.fill_mask("word " * 100 + "[MASK]")
    with pytest.raises(DataError, match=r"text: 1 \[MASK\] of .* beyond its first 64 tokens.*shorten the text"):
        model.fill_mask("[MASK] " + "word " * 100 + "[MASK]")


@pytest.mark.parametrize("item", [3, {"txt": "x"}, None])
def test_what_is_not_a_text_is_refused_with_its_place(item: object) -> None:
    with pytest.raises(DataError, match="line 4"):
        Mask().parse(item, "line 4")


# The filled text


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("The OLD  [MASK] had\tleft.", "▁the", "The OLD  the had\tleft."),
        ("[MASK] Old", "▁the", "the Old"),
        ("old[MASK] left", "▁the", "old the left"),
        ("old ([MASK]) left", "▁the", "old (the) left"),
        ("天气[MASK]好", "▁the", "天气the好"),
        ("The open [MASK] left", "ed", "The opened left"),
        ("The open[MASK] left", "ed", "The opened left"),
        ("they left [MASK]", ".", "they left."),
    ],
)
def test_a_sentencepiece_token_stands_in_the_user_s_own_text(
    tokenizer: Tokenizer, text: str, token: str, expected: str
) -> None:
    start = text.index("[MASK]")
    assert fill_text(text, [(start, start + 6)], [number_of(tokenizer, token)], tokenizer) == expected


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("今天天[MASK]很好", "气", "今天天气很好"),
        ("The OLD [MASK]  left", "the", "The OLD the  left"),
        ("They open [MASK] it", "##ed", "They opened it"),
        ("they left [MASK]", ".", "they left."),
    ],
)
def test_a_wordpiece_token_stands_in_the_user_s_own_text(
    wordpiece: Tokenizer, text: str, token: str, expected: str
) -> None:
    start = text.index("[MASK]")
    assert fill_text(text, [(start, start + 6)], [number_of(wordpiece, token)], wordpiece) == expected


def test_a_word_that_was_added_to_the_vocabulary_stands_by_itself(tokenizer: Tokenizer) -> None:
    extended = tokenizer.extended(["zebra"])
    assert fill_text("a[MASK]", [(1, 7)], [number_of(extended, "zebra")], extended) == "a zebra"


def test_an_answer_fills_every_mask_with_its_best_at_once(model: Model) -> None:
    output = model.predict([GAPS])[0]
    best = [fills[0] for fills in output.masks]
    assert len(best) == 4
    assert output.log_probability == pytest.approx(sum(math.log(fill.probability) for fill in best))
    assert "[MASK]" not in output.text
    assert [fill.text.count("[MASK]") for fill in best] == [3] * 4
    one = model.predict(["by [MASK] the shelves"])[0]
    assert one.text == one.masks[0][0].text


# Filling in rounds


def one_by_one(theirs: Any, tokenizer: Tokenizer, text: str) -> tuple[list[int], float]:
    """The same by hand: of all masks the surest is filled, then all are asked again."""
    specials = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    ids = torch.tensor(tokenizer.encode([text])[0].ids)
    columns, total = (ids == tokenizer.mask_id).nonzero()[:, 0], 0.0
    while (ids == tokenizer.mask_id).any():
        with torch.inference_mode():
            found = theirs(ids[None]).logits[0].log_softmax(-1).clone()
            found[:, specials] = -math.inf
            found[ids != tokenizer.mask_id] = -math.inf
        best = int(found.argmax())
        column, number = divmod(best, found.shape[1])
        ids[column] = number
        total += float(found[column, number])
    return ids[columns].tolist(), total


def test_masks_are_filled_surest_first_as_transformers_model_says(model: Model, theirs: Any) -> None:
    numbers, total = one_by_one(theirs, model.tokenizer, GAPS)
    filled = model.fill(GAPS)
    assert filled.tokens == [model.tokenizer.token(number) for number in numbers]
    assert filled.log_probability == pytest.approx(total, abs=1e-4)
    assert "[MASK]" not in filled.text


@pytest.mark.parametrize(("rounds", "calls"), [(1, 1), (2, 2), (3, 3), (None, 4), (9, 4)])
def test_rounds_are_the_number_of_times_the_model_is_asked(model: Model, rounds: int | None, calls: int) -> None:
    asked = []
    handle = model.encoder.register_forward_hook(lambda *_: asked.append(1))
    filled = model.fill(GAPS, rounds)
    handle.remove()
    assert len(asked) == calls
    assert len(filled.tokens) == 4
    assert "[MASK]" not in filled.text


def test_one_round_is_the_one_shot_answer(model: Model) -> None:
    with torch.no_grad():
        model.albert.heads["mlm"].bias[:5] = -99  # type: ignore[operator]  # never a special token
    once, output = model.fill(GAPS, rounds=1), model.predict([GAPS])[0]
    assert once.text == output.text
    assert once.log_probability == pytest.approx(output.log_probability, abs=1e-4)


def test_the_seed_decides_what_is_drawn_and_temperature_zero_draws_nothing(model: Model) -> None:
    assert model.fill(GAPS, temperature=1, seed=3) == model.fill(GAPS, temperature=1, seed=3)
    assert len({model.fill(GAPS, temperature=1, seed=seed).text for seed in range(4)}) == 4
    assert model.fill(GAPS, seed=1) == model.fill(GAPS, seed=2)
    assert model.fill(GAPS, temperature=1e-4, seed=1).text == model.fill(GAPS).text


def test_draws_follow_the_model_s_probabilities(model: Model) -> None:
    torch.nn.init.constant_(model.albert.heads["mlm"].bias, -30)  # type: ignore[arg-type]
    with torch.no_grad():
        model.albert.heads["mlm"].bias[20] = 30  # type: ignore[operator]
    assert model.fill(GAPS, temperature=1).tokens == [model.tokenizer.token(20)] * 4


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"rounds": 0}, "rounds=0 must be at least 1"), ({"temperature": -1.0}, "temperature=-1.0 must be 0 or more")],
)
def test_a_setting_out_of_range_is_refused(model: Model, setting: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model.fill(GAPS, **setting)


# How likely a text is


def by_loop(theirs: Any, tokenizer: Tokenizer, text: str) -> list[float]:
    """What the model gives for every token when it alone is hidden."""
    ids = torch.tensor(tokenizer.encode([text])[0].ids)
    found = []
    for at in range(1, len(ids) - 1):
        hidden = ids.clone()
        hidden[at] = tokenizer.mask_id
        with torch.inference_mode():
            found.append(float(theirs(hidden[None]).logits[0, at].log_softmax(-1)[ids[at]]))
    return found


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_scores_are_a_loop_over_positions_with_transformers_model(model: Model, theirs: Any, batch_size: int) -> None:
    texts = [PROSE[0], "rain", PROSE[4], "a quick brown fox"]
    for text, score in zip(texts, model.score(texts, batch_size), strict=True):
        expected = by_loop(theirs, model.tokenizer, text)
        assert score.log_probability == pytest.approx(sum(expected), abs=1e-4)
        assert score.tokens == len(expected)
        assert score.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-5)


def test_a_long_text_is_scored_in_windows_and_every_token_once(model: Model, theirs: Any) -> None:
    text = " ".join(PROSE[:4])
    ids = model.tokenizer.encode([text])[0].ids[1:-1]
    assert 100 < len(ids) < 186  # four windows of 62 with 31 in common
    frame = [model.tokenizer.cls_id], [model.tokenizer.sep_id]
    expected, done = 0.0, 0
    for start in [*range(0, len(ids) - 62, 31), len(ids) - 62]:
        window = torch.tensor(frame[0] + ids[start : start + 62] + frame[1])
        for at in range(done - start + 1, 63):
            hidden = window.clone()
            hidden[at] = model.tokenizer.mask_id
            with torch.inference_mode():
                expected += float(theirs(hidden[None]).logits[0, at].log_softmax(-1)[window[at]])
        done = start + 62
    score = model.score([text])[0]
    assert score.log_probability == pytest.approx(expected, abs=1e-3)
    assert score.tokens == len(ids) == done


@pytest.mark.parametrize("text", ["", "  ", "the [MASK] opened"])
def test_what_cannot_be_scored_is_refused_with_its_number(model: Model, text: str) -> None:
    with pytest.raises(DataError, match=r"text 2: .* cannot be scored"):
        model.score(["fine", text])


def test_score_and_fill_need_the_head_and_leave_training_as_it_was(model: Model) -> None:
    bare = Model(Albert(model.config), model.tokenizer)
    for ask in (lambda: bare.score(["x"]), lambda: bare.fill("a [MASK]")):
        with pytest.raises(ConfigError, match="no masked-token head"):
            ask()
    with pytest.raises(DataError, match=r"wrap a single text: score\(\[text\]\)"):
        model.score("text")
    model.albert.train()
    learning = []
    model.encoder.register_forward_hook(lambda encoder, *_: learning.append(encoder.training))
    model.score(["rain"])
    model.fill("a [MASK]")
    assert learning
    assert not any(learning)
    assert model.albert.training


# Measuring


def test_hidden_tokens_are_what_the_model_cannot_see(model: Model) -> None:
    records = mask_random_tokens(PROSE[:5], model.tokenizer, 64, seed=1)
    for record, example in zip(records, Mask().features(records, model.tokenizer, 64), strict=True):
        plain = model.tokenizer.encode([record.text], max_length=64)[0].ids
        masked = [at for at, number in enumerate(example.sequences[0].ids) if number == model.tokenizer.mask_id]
        assert tuple(masked) == record.hidden
        assert tuple(model.tokenizer.token(plain[at]) for at in masked) == record.truth
        assert len(masked) == round(0.15 * (len(plain) - 2))


def test_hiding_depends_on_the_seed_and_spares_specials(tokenizer: Tokenizer) -> None:
    texts = ["rain [SEP] map [MASK]", "[SEP]", *PROSE[:4]]
    assert mask_random_tokens(texts, tokenizer, 32, seed=1) == mask_random_tokens(texts, tokenizer, 32, seed=1)
    assert mask_random_tokens(texts, tokenizer, 32, seed=1) != mask_random_tokens(texts, tokenizer, 32, seed=2)
    records = mask_random_tokens(texts, tokenizer, 32, rate=0.99)
    assert [record.text for record in records] == [texts[0], *texts[2:]]
    hidden = {token for record in records for token in record.truth}
    assert not hidden & set(tokenizer.specials.values())
    with pytest.raises(ConfigError, match="rate=0 must lie between 0 and 1"):
        mask_random_tokens(texts, tokenizer, 32, rate=0)


def test_accuracy_counts_the_masks_whose_token_is_first_or_among_five() -> None:
    def answer(*tokens: str) -> MaskOutput:
        return MaskOutput([[Fill(one, 0.1, "") for one in token] for token in tokens], "", 0.0)

    records = [MaskInput("x", truth=("a", "b")), MaskInput("y", truth=("c", "d"))]
    outputs = [answer("abcdef", "abcdef"), answer("cabdef", "abcefd")]
    assert Mask(6).metrics(records, outputs) == {"top1_accuracy": 0.5, "top5_accuracy": 0.75}
    with pytest.raises(ConfigError, match="top=2 fillings are too few"):
        Mask(2).metrics(records, outputs)
    with pytest.raises(DataError, match="line 3: every mask needs the token"):
        Mask().metrics([MaskInput("x", where="line 3")], outputs[:1])


def test_bits_per_character_are_those_of_the_hidden_tokens(model: Model) -> None:
    records = mask_random_tokens(PROSE[:5], model.tokenizer, 64, rate=0.3)
    bits, characters = 0.0, 0
    for record in records:
        ids = list(model.tokenizer.encode([record.text], max_length=64)[0].ids)
        truth = [ids[column] for column in record.hidden]
        for column in record.hidden:
            ids[column] = model.tokenizer.mask_id
        with torch.no_grad():
            hidden = model.encoder(torch.tensor([ids]))[0, list(record.hidden)]
            table = model.encoder.word_embeddings.weight
            scores = model.albert.heads["mlm"](hidden, table).log_softmax(-1)
        bits -= sum(scores[at, token].item() for at, token in enumerate(truth)) / math.log(2)
        assert record.characters == sum(map(len, record.truth))
        characters += record.characters
    measured = Mask().metrics(records, model.answer_records(records))
    assert measured["bits_per_character"] == pytest.approx(bits / characters, rel=1e-4)


def test_a_judgement_tells_the_share_that_is_right() -> None:
    output = MaskOutput([[Fill("a", 0.6, "")], [Fill("b", 0.2, "")]], "", 0.0)
    judged = Mask().judge(MaskInput("a b", truth=("a", "c")), output)
    assert (judged.truth, judged.answer, judged.right) == ("a c", "a b", 0.5)


def test_the_baseline_is_the_commonest_tokens() -> None:
    records = [MaskInput("x", truth=tuple("aaabbcd")), MaskInput("y", truth=tuple("efg"))]
    assert Mask().baseline(records) == pytest.approx({"top1_accuracy": 0.3, "top5_accuracy": 0.8})


def test_a_model_that_always_says_the_same_is_right_as_often_as_that_token_occurs(model: Model) -> None:
    records = mask_random_tokens(PROSE[:11], model.tokenizer, 64, rate=0.3)
    number = number_of(model.tokenizer, "▁")
    with torch.no_grad():
        model.albert.heads["mlm"].bias[number] = 99  # type: ignore[operator]
    share = [token == "▁" for record in records for token in record.truth]
    assert 0 < sum(share) < len(share)
    measured = Mask().metrics(records, model.answer_records(records))
    assert measured["top1_accuracy"] == pytest.approx(sum(share) / len(share))


def test_tokens_hidden_beyond_what_the_model_reads_are_refused(model: Model) -> None:
    record = MaskInput("rain", hidden=(40,), truth=("x",), where="text 1")
    with pytest.raises(DataError, match=r"text 1: token 40 is to be hidden.*mask_random_tokens with max_length=64"):
        model.answer_records([record])
