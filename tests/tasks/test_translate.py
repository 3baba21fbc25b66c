"""Translation: records, targets, long texts, unknown characters, scores, folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from litebert.data.batches import IGNORE_INDEX, collate
from litebert.data.sentence_chunks import split_into_chunks
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.inference import Model
from litebert.inference.loading import HUB_FILES
from litebert.loading import load
from litebert.model import Albert
from litebert.model.beam_search import BeamSearch
from litebert.tasks.translate import Translate, TranslateInput, TranslateOutput
from litebert.tokenizer import Tokenizer, train_unigram
from litebert.trainers.finetune_config import FinetuneConfig
from tests.conftest import PROSE, peer

SMALL: dict[str, Any] = FinetuneConfig(task="translate", train=Path(), out=Path()).task_options() | {
    "decoder_hidden_size": 16, "decoder_intermediate_size": 32, "decoder_layers": 2, "target_vocab_size": 120,
}  # fmt: skip
RECORDS = [TranslateInput(text, text.upper()) for text in PROSE[:10]]


def task_of(**options: Any) -> Translate:
    peer("sacrebleu")
    return Translate.learn_from(RECORDS, **SMALL | options)


@pytest.fixture
def translator(model: Model) -> Model:
    torch.manual_seed(1)
    task, _ = (made := task_of()).for_saving(made.head(model.config))
    albert = Albert(model.config, {task.head_name: task.head(model.config)})
    return Model(albert.eval(), model.tokenizer, task)


def learned(task: Translate, model: Model, records: list[TranslateInput]) -> Any:
    return task.training_examples(records, task.features(records, model.tokenizer, model.max_length))


# Records


def test_records_are_strings_or_objects(translator: Model) -> None:
    task = translator.task
    assert task is not None
    for given in ("a dog", {"source": "a dog"}, {"text": "a dog"}):
        assert task.parse(given, "here") == TranslateInput("a dog")
    assert task.parse({"source": "a dog", "target": "ein Hund"}, "here").target == "ein Hund"
    for wrong, said in (
        (7, "must be a string"),
        ({"source": 7}, "put it in quotes"),
        ({"a": "b"}, "no text in column"),
    ):
        with pytest.raises(DataError, match=said):
            task.parse(wrong, "here")


def test_a_pair_without_one_of_its_sides_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("source,target\na dog,ein Hund\na cat,\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3: no target; fill it in .*--skip-bad"):
        Translate.read(path)


# Learning


def test_targets_are_padded_and_what_is_padded_does_not_count(translator: Model) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    examples = learned(task, translator, RECORDS[:3])
    batch = collate(examples, 0)
    assert batch.targets is not None
    assert (batch.targets == IGNORE_INDEX).any()
    assert batch.targets[0, 0] == task.target.cls_id
    together = task.loss(task.scores(translator.albert, batch), batch)
    counts = torch.tensor([len(example.target) - 1 for example in examples])
    alone = torch.stack([
        task.loss(task.scores(translator.albert, one), one) for one in (collate([x], 0) for x in examples)
    ])  # fmt: skip
    torch.testing.assert_close(together, (alone * counts).sum() / counts.sum())
    assert task.divergence(*[task.scores(translator.albert, batch)] * 2, batch).item() == pytest.approx(0, abs=1e-6)


def test_smoothing_changes_the_loss(translator: Model) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    batch = collate(learned(task, translator, RECORDS[:3]), 0)
    scores = task.scores(translator.albert, batch)
    losses = []
    for task.label_smoothing in (0.0, 0.3):
        losses.append(task.loss(scores, batch).item())
    assert losses[0] != losses[1]


def test_what_finetune_is_told_shapes_the_task(model: Model, translator: Model) -> None:
    """Every setting that is passed on counts."""
    batch = collate(learned(task := task_of(), translator, RECORDS[:3]), 0)
    scores = task.scores(translator.albert, batch)
    usual, plain, more = (task_of(**x).loss(scores, batch).item() for x in ({}, *_smoothings(0.0, 0.3)))
    assert plain != usual != more
    assert usual == pytest.approx(task_of(label_smoothing=0.1).loss(scores, batch).item())
    assert task_of(beams=3, length_penalty=0.5).search == BeamSearch(3, 0.5)
    shared, apart = (task_of(decoder_sharing=sharing).head(model.config) for sharing in ("all", "none"))
    assert (len(shared.writing), len(apart.writing)) == (1, 2)
    dropped: Any = task_of(decoder_dropout=0.7).head(model.config)
    assert {part.p for part in dropped.modules() if isinstance(part, torch.nn.Dropout)} == {0.7}


def _smoothings(*values: float) -> list[dict[str, float]]:
    return [{"label_smoothing": value} for value in values]


def test_epochs_are_compared_greedily_and_the_finished_model_follows_beams(translator: Model) -> None:
    task, decoder = translator.task, translator.albert.heads["translate"]
    assert isinstance(task, Translate)

    def found(search_settings: BeamSearch, ending: float, validating: bool = False) -> list[Any]:
        task.search, task.validating = search_settings, validating
        with torch.no_grad():
            decoder.bias[task.target.sep_id] = ending  # type: ignore[index]
        return translator.predict(PROSE[:6])

    greedy, beams = (found(BeamSearch(count, 1.0), ending=2) for count in (1, 5))
    assert greedy != beams
    assert found(BeamSearch(5, 1.0), ending=2, validating=True) == greedy
    assert found(BeamSearch(5, 1.0), ending=4) != found(BeamSearch(5, 9.0), ending=4)
    assert task_of().validating
    assert not task_of().for_saving(torch.nn.Identity())[0].validating


def test_pairs_that_are_too_long_are_left_out_and_told(translator: Model) -> None:
    task = task_of()
    records = [*RECORDS[:2], TranslateInput(PROSE[0] * 20, "RAIN", "file, line 3")]
    assert len(learned(task, translator, records)) == 2
    assert task.left_out == ["file, line 3: too long to learn from as one; cut it into sentences"]


def test_every_target_that_was_learned_can_be_written(translator: Model) -> None:
    task = task_of()
    pair = TranslateInput("Rain", " ".join(PROSE[:2]).upper())
    (example,) = learned(task, translator, [pair])
    assert 2 * example.length + task.search.offset == len(example.target) - 1 > 2 * example.length + 10
    saved, _ = task.for_saving(task.head(translator.config))
    assert Translate.from_settings({"options": saved.options()}).search == task.search
    learned(same := task_of(), translator, RECORDS[:3])
    assert same.search == task_of().search


def test_characters_that_it_will_never_write_are_told() -> None:
    assert task_of().remarks(RECORDS) == []
    (remark,) = task_of().remarks([*RECORDS, TranslateInput("a", "東京")])
    assert "1 of 11 targets have characters" in remark


def test_a_given_vocabulary_is_used(tmp_path: Path) -> None:
    given = train_unigram(["EINS ZWEI DREI VIER"] * 20, 64, lowercase=False)
    given.save(tmp_path / "tok")
    assert task_of(target_tokenizer=tmp_path / "tok").target.fingerprint == given.fingerprint


def test_depths_are_thirds_of_the_passes_or_as_told(model: Model) -> None:
    assert task_of().head_depths(model.config) == (1, 2, 3)
    assert task_of(decoder_depths=(0, 3)).head_depths(model.config) == (0, 3)
    with pytest.raises(ConfigError, match=r"decoder_depths=\(4,\) must lie between 0 and the encoder's 3 passes"):
        task_of(decoder_depths=(4,)).head(model.config)


# Answers


def test_many_texts_are_translated_as_each_alone(translator: Model) -> None:
    texts = [record.source for record in RECORDS[:5]]
    together = translator.predict(texts)
    for text, answer in zip(texts, together, strict=True):
        (alone,) = translator.predict([text])
        assert alone.translation == answer.translation
        assert alone.log_likelihood == pytest.approx(answer.log_likelihood, abs=1e-5)
        assert answer.unknown == []


def test_a_long_text_is_translated_sentence_by_sentence(translator: Model) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    task.longest = max(len(one) for one in translator.tokenizer.encode(PROSE[:4]))
    text = " ".join(PROSE[:4])
    (example,) = task.features([TranslateInput(text)], translator.tokenizer, 64)
    assert example.notes.parts == PROSE[:4]
    one_by_one = translator.predict(PROSE[:4])
    assert translator.predict([text])[0].translation == " ".join(x.translation for x in one_by_one if x.translation)


def test_what_learned_from_sentences_translates_them_one_by_one(translator: Model) -> None:
    texts = ["Rain fell. It fell again.", "Rain fell on the roof."]
    for sources, parts in (
        (PROSE[:10], [["Rain fell.", "It fell again."], texts[1:]]),
        (texts[:1] * 3, [[x] for x in texts]),
    ):
        task = task_of()
        learned(task, translator, [TranslateInput(source, source.upper()) for source in sources])
        saved, _ = task.for_saving(torch.nn.Identity())
        again = Translate.from_settings({"options": saved.options() | {"decoder": saved.shape | {"depths": [1]}}})
        for one in (task, saved, again):
            one.longest = 64
            examples = one.features([TranslateInput(text) for text in texts], translator.tokenizer, 64)
            assert [example.notes.parts for example in examples] == parts


@pytest.mark.parametrize("by_sentence", [True, False])
def test_a_text_of_nothing_has_no_words_in_its_translation(translator: Model, by_sentence: bool) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    task.by_sentence = by_sentence
    for task.longest in (None, 20):
        nothing, blank, _ = translator.predict(["", " \n ", "...\n!"])
        assert nothing.translation == blank.translation == ""
        assert nothing.log_likelihood == 0


@pytest.mark.parametrize("by_sentence", [True, False])
def test_lines_stay_lines(translator: Model, by_sentence: bool) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    task.longest, task.by_sentence = 30, by_sentence
    lines = ["Rain fell on the roof", "", "The baker", "It fell again."]
    alone = [answer.translation for answer in translator.predict(lines)]
    assert all(alone[at] for at in (0, 2, 3))
    (together,) = translator.predict(["\n".join(lines)])
    assert together.translation == "\n".join(alone)


def test_pairs_of_several_lines_are_learned_from(translator: Model) -> None:
    assert len(learned(task_of(), translator, [TranslateInput("Rain fell\non the roof", "RAIN")])) == 1


def test_no_word_is_lost_where_a_sentence_is_cut(tokenizer: Tokenizer) -> None:
    text = "The keeper of the lighthouse and the baker of the village " * 9 + ". Rain fell. It fell again."
    for longest in (8, 12, 30):
        parts = split_into_chunks(text, tokenizer, longest)
        assert "".join("".join(parts).split()) == "".join(text.split())
        assert longest < 12 or " ".join(parts) == text  # a word of more pieces than fit is cut too
        assert max(len(one) for one in tokenizer.encode(parts)) <= longest + 2


def test_short_sentences_are_read_together(tokenizer: Tokenizer) -> None:
    assert split_into_chunks("Rain fell. It fell.", tokenizer, 60) == ["Rain fell. It fell."]


def test_what_cannot_be_read_is_reported_and_copied_where_the_decoder_says_unknown(translator: Model) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    record = TranslateInput("Rain fell on 東京 (twice).")
    translator.tokenizer.warn_unknown = False
    (example,) = task.features([record], translator.tokenizer, 64)
    assert "".join(example.notes.unknown) == "東京"
    (sequence,) = example.sequences
    column = next(at for at, (start, end) in enumerate(sequence.offsets) if "東" in record.source[start:end])
    known = task.target.encode(["RAIN"])[0].ids[1:-1]
    ids = [*known, task.target.unk_id, *known, task.target.sep_id]
    looked = [0] * len(known) + [column] + [0] * (len(known) + 1)
    scores = {"ids": torch.tensor([ids]), "looked_at": torch.tensor([looked]), "log_likelihood": torch.tensor([-2.0])}
    answer = task.answer(record, example, scores)
    start, end = sequence.offsets[column]
    assert answer.translation == f"RAIN {record.source[start:end]} RAIN"
    assert answer.log_likelihood == pytest.approx(-2.0 / len(ids))


def test_no_space_comes_between_a_copied_character_and_the_rest_of_its_word(translator: Model, tmp_path: Path) -> None:
    translator.save(tmp_path)
    (tmp_path / "target" / "spiece.model").unlink()  # as somebody has it who has copied the other files
    task = load(tmp_path).task
    assert isinstance(task, Translate)
    tokens = [task.target.token(number) for number in range(task.target.vocab_size)]
    begins, goes_on = (
        next(at for at, x in enumerate(tokens[5:], 5) if x.startswith("▁") == starts) for starts in (1, 0)
    )
    for number, gap in ((begins, " "), (goes_on, "")):
        assert _copied(task, translator.tokenizer, "東", [1], [number]) == f"東{gap}{task.target.decode([number])}"


def test_pieces_that_go_on_are_marked_in_other_vocabularies(tmp_path: Path, tokenizer: Tokenizer) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Regen", "##t", "▁"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    task = task_of(target_tokenizer=tmp_path)
    assert _copied(task, tokenizer, "東", [1], [5]) == "東 Regen"
    assert _copied(task, tokenizer, "東", [1], [6]) == "東t"


def _copied(task: Translate, tokenizer: Tokenizer, text: str, columns: list[int], after: list[int]) -> str:
    """What is written of a text where unknown tokens look at these columns, and other tokens follow."""
    tokenizer.warn_unknown = False
    (example,) = task.features([TranslateInput(text)], tokenizer, 64)
    ids = [task.target.unk_id] * len(columns) + [*after, task.target.sep_id]
    looked = [*columns, *[0] * (len(after) + 1)]
    scores = {"ids": torch.tensor([ids]), "looked_at": torch.tensor([looked]), "log_likelihood": torch.tensor([-1.0])}
    return task.answer(TranslateInput(text), example, scores).translation


def test_nothing_is_copied_from_the_frame(translator: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    task, decoder = translator.task, translator.albert.heads["translate"]
    assert isinstance(task, Translate)
    step: Any = decoder.step

    def looks_at_the_frame(ids: torch.Tensor, cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
        scores, looks = step(ids, cache)
        ends = (cache.padding_bias[:, 0, 0] == 0).sum(1, keepdim=True) - 1
        return scores, looks.scatter(1, ends, 2.0).index_fill(1, torch.tensor([0]), 3.0)

    monkeypatch.setattr(decoder, "step", looks_at_the_frame)
    examples = task.features([TranslateInput(text) for text in PROSE[:6]], translator.tokenizer, 64)
    with torch.no_grad():
        scores = task.scores(translator.albert, collate(examples, 0))
    for example, ids, looked in zip(examples, scores["ids"].tolist(), scores["looked_at"].tolist(), strict=True):
        columns = set(looked[: ids.index(task.target.sep_id) + 1])
        assert columns <= set(range(1, example.length - 1))


@pytest.mark.parametrize("column", [3, 4])  # the space before it, and itself
def test_a_character_is_copied_by_its_space_too(translator: Model, column: int) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    assert task.features([TranslateInput("rain 東京 map")], translator.tokenizer, 64)[0].sequences[0].offsets[3] == (
        5,
        5,
    )
    assert _copied(task, translator.tokenizer, "rain 東京 map", [2, column], []) == "rain 東京"


def test_where_nothing_can_be_copied_there_is_no_space(translator: Model) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    begins = next(
        at for at in range(5, task.target.vocab_size) if task.target.token(at)[:1] == "▁" != task.target.token(at)
    )
    (example,) = task.features([TranslateInput("\u200b")], translator.tokenizer, 64)
    ids = [begins, task.target.unk_id, begins, task.target.sep_id]
    scores = {"ids": torch.tensor([ids]), "looked_at": torch.zeros(1, 4, dtype=int), "log_likelihood": torch.zeros(1)}
    word = task.target.decode([begins])
    assert task.answer(TranslateInput("\u200b"), example, scores).translation == f"{word} {word}"


def test_a_text_of_very_many_sentences_is_translated(translator: Model) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    task.search, task.by_sentence = BeamSearch(1, 1.0, 0), True
    many, other = translator.predict(["Rain. " * 300, "Rain."])
    assert many.translation == " ".join([other.translation] * 300)


def test_scores_are_those_of_sacrebleu(translator: Model) -> None:
    sacrebleu = peer("sacrebleu")
    task = translator.task
    assert isinstance(task, Translate)
    outputs = translator.predict([record.source for record in RECORDS])
    right = [RECORDS[0].target, *(output.translation for output in outputs[1:])]
    given = [type(outputs[0])(text or "", 0.0, []) for text in right]
    found = task.metrics(RECORDS, given)
    truths = [[record.target for record in RECORDS]]
    assert found["bleu"] == sacrebleu.corpus_bleu(right, truths).score > 0
    assert found["chrf"] == sacrebleu.corpus_chrf(right, truths).score
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in task.signatures(RECORDS)["bleu"]
    assert task.judge(RECORDS[0], given[0]).right == 1
    assert task.judge(RECORDS[1], given[1]).right < 1
    assert task.baseline(RECORDS)["bleu"] < 100


# Folders


def test_the_hub_is_asked_for_all_of_the_vocabulary(translator: Model, tmp_path: Path) -> None:
    hub = peer("huggingface_hub.utils")
    translator.save(tmp_path)
    files = {f"target/{file.name}" for file in (tmp_path / "target").iterdir()}
    assert "target/spiece.model" in files
    assert set(hub.filter_repo_objects(files, allow_patterns=HUB_FILES)) == files


def test_a_folder_is_read_again_with_its_vocabulary(translator: Model, tmp_path: Path) -> None:
    transformers = peer("transformers")
    task = translator.task
    assert isinstance(task, Translate)
    task.search, task.longest = BeamSearch(2, 0.5), 30
    translator.save(tmp_path)
    again = load(tmp_path)
    assert isinstance(again.task, Translate)
    assert (again.task.search, again.task.longest) == (BeamSearch(2, 0.5), 30)
    assert again.predict(PROSE[:3]) == translator.predict(PROSE[:3])
    with pytest.raises(ValueError, match="litebert"):
        transformers.AutoModel.from_pretrained(tmp_path)  # which would answer without the decoder

    other = train_unigram(PROSE, 200, lowercase=False)
    other.save(tmp_path / "target")
    with pytest.raises(CheckpointError, match="do not belong together"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("decoder", "layers", 1.0),
        ("decoder", "reading_layers", True),
        ("decoder", "vocab_size", "120"),
        ("decoder", "hidden_size", 16.0),
        ("decoder", "heads", 4.0),
        ("decoder", "depths", [1.5]),
        ("decoder", "dropout", "x"),
        ("search", "beams", 5.0),
        ("search", "offset", 10.5),
        ("search", "length_penalty", None),
        ("", "longest", "x"),
        ("", "search", 7),
    ],
)
def test_a_damaged_folder_is_told_in_one_line(
    translator: Model, tmp_path: Path, where: str, name: str, value: object
) -> None:
    translator.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    found = [one["options"] for one in (config, *config.values()) if isinstance(one, dict) and "options" in one]
    (found[0][where] if where else found[0])[name] = value
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"has invalid settings of the decoder .*; save it again") as told:
        load(tmp_path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("words", "truth", "given"),
    [
        ("zh", "孩子们在公园里唱歌，他在看一本 Python 的书。", "孩子们在公园里唱歌，她在看一本 Python 的书。"),
        ("char", "子どもたちは公園で歌っています。", "子どもたちは公園で踊っています。"),
        ("char", "아이들이 공원에서 노래하고 있습니다.", "아이들이 공원에서 노래하고 있다."),
        ("char", "เด็กกำลังร้องเพลงในสวน", "เด็กกำลังเต้นในสวน"),
        ("13a", "The children (孩子) sing in the park.", "The children (孩子) dance in the park."),
    ],
)
def test_bleu_finds_words_as_the_script_of_the_references_wants(words: str, truth: str, given: str) -> None:
    sacrebleu, task = peer("sacrebleu"), task_of()
    records = [TranslateInput("the children sing", truth)]
    found = task.metrics(records, [TranslateOutput(given, 0.0, [])])
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu([given], [[truth]], tokenize=words).score)
    assert found["bleu"] > 20
    assert f"|tok:{words}|" in task.signatures(records)["bleu"]


@pytest.mark.parametrize(
    ("sentences", "text"),
    [
        (("“猫在睡觉。”", "", "“狗在跑。”"), "“猫在睡觉。”“狗在跑。”"),
        (("猫が寝ています。", "犬が走る。"), "猫が寝ています。犬が走る。"),
        (("고양이가 잔다.", "개가 달린다."), "고양이가 잔다. 개가 달린다."),
        (("The cat sleeps.", "", "It rains."), "The cat sleeps. It rains."),
    ],
)
def test_translated_sentences_are_joined_as_their_script_wants(
    sentences: tuple[str, ...], text: str, translator: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = translator.task
    assert isinstance(task, Translate)
    task.by_sentence, given = True, iter(sentences)
    monkeypatch.setattr(task, "_decode", lambda *_: next(given))
    assert translator.predict([" ".join(PROSE[: len(sentences)])])[0].translation == text
