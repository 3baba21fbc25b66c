"""Our ids against sentencepiece and transformers, on real text."""

from __future__ import annotations

import lzma
import shutil
import unicodedata
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from litebert.tokenizer import Tokenizer, Truncation, train_unigram, train_wordpiece
from tests.conftest import peer

LINES = 100_000
STRIDES = [4, pytest.param(1, marks=pytest.mark.slow)]
"""Every fourth line, or all of them."""
KINDS = ["english", "chinese", "trained_unigram", "trained_wordpiece"]
STRANGE = [
    *("", " ", "\n", "“Quoted” – it’s £5…", "½ cup of ﬁne ＦＬＯＵＲ", "ÉCOLE cafe\u0301", "İ ẞ Σ", "##a ▁b"),
    *("👩‍👩‍👧‍👦 👍🏽", "한국어", "हिन्दी", "ภาษาไทย", "שָׁלוֹם", "مرحبًا", "\x07bell\x00null", "zero\u200bwidth"),
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:.*unknown to this vocabulary")  # half of the lines are not its language


def lines_of(path: Path, count: int) -> list[str]:
    """The first lines of a packed corpus file that hold text."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return list(islice((line.rstrip("\n") for line in file if line.strip()), count))


@pytest.fixture(scope="module")
def english_lines(data: Path) -> list[str]:
    """Half encyclopedia, half novels."""
    halves = [lines_of(data / f"corpus/en/{name}.txt.xz", LINES // 2) for name in ("wiki-1", "books-1")]
    return halves[0] + halves[1]


@pytest.fixture(scope="module")
def chinese_lines(data: Path) -> list[str]:
    return lines_of(data / "corpus/zh/wiki.txt.xz", LINES)


@pytest.fixture(scope="module")
def trained_unigram(data: Path) -> Tokenizer:
    return train_unigram(lines_of(data / "corpus/en/wiki-2.txt.xz", 1_000), 2_000)


@pytest.fixture(scope="module")
def trained_wordpiece(data: Path) -> Tokenizer:
    return train_wordpiece(lines_of(data / "corpus/zh/wiki.txt.xz", 2_000), 4_000)


@pytest.fixture(scope="module")
def mixed_lines(data: Path) -> list[str]:
    """A few hundred lines of both languages, and strange ones."""
    return [
        *lines_of(data / "corpus/en/wiki-3.txt.xz", 300),
        *lines_of(data / "corpus/zh/wiki.txt.xz", 300),
        *STRANGE,
        *("[MASK]", "the [MASK] of[MASK]"),
    ]


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """One of our tokenizers, and what transformers makes of its saved folder."""
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer.save(folder)
    return tokenizer, peer("transformers").AutoTokenizer.from_pretrained(folder)


def cleaned(text: str) -> str:
    """The clean-up of Google's ALBERT code, in its own steps."""
    decomposed = unicodedata.normalize("NFKD", " ".join(text.split()))
    return "".join(character for character in decomposed if not unicodedata.combining(character)).lower()


def unexplained(processor: Any, ours: list[list[int]], theirs: list[list[int]]) -> tuple[int, list[int]]:
    """How many lines differ, and those whose two cuts do not score the same: not a tie decided by float precision."""

    def score(ids: list[int]) -> float:
        return sum(map(processor.get_score, ids))

    pairs = zip(ours, theirs, strict=True)
    different = [number for number, (our, their) in enumerate(pairs) if our != their]
    return len(different), [n for n in different if abs(score(ours[n]) - score(theirs[n])) > 1e-3]


def report(capsys: pytest.CaptureFixture[str], peer_name: str, different: int, lines: int) -> None:
    with capsys.disabled():
        print(f"\n{peer_name}: {different} of {lines:,} lines differ", end=" ")


@pytest.mark.parametrize("stride", STRIDES)
def test_english_ids_are_those_of_sentencepiece_up_to_ties(
    english: Tokenizer, english_lines: list[str], data: Path, capsys: pytest.CaptureFixture[str], stride: int
) -> None:
    path = data / "vocab/english/spiece.model"
    processor = peer("sentencepiece").SentencePieceProcessor(model_file=str(path))
    lines = english_lines[::stride] + STRANGE
    theirs = processor.encode([cleaned(line) for line in lines])
    different, wrong = unexplained(processor, english.encode_ids(lines), theirs)
    report(capsys, "sentencepiece, English", different, len(lines))
    assert len(english_lines) >= LINES
    assert wrong == []
    assert different <= 0.0002 * len(lines)


def test_trained_unigram_ids_are_those_of_sentencepiece_up_to_ties(
    trained_unigram: Tokenizer, english_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    processor = peer("sentencepiece").SentencePieceProcessor(model_proto=trained_unigram.spiece)
    lines = english_lines[:: LINES // 5_000] + STRANGE
    normalise = trained_unigram._pipeline.normalizer.normalize_str
    theirs = processor.encode([normalise(line) for line in lines])
    different, wrong = unexplained(processor, trained_unigram.encode_ids(lines), theirs)
    report(capsys, "sentencepiece, trained", different, len(lines))
    assert wrong == []
    assert different <= 0.001 * len(lines)


@pytest.mark.parametrize("stride", STRIDES)
def test_chinese_ids_are_those_of_transformers(
    chinese: Tokenizer, chinese_lines: list[str], mixed_lines: list[str], data: Path,
    capsys: pytest.CaptureFixture[str], stride: int,
) -> None:  # fmt: skip
    bert = peer("transformers").BertTokenizer(str(data / "vocab/chinese/vocab.txt"))
    lines = chinese_lines[::stride] + mixed_lines
    theirs = bert(
        lines, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
    )["input_ids"]
    ours = chinese.encode_ids(lines)
    different = sum(our != their for our, their in zip(ours, theirs, strict=True))
    report(capsys, "transformers, Chinese", different, len(lines))
    assert len(chinese_lines) >= LINES
    assert different == 0


def test_transformers_reads_our_folder_with_the_same_ids_and_types(
    saved: tuple[Tokenizer, Any], mixed_lines: list[str]
) -> None:
    tokenizer, auto = saved
    theirs = auto(mixed_lines, verbose=False)
    ours = tokenizer.encode(mixed_lines)
    assert [encoding.ids for encoding in ours] == theirs["input_ids"]
    assert [encoding.type_ids for encoding in ours] == theirs["token_type_ids"]


def test_transformers_encodes_pairs_with_the_same_ids_and_types(
    saved: tuple[Tokenizer, Any], mixed_lines: list[str]
) -> None:
    tokenizer, auto = saved
    partners = mixed_lines[::-1]
    theirs = auto(mixed_lines, partners, verbose=False)
    ours = tokenizer.encode(mixed_lines, partners)
    assert [encoding.ids for encoding in ours] == theirs["input_ids"]
    assert [encoding.type_ids for encoding in ours] == theirs["token_type_ids"]
    assert {number for types in theirs["token_type_ids"] for number in types} == {0, 1}


@pytest.mark.parametrize("truncation", ["longest_first", "only_first", "only_second"])
def test_transformers_truncates_pairs_to_the_same_ids(
    saved: tuple[Tokenizer, Any], mixed_lines: list[str], truncation: Truncation
) -> None:
    tokenizer, auto = saved
    long, short = mixed_lines, [line[:20] for line in mixed_lines[::-1]]
    pairs = (short, long) if truncation == "only_second" else (long, short)
    theirs = auto(*pairs, truncation=truncation, max_length=80)
    ours = tokenizer.encode(*pairs, max_length=80, truncation=truncation)
    assert [encoding.ids for encoding in ours] == theirs["input_ids"]
    assert [encoding.type_ids for encoding in ours] == theirs["token_type_ids"]
    assert max(map(len, ours)) == 80


def test_transformers_finds_the_same_special_tokens(saved: tuple[Tokenizer, Any]) -> None:
    tokenizer, auto = saved
    theirs = {role: getattr(auto, f"{role}_token") for role in tokenizer.specials}
    assert theirs == tokenizer.specials
    assert auto.mask_token_id == tokenizer.mask_id
    assert auto.pad_token_id == tokenizer.pad_id


@pytest.fixture(scope="module", params=["AlbertTokenizer", "BertTokenizer", "BertTokenizer, cased"])
def theirs(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A tokenizer of transformers, and the folder that it saved itself to."""
    transformers = peer("transformers")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    if request.param == "AlbertTokenizer":
        shutil.copy(data / "vocab/english/spiece.model", source)
        made = transformers.AlbertTokenizer.from_pretrained(source)
    else:
        shutil.copy(data / "vocab/chinese/vocab.txt", source)
        made = transformers.BertTokenizer.from_pretrained(source, do_lower_case=request.param == "BertTokenizer")
    made.save_pretrained(target)
    return made, target


def test_a_folder_saved_by_transformers_gives_its_ids(theirs: tuple[Any, Path], mixed_lines: list[str]) -> None:
    made, folder = theirs
    partners = mixed_lines[::-1]
    expected = made(mixed_lines, partners, return_token_type_ids=True, verbose=False)
    ours = Tokenizer.load(folder).encode(mixed_lines, partners)
    assert [encoding.ids for encoding in ours] == expected["input_ids"]
    assert [encoding.type_ids for encoding in ours] == expected["token_type_ids"]


@pytest.mark.parametrize("settings", ["", '{"do_lower_case": false}', '{"strip_accents": false}'])
def test_a_folder_with_only_a_vocab_file_gives_the_ids_of_transformers(
    data: Path, tmp_path: Path, mixed_lines: list[str], settings: str
) -> None:
    shutil.copy(data / "vocab/chinese/vocab.txt", tmp_path)
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(settings)
    expected = peer("transformers").BertTokenizer.from_pretrained(tmp_path)(mixed_lines, verbose=False)["input_ids"]
    assert [encoding.ids for encoding in Tokenizer.load(tmp_path).encode(mixed_lines)] == expected
