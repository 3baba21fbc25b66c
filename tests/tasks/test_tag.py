"""Tagging: files, words and tokens, valid sequences, the chain's arithmetic, metrics."""

from __future__ import annotations

import json
import tarfile
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.batches import IGNORE_INDEX, Example, collate
from litebert.data.tables import TableOptions
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.inference import Model
from litebert.loading import load
from litebert.model import Albert
from litebert.tasks import TASKS
from litebert.tasks.base import Scores
from litebert.tasks.crf import (
    CrfHead,
    TransitionScores,
    log_likelihood,
    may_follow,
    parse_tag,
    range_probabilities,
    transition_rules,
    viterbi,
    word_ranges,
)
from litebert.tasks.tag import FoundSpan, Span, Tag, TagInput, TagOutput
from litebert.tasks.tag_files import split_words
from litebert.tokenizer import Tokenizer, train_unigram
from tests.conftest import PROSE, peer

BIO = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
BIOES = ["O", *(f"{prefix}-{kind}" for kind in ("LOC", "PER") for prefix in "BIES")]
NAMES = [("Ada", "PER"), ("Bo Lee", "PER"), ("Rome", "LOC"), ("New Delhi", "LOC")]
FRAMES = ["{} wrote to {} .", "the old bridge of {} was painted by {}", "{} and {} counted", "nobody in {} met {}"]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def marks(spans: tuple[Span, ...] | list[FoundSpan] | None) -> list[tuple[str, str]]:
    return [(span.text, span.label) for span in spans or ()]


def places(spans: tuple[Span, ...] | list[FoundSpan] | None) -> list[tuple[int, int, str]]:
    return [(span.start, span.end, span.label) for span in spans or ()]


def told(task: Tag, records: list[TagInput], tokenizer: Tokenizer, length: int) -> list[tuple[Example, Scores]]:
    """Examples with the scores of a model that knows the truth, as far as the targets tell it."""
    examples = task.features(records, tokenizer, length)
    targets = {id(example.sequences[0]): example.target for example in task.training_examples(records, examples)}
    found = []
    for example in examples:
        scores = torch.zeros(len(example.sequences), example.length, len(task.tags))
        for row, window in enumerate(example.sequences):
            target = torch.from_numpy(targets.get(id(window), np.full(1, IGNORE_INDEX)))
            columns = (target != IGNORE_INDEX).nonzero()[:, 0]
            scores[row, columns, target[columns]] = 9.0
        found.append((example, {"scores": scores}))
    return found


def decoded(task: Tag, records: list[TagInput], tokenizer: Tokenizer, length: int = 64) -> list[TagOutput]:
    knowing = told(task, records, tokenizer, length)
    return [task.answer(record, *two) for record, two in zip(records, knowing, strict=True)]


def sentences(count: int) -> list[TagInput]:
    records = []
    for number in range(count):
        (left, kind), (right, other) = NAMES[number % 4], NAMES[(number // 4 + 1) % 4]
        text = FRAMES[number % 3 if number < 16 else 3].format(left, right)
        at = text.rindex(right)
        first = text.index(left)
        spans = (Span(first, first + len(left), kind, left), Span(at, at + len(right), other, right))
        records.append(TagInput(text, spans=tuple(sorted(set(spans), key=lambda span: span.start))))
    return records


# files


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("iob1", ["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"]),
        ("iob2", ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "B-PER"]),
        ("bioes", ["B-PER", "E-PER", "O", "S-LOC", "S-LOC", "S-PER"]),
        ("bilou", ["B-PER", "L-PER", "O", "U-LOC", "U-LOC", "U-PER"]),
    ],
)
def test_every_way_to_write_tags_gives_the_same_spans(tmp_path: Path, name: str, tags: list[str]) -> None:
    words = ["Bo", "Lee", "left", "Rome", "Delhi", "Ada"]
    lines = "\n".join(f"{word} X {tag}" for word, tag in zip(words, tags, strict=True))
    (record,) = Tag.read(written(tmp_path / f"{name}.train", lines))
    assert record.text == "Bo Lee left Rome Delhi Ada"
    assert marks(record.spans) == [("Bo Lee", "PER"), ("Rome", "LOC"), ("Delhi", "LOC"), ("Ada", "PER")]


def test_document_lines_and_blank_lines_separate_sentences(tmp_path: Path) -> None:
    content = "-DOCSTART- -X- O O\n\nAda\tB-PER\r\nran\tO\r\n\n\n-DOCSTART- -X- O O\nHe\tO\n"
    records = Tag.read(written(tmp_path / "t.conll", content))
    assert [record.text for record in records] == ["Ada ran", "He"]
    assert records[1].where.endswith("t.conll, line 8")


def test_tags_without_prefix_mark_single_words(tmp_path: Path) -> None:
    (record,) = Tag.read(written(tmp_path / "pos.tsv", "rain\tNOUN\nfalls\tVERB\nhere\tO\n"))
    assert marks(record.spans) == [("rain", "NOUN"), ("falls", "VERB")]


def test_chinese_characters_are_joined_without_spaces(tmp_path: Path) -> None:
    content = "我 O\n在 O\n北 B-LOC\n京 I-LOC\n， O\nOK O\n吗 O\nAda B-PER\nLee I-PER\n"
    (record,) = Tag.read(written(tmp_path / "zh.bio", content))
    assert record.text == "我在北京， OK 吗 Ada Lee"
    assert marks(record.spans) == [("北京", "LOC"), ("Ada Lee", "PER")]


def test_cluener_s_inclusive_ends_become_exclusive(tmp_path: Path) -> None:
    objects = [
        {"text": "我在北京见王明", "label": {"address": {"北京": [[2, 3]]}, "name": {"王明": [[5, 6]]}}},
        {"text": "没有", "label": {}},
    ]
    path = written(tmp_path / "dev.json", "\n".join(json.dumps(one, ensure_ascii=False, indent=1) for one in objects))
    first, second = Tag.read(path)
    assert places(first.spans) == [(2, 4, "address"), (5, 7, "name")]
    assert second.spans == ()


def test_json_lines_with_spans_are_read_in_the_order_of_the_text(tmp_path: Path) -> None:
    spans = [{"start": 8, "end": 12, "label": "LOC"}, {"start": 0, "end": 3, "label": "PER"}]
    (record,) = Tag.read(written(tmp_path / "t.jsonl", json.dumps({"text": "Ada saw Rome", "spans": spans})))
    assert marks(record.spans) == [("Ada", "PER"), ("Rome", "LOC")]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([{"start": 0, "end": 9, "label": "X"}], "does not fit a text of 7"),
        ([{"start": 3, "end": 3, "label": "X"}], "does not fit"),
        ([{"start": 0, "end": 3, "label": "X"}, {"start": 2, "end": 5, "label": "X"}], "overlap"),
        ([{"start": 0, "end": True, "label": "X"}], "whole numbers"),
        ([{"start": 0, "end": 3, "label": ""}], "whole numbers, and label"),
        ([{"start": 0, "end": 3, "label": "X", "text": "Bob"}], "is 'Ada' and not 'Bob'"),
        ({"start": 0}, "must be a list"),
        (None, "no 'spans'"),
    ],
)
def test_a_wrong_span_is_refused_with_its_line_or_left_out(tmp_path: Path, spans: object, message: str) -> None:
    good = json.dumps({"text": "nothing", "spans": []})
    path = written(tmp_path / "t.jsonl", good + "\n" + json.dumps({"text": "Ada ran", "spans": spans}))
    with pytest.raises(DataError, match=f"line 2.*{message}"):
        Tag.read(path)
    options = TableOptions(skip_bad=True)
    assert len(Tag.read(path, options)) == len(options.skipped) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [("Ada B-PER\n\nran\n", "line 3.*one column"), ("Ada B-PER\n\nran X PER\n", "B-PER or I-PER")],
)
def test_a_wrong_line_leaves_out_its_sentence_only(tmp_path: Path, content: str, message: str) -> None:
    path = written(tmp_path / "t.txt", content)
    with pytest.raises(DataError, match=message):
        Tag.read(path)
    assert [record.text for record in Tag.read(path, TableOptions(skip_bad=True))] == ["Ada"]


@pytest.mark.parametrize(("name", "message"), [("t.csv", "do not fit into .csv"), ("t.conll", "holds no sentences")])
def test_a_file_without_sentences_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tag.read(written(tmp_path / name, "\n\n"))


@pytest.mark.parametrize("item", [3, None, {"txt": "x"}, {"text": 3}, {"words": "ab"}, {"text": "ab", "words": ["c"]}])
def test_what_is_not_a_text_is_refused_with_its_place(item: object) -> None:
    with pytest.raises(DataError, match="input 7"):
        Tag(BIO).parse(item, "input 7")


def test_words_may_come_with_the_text_or_instead_of_it() -> None:
    task = Tag(BIO)
    assert task.parse({"words": ["do", "n't"]}, "").text == "do n't"
    assert task.parse({"text": "don't do", "words": ["do", "n't", "do"]}, "").words == ((0, 2), (2, 5), (6, 8))


# words and tokens


def test_raw_text_is_cut_at_spaces_punctuation_and_chinese_characters() -> None:
    text = 'He (Bo) left the U.S., "1996-08-22" e.g. 在Rome吃，हिन्दी।'
    assert [text[start:end] for start, end in split_words(text)] == [
        *("He", "(", "Bo", ")", "left", "the", "U.S.", ",", '"', "1996-08-22", '"', "e.g."),
        *("在", "Rome", "吃", "，", "हिन्दी", "।"),
    ]


WORDS = st.lists(st.text(st.sampled_from("abcdefgTRx09é€ßåü漢'-."), min_size=1, max_size=12), min_size=1, max_size=40)


@given(words=WORDS, cuts=st.sets(st.integers(1, 39)), kinds=st.lists(st.sampled_from(["", "LOC", "PER"]), min_size=40))
@pytest.mark.filterwarnings("ignore:.*unknown to this vocabulary")
@pytest.mark.parametrize("scheme", ["bio", "bioes"])
def test_true_tags_decode_to_exactly_the_true_characters(
    tokenizer: Tokenizer, scheme: str, words: list[str], cuts: set[int], kinds: list[str]
) -> None:
    record = Tag(BIO).parse({"text": "  ".join(words), "words": words}, "")
    assert record.words is not None
    edges = [0, *sorted(cut for cut in cuts if cut < len(words)), len(words)]
    spans = []
    for first, end, kind in zip(edges, edges[1:], kinds, strict=False):
        start, stop = record.words[first][0], record.words[end - 1][1]
        spans += [Span(start, stop, kind, record.text[start:stop])] if kind else []
    record = TagInput(record.text, record.words, tuple(spans))
    task = Tag(BIO if scheme == "bio" else BIOES, scheme=scheme)  # type: ignore[arg-type]
    (example,) = task.features([record], tokenizer, 24)
    offsets = tokenizer.encode([record.text])[0].offsets[1:-1]
    firsts = [next(i for i, (at, _) in enumerate(offsets) if start <= at < end) for start, end in record.words]
    assert example.notes.tokens == firsts
    (output,) = decoded(task, [record], tokenizer, 24)
    assert marks(output.spans) == marks(record.spans)
    assert places(output.spans) == places(record.spans)
    assert task.num_inexact_spans == 0


def test_only_the_first_token_of_a_word_is_a_target(tokenizer: Tokenizer) -> None:
    record = TagInput("the lighthouse keeper", spans=(Span(4, 14, "LOC", "lighthouse"),))
    task = Tag(BIO)
    (example,) = task.training_examples([record], task.features([record], tokenizer, 64))
    offsets = tokenizer.encode([record.text])[0].offsets
    begins = {0: 0, 4: 1, 15: 0}
    assert [int(target) for target in example.target] == [
        IGNORE_INDEX if number in (0, len(offsets) - 1) else begins.pop(start, IGNORE_INDEX)
        for number, (start, _) in enumerate(offsets)
    ]
    assert not begins


def test_a_word_without_tokens_is_outside_and_shifts_nothing(tokenizer: Tokenizer) -> None:
    task = Tag(BIO)
    record = task.parse({"words": ["\u200b\x03", "the", "\x01", "bridge", "painted", "\x02\x7f"]}, "")
    (example,) = task.features([record], tokenizer, 64)
    spans = list(zip(example.notes.starts, example.notes.ends, strict=True))
    assert [record.text[start:end] for start, end in spans] == ["the", "bridge", "painted"]
    whole = TagInput(record.text, record.words, (Span(3, 15, "LOC", record.text[3:15]),))
    assert marks(decoded(task, [whole], tokenizer)[0].spans) == [("the \x01 bridge", "LOC")]


@pytest.mark.parametrize("text", ["", "  ", "\x01"])
def test_a_text_without_words_has_no_spans(model: Model, text: str) -> None:
    task = Tag(BIO)
    model = Model(Albert(model.config, {"tag": task.head(model.config)}), model.tokenizer, task)
    assert model.predict([text]) == [TagOutput([])]


def test_words_that_share_a_token_are_one_and_its_spans_are_counted() -> None:
    tokenizer = train_unigram([*PROSE, *["北京 大学 北京 在 上海"] * 50], 200)
    assert len(tokenizer.encode(["北京"])[0].ids) == 3
    task = Tag(BIO)
    record = TagInput("北京", spans=(Span(0, 1, "LOC", "北"),))
    (output,) = decoded(task, [record], tokenizer)
    assert marks(output.spans) == [("北京", "LOC")]
    assert task.num_inexact_spans == 1
    assert "1 of 1 spans" in task.remarks([record])[0]


def test_a_span_inside_a_word_is_learned_as_the_word_and_judged_as_it_is(tokenizer: Tokenizer) -> None:
    task = Tag(BIO)
    record = TagInput("the bridge", spans=(Span(4, 6, "LOC", "br"),))
    (output,) = decoded(task, [record], tokenizer)
    assert marks(output.spans) == [("bridge", "LOC")]
    assert task.num_inexact_spans == 1
    assert task.metrics([record], [output])["f1"] == 0


def long_record() -> TagInput:
    record = Tag(BIO).parse({"words": " ".join(PROSE[:12]).split()}, "")
    assert record.words is not None
    ends = [(record.words[i][0], record.words[i + 1 + i // 4 % 2][1]) for i in range(0, len(record.words) - 3, 4)]
    spans = tuple(Span(start, end, "PER", record.text[start:end]) for start, end in ends)
    return TagInput(record.text, record.words, spans)


def test_a_long_text_is_decoded_from_the_middle_of_its_windows(tokenizer: Tokenizer) -> None:
    record, task = long_record(), Tag(BIO)
    ((example, scores),) = told(task, [record], tokenizer, 32)
    assert len(example.sequences) > 10
    last = len(example.sequences) - 1
    for row, window in enumerate(example.sequences):  # beside a cut the model is wrong
        if row:
            scores["scores"][row, 1:6, 1] = 99.0
        if row < last:
            scores["scores"][row, len(window.ids) - 6 : len(window.ids) - 1, 1] = 99.0
    assert places(task.answer(record, example, scores).spans) == places(record.spans)


@pytest.mark.parametrize(("tags", "scheme"), [(BIO, "bio"), (BIOES, "bioes")])
def test_a_window_that_cuts_a_span_is_a_valid_sequence_for_the_crf(
    tokenizer: Tokenizer, tags: list[str], scheme: str
) -> None:
    def valid(crf: bool) -> list[bool]:
        task = Tag(tags, crf=crf, scheme=scheme)  # type: ignore[arg-type]
        examples = task.training_examples([long_record()], task.features([long_record()], tokenizer, 32))
        return [is_valid(example.target[example.target != IGNORE_INDEX].tolist(), tags, scheme) for example in examples]

    assert not all(valid(crf=False))  # there are such windows
    assert all(valid(crf=True))


# sequences


def is_valid(path: list[int], tags: list[str], scheme: str) -> bool:
    parts = [("O", ""), *(parse_tag(tags[number]) for number in path), ("O", "")]
    return all(may_follow(left, right, scheme) for left, right in pairwise(parts))  # type: ignore[arg-type]


@pytest.mark.parametrize(("tags", "scheme"), [(BIO, "bio"), (BIOES[:5], "bioes")])
def test_the_decoded_sequence_is_the_best_valid_one(tags: list[str], scheme: str) -> None:
    random = np.random.default_rng(0)
    rules = transition_rules(tags, scheme)  # type: ignore[arg-type]
    for length in (1, 2, 3, 4) * 8:
        emissions = random.normal(size=(length, len(tags))) * 5
        extra = TransitionScores(random.normal(size=(len(tags), len(tags))), *random.normal(size=(2, len(tags))))
        chain = rules + extra

        def worth(path: tuple[int, ...], emissions: np.ndarray = emissions, chain: TransitionScores = chain) -> float:
            steps = sum(chain.transitions[pair] for pair in pairwise(path))
            return float(emissions[range(len(path)), path].sum() + steps + chain.start[path[0]] + chain.end[path[-1]])

        valid = [p for p in product(range(len(tags)), repeat=length) if is_valid(list(p), tags, scheme)]
        assert viterbi(emissions, chain) == list(max(valid, key=worth))
        total = sum(np.exp(worth(path)) for path in valid)
        path = viterbi(emissions, chain)
        ranges = word_ranges([tags[number] for number in path])
        grows = np.array([[parse_tag(b)[0] in "IE" and parse_tag(a)[1] == parse_tag(b)[1] for b in tags] for a in tags])
        for found, probability in zip(ranges, range_probabilities(emissions, chain, path, ranges, grows), strict=True):
            having = [p for p in valid if found in word_ranges([tags[number] for number in p])]
            assert probability == pytest.approx(sum(np.exp(worth(p)) for p in having) / total)


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 60), scale=st.sampled_from([0.1, 1.0, 1e6]))
@pytest.mark.parametrize(("tags", "scheme"), [(BIO, "bio"), (BIOES, "bioes")])
def test_no_scores_lead_to_an_invalid_sequence(
    tags: list[str], scheme: str, seed: int, length: int, scale: float
) -> None:
    emissions = np.random.default_rng(seed).normal(size=(length, len(tags))) * scale
    assert is_valid(viterbi(emissions, transition_rules(tags, scheme)), tags, scheme)  # type: ignore[arg-type]


def test_the_crf_s_likelihood_is_that_of_counting_all_sequences() -> None:
    torch.manual_seed(0)
    tags, columns = 3, 6
    scores, transitions = torch.randn(3, columns, tags), torch.randn(tags, tags)
    start, end = torch.randn(tags), torch.randn(tags)
    transitions[0, 2] = -1e4
    targets = torch.full((3, columns), IGNORE_INDEX)
    targets[0, [1, 2, 4]] = torch.tensor([0, 1, 2])
    targets[1, [3]] = torch.tensor([2])
    targets[2, [0, 1, 2, 3, 5]] = torch.tensor([1, 1, 0, 0, 1])
    found = log_likelihood(scores, targets, transitions, start, end)
    for row in range(3):
        shown = (targets[row] != IGNORE_INDEX).nonzero()[:, 0]

        def worth(path: tuple[int, ...], row: int = row, shown: torch.Tensor = shown) -> torch.Tensor:
            steps = [transitions[pair].double() for pair in pairwise(path)]
            own = scores[row, shown, list(path)].double().sum()
            return own + sum(steps) + start[path[0]].double() + end[path[-1]].double()

        every = torch.stack([worth(path) for path in product(range(tags), repeat=len(shown))])
        expected = worth(tuple(targets[row, shown].tolist())) - every.logsumexp(0)
        assert found[row].item() == pytest.approx(expected.item(), abs=1e-5)


def test_a_sequence_without_labels_is_worth_nothing() -> None:
    nothing = torch.full((1, 4), IGNORE_INDEX)
    assert log_likelihood(torch.randn(1, 4, 3), nothing, torch.zeros(3, 3), torch.zeros(3), torch.zeros(3)).item() == 0


def test_a_crf_that_has_learned_nothing_prefers_no_neighbour(model: Model) -> None:
    task = Tag(BIO, crf=True)
    records = sentences(4)
    examples = task.training_examples(records, task.features(records, model.tokenizer, 64))
    albert = Albert(model.config, {"tag": task.head(model.config)})
    with torch.no_grad():
        albert.heads["tag"].linear.weight.zero_()  # type: ignore[union-attr, operator]
        batch = collate(examples, model.tokenizer.pad_id)
        loss = task.loss(task.scores(albert, batch), batch)
    allowed = (transition_rules(BIO, "bio").transitions == 0).astype(float)
    counts = [int((example.target != IGNORE_INDEX).sum()) for example in examples]
    first = (transition_rules(BIO, "bio").start == 0).astype(float)
    ways = [float((first @ np.linalg.matrix_power(allowed, count - 1)).sum()) for count in counts]
    assert loss.item() == pytest.approx(sum(map(np.log, ways)) / sum(counts), rel=1e-5)


def test_a_crf_learns_at_an_encoder_s_rate_which_tags_are_neighbours(model: Model) -> None:
    task = Tag(["O", "A", "B"], crf=True, scheme="plain")
    head = task.head(model.config)
    assert isinstance(head, CrfHead)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-4)
    targets, losses = torch.tensor([[1, 2, 0] * 4]), []
    for _ in range(100):
        chain = head.chain(transition_rules(task.tags, "plain"))
        losses.append(-log_likelihood(torch.zeros(1, 12, 3), targets, **chain).sum())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[0].item() == pytest.approx(12 * np.log(3), rel=1e-4)
    assert losses[-1] < losses[0] / 2


def test_the_loss_is_cross_entropy_over_labelled_tokens(model: Model) -> None:
    task, records = Tag(BIO), sentences(6)
    batch = collate(
        task.training_examples(records, task.features(records, model.tokenizer, 64)), model.tokenizer.pad_id
    )
    assert batch.targets is not None
    scores = torch.randn(*batch.targets.shape, len(BIO))
    shown = batch.targets != IGNORE_INDEX
    expected = -scores[shown].log_softmax(-1)[torch.arange(int(shown.sum())), batch.targets[shown]].mean()
    assert task.loss({"scores": scores}, batch).item() == pytest.approx(expected.item())
    assert task.divergence({"scores": scores}, {"scores": scores}, batch).item() == 0
    other = scores.clone()
    other[~shown] += torch.randn(int((~shown).sum()), len(BIO))
    assert task.divergence({"scores": scores}, {"scores": other}, batch).item() == 0
    assert task.divergence({"scores": scores}, {"scores": scores.flip(-1)}, batch).item() > 0.1


def test_the_prior_loss_is_that_of_the_tags_shares(model: Model) -> None:
    record = TagInput("the old bridge", spans=(Span(4, 7, "LOC", "old"),))
    task = Tag(BIO)
    examples = task.training_examples([record], task.features([record], model.tokenizer, 64))
    assert task.constant_answer_loss(examples) == pytest.approx(-(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3)))
    assert Tag(BIO, crf=True).constant_answer_loss(examples) is None


# metrics


@pytest.mark.parametrize("tags", [BIO, BIOES])
def test_metrics_are_seqeval_s(tags: list[str]) -> None:
    seqeval = peer("seqeval.metrics")
    random = np.random.default_rng(1)

    def spans(sequence: list[str]) -> tuple[Span, ...]:
        return tuple(Span(first, end, kind, "") for first, end, kind in word_ranges(sequence))

    for _ in range(20):
        lengths = random.integers(1, 30, size=8)
        truth = [random.choice(tags, size=length).tolist() for length in lengths]
        answer = [[tag if random.random() < 0.7 else random.choice(tags).item() for tag in one] for one in truth]
        inputs = [TagInput("x", spans=spans(one)) for one in truth]
        outputs = [TagOutput([FoundSpan(**asdict(span), probability=1.0) for span in spans(one)]) for one in answer]
        assert Tag(tags).metrics(inputs, outputs) == {
            "f1": pytest.approx(seqeval.f1_score(truth, answer)),
            "precision": pytest.approx(seqeval.precision_score(truth, answer)),
            "recall": pytest.approx(seqeval.recall_score(truth, answer)),
        }
        report = seqeval.classification_report(truth, answer, output_dict=True, zero_division=0)
        for kind, measured in Tag(tags).by_label(inputs, outputs).items():
            assert measured["f1"] == pytest.approx(report[kind]["f1-score"])
            assert measured["examples"] == report[kind]["support"]


def test_a_table_of_texts_is_not_taken_for_words_and_tags(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"a text that ends with\tword{n}\n" for n in range(201)), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"train\.tsv: all 201 lines are one sentence, .* has a word and its tag per line"
    ):
        Tag.read(path)
    path.write_text("".join(f"word{n} tag{n}\n\n" for n in range(500)), encoding="utf-8")
    assert len(Tag.read(path)) == 500  # many tags are no mistake


def test_an_answer_is_shown_beside_the_truth() -> None:
    record = TagInput("Ada saw Rome", spans=(Span(0, 3, "PER", "Ada"), Span(8, 12, "LOC", "Rome")))
    output = TagOutput([FoundSpan(0, 3, "PER", "Ada", 0.9), FoundSpan(8, 12, "PER", "Rome", 0.6)])
    judged = Tag(BIO).judge(record, output)
    assert (judged.truth, judged.answer) == ("PER: Ada; LOC: Rome", "PER: Ada; PER: Rome")
    assert (judged.right, judged.confidence) == (0.5, 0.6)
    assert Tag(BIO).judge(TagInput("x", spans=()), TagOutput([])).right == 1


def test_a_stratum_is_the_labels_of_a_record() -> None:
    assert [Tag(BIO).stratum(record) for record in (sentences(1)[0], TagInput("x", spans=()))] == ["PER", ""]


# the task as a whole


def test_labels_become_tags_in_order() -> None:
    assert Tag.learn_from(sentences(8)).tags == BIO
    assert Tag.learn_from(sentences(8), scheme="bioes").tags == BIOES
    with pytest.raises(ConfigError, match="scheme='plain'"):
        Tag.learn_from(sentences(8), scheme="plain")
    with pytest.raises(DataError, match="0 kinds of spans"):
        Tag.learn_from([TagInput("x", spans=())])


def test_a_label_that_was_not_learned_is_refused_with_its_place(model: Model) -> None:
    record = TagInput("Ada", spans=(Span(0, 3, "DOG", "Ada"),), where="f.conll, line 4")
    with pytest.raises(DataError, match=r"f\.conll, line 4.*'DOG'"):
        Tag(BIO).check([record])
    with pytest.raises(DataError, match=r"line 4.*no 'spans'"):
        Tag(BIO).training_examples([TagInput("Ada", where="line 4")], [])


@pytest.mark.parametrize(("crf", "scheme", "head"), [(False, "bio", "linear"), (True, "bioes", "lstm")])
def test_settings_rebuild_the_task(crf: bool, scheme: str, head: str) -> None:
    task = Tag.learn_from(sentences(8), head, crf=crf, scheme=scheme)  # type: ignore[arg-type]
    again = Tag.from_settings(json.loads(json.dumps(task.settings() | {"options": task.options()})))
    assert (again.tags, again.crf, again.scheme, again.head_kind) == (task.tags, crf, scheme, head)


@pytest.mark.parametrize(
    "damaged",
    [
        {"id2label": {"0": "B-LOC", "1": "I-LOC"}},
        {"id2label": {"0": "O", "1": "I-LOC"}},
        {"id2label": {"0": "O", "1": "B-LOC", "2": "PER"}},
        {"id2label": {"0": "O", "1": "B-LOC", "2": "S-LOC"}},
        {"id2label": {"0": "O", "1": "B-LOC"}, "options": {"crf": "yes"}},
        {"id2label": {"0": "O", "1": "B-LOC"}, "options": {"scheme": "bioes"}},
        {"id2label": {"0": "O", "1": "B-LOC"}, "options": {"head": "tree"}},
        {"id2label": {"0": "O"}},
    ],
)
def test_damaged_settings_are_refused(damaged: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Tag.from_settings(damaged)


def test_tags_without_prefix_are_taken_from_a_folder_as_they_are(tokenizer: Tokenizer) -> None:
    task = Tag.from_settings({"id2label": {"0": "NOUN", "1": "VERB", "2": "O"}})
    record = TagInput("rain fell there", spans=(Span(0, 4, "NOUN", "rain"), Span(5, 9, "VERB", "fell")))
    assert marks(decoded(task, [record], tokenizer)[0].spans) == marks(record.spans)


def test_logits_are_those_of_transformers(model: Model, tmp_path: Path) -> None:
    transformers = peer("transformers")
    task = Tag(BIO)
    albert = Albert(model.config, {"tag": task.head(model.config)}).eval()
    Model(albert, model.tokenizer, task, 64).save(tmp_path)
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == task.architecture
    assert theirs.config.id2label == dict(enumerate(BIO))
    batch = collate(task.features(sentences(6), model.tokenizer, 64), model.tokenizer.pad_id)
    with torch.inference_mode():
        expected = theirs(batch.input_ids, batch.real.long(), batch.token_type_ids).logits
        found = task.scores(albert, batch)["scores"]
    torch.testing.assert_close(found[batch.real], expected[batch.real], atol=1e-5, rtol=1e-4)


def test_a_saved_crf_answers_the_same(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "tag", Tag)
    task = Tag(BIOES, crf=True, scheme="bioes")
    albert = Albert(model.config, {"tag": task.head(model.config)})
    torch.nn.init.normal_(albert.heads["tag"].transitions, std=0.1)  # type: ignore[arg-type]
    before = Model(albert, model.tokenizer, task, 64)
    before.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "litebert"  # transformers has no CRF
    texts = [record.text for record in sentences(8)]
    answers = before.predict(texts)
    assert any(output.spans for output in answers)
    assert load(tmp_path).predict(texts) == answers


@pytest.mark.parametrize(("crf", "scheme"), [(False, "bio"), (True, "bio"), (True, "bioes")])
def test_a_tiny_model_learns_its_sentences_by_heart(model: Model, crf: bool, scheme: str) -> None:
    records = sentences(32)
    task = Tag.learn_from(records, crf=crf, scheme=scheme)  # type: ignore[arg-type]
    torch.manual_seed(0)
    albert = Albert(model.config, {"tag": task.head(model.config)})
    learner = Model(albert, model.tokenizer, task, 64)
    batch = collate(
        task.training_examples(records, task.features(records, model.tokenizer, 64)), model.tokenizer.pad_id
    )
    optimizer = torch.optim.AdamW(albert.parameters(), lr=2e-3)
    for step in range(400):
        loss = task.loss(task.scores(albert, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19 and task.metrics(records, learner.answer_records(records))["f1"] == 1:
            break
    outputs = learner.answer_records(records)
    assert task.metrics(records, outputs)["f1"] == 1
    assert json.loads(json.dumps(asdict(outputs[0])))["spans"][0]["text"] == records[0].spans[0].text  # type: ignore[index]
    assert all(0 < span.probability <= 1 for output in outputs for span in output.spans)


# real data


def unpacked(data: Path, archive: str, member: str, folder: Path) -> Path:
    with tarfile.open(data / "tasks" / f"{archive}.tar.xz") as tar:
        name = next(name for name in tar.getnames() if name.endswith(member))
        content = tar.extractfile(name)
        assert content is not None
        path = folder / Path(member).name
        path.write_bytes(content.read())
    return path


def test_every_gold_span_of_conll_2003_comes_back(data: Path, tmp_path: Path) -> None:
    records = Tag.read(unpacked(data, "ner", "eng.testa", tmp_path))
    assert (len(records), sum(len(record.spans or ()) for record in records)) == (3250, 5942)
    tokenizer = train_unigram([record.text for record in records], 1000)
    task = Tag.learn_from(records)
    assert task.metrics(records, decoded(task, records, tokenizer, 48))["f1"] == 1
    assert task.num_inexact_spans == 0


def test_every_gold_span_of_cluener_comes_back_but_those_inside_words(data: Path, tmp_path: Path) -> None:
    records = Tag.read(unpacked(data, "zh", "cluener/dev.json", tmp_path))
    assert (len(records), sum(len(record.spans or ()) for record in records)) == (1343, 3072)
    letters = sorted({letter for record in records for letter in record.text.lower() if not letter.isspace()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer.from_vocab(written(tmp_path / "vocab.txt", "\n".join(vocabulary) + "\n"))
    task = Tag.learn_from(records)
    outputs = decoded(task, records, tokenizer, 32)
    found = [
        set(places(record.spans)) & set(places(output.spans)) for record, output in zip(records, outputs, strict=True)
    ]
    assert sum(map(len, found)) == 3072 - task.num_inexact_spans
    assert task.num_inexact_spans == 8
