"""Ids from the table are the tokenizer's own, on any text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.encode import tokenizer_files
from litebert.data.word_cache import WordCache
from litebert.tokenizer import Tokenizer, train_unigram, train_wordpiece
from tests.conftest import PROSE

DIVERSE = [
    *PROSE[:11],
    "Dr. O'Neill-Smith (née Müller) paid £1,234.50 — or €1.400,– in 2019…",
    "\"Quoted.\" 'Single' “curly” ‘curly’ «guillemets» (a(b)c) -- - -a a- ...a.b",
    "kkk aaaa hahaha zzzzzz anana banana",
    "x ▁y ▁ z_▁",
    "[CLS] [MASK] a [MASK]b <pad> <PAD> [mask] [Sep]",
    "tab\there\u00a0nbsp\u3000wide  two   three ",
    'A\u00a0"b" c\u200b(d \u200b(e \u00ad-f g\u00ad-h \x01(i',
    "cafe\u0301 e \u0301x \u200dz \ufe0f( \U0001f469\u200d\U0001f680-a",
    "ŞIİı ΑΣ Σας ﬁne ﬀ ½ ² Ⅻ ㎏ ｆｕｌｌ Ｗ！",
    "हिन्दी में लिखा हुआ वाक्य। दिल्ली में",
    "ภาษาไทย น้ำ กำ",
    "ລາວ ນ້ຳ",
    "한국어 문장입니다. \u1100\u1161\u11a8",
    "他说：“你好。”然后走了。2015年T恤 K歌 字\u0301字 𠮷野家 漢字 0\U0002ceb0",
    "これは文です。ﾊﾟﾋﾟ ﾞ か\u3099",
    "\u0600123 \u06dd ا\u0600 ب",
    "مرحبا بالعالم؟ שלום",
    "😀abc 😀 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
    *("", " ", "a", "(", " ( ", "-", "a-", "\u2013a \u2013 b\u2013c"),
    "`x` ~ ^ {y} | \\ / @#$%&*+=",
    "`` '' ''a ``b",
]

VOCABULARIES: dict[str, Callable[[], Tokenizer]] = {
    "unigram": lambda: train_unigram(DIVERSE[:11] + DIVERSE, 400),
    "unigram, cased": lambda: train_unigram(DIVERSE, 400, lowercase=False, strip_accents=False),
    "wordpiece": lambda: train_wordpiece(DIVERSE, 400),
    "wordpiece, cased": lambda: train_wordpiece(DIVERSE, 400, lowercase=False, strip_accents=False),
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def table(request: pytest.FixtureRequest) -> WordCache:
    return table_of(VOCABULARIES[request.param]())


def table_of(tokenizer: Tokenizer) -> WordCache:
    return WordCache(tokenizer, tokenizer_files(tokenizer)["tokenizer.json"])


def ids_of(table: WordCache, sentences: list[str]) -> list[list[int]]:
    pieces = table.encode(sentences)
    return [part.tolist() for part in np.split(pieces.ids, np.cumsum(pieces.lengths)[:-1])]


def test_ids_are_the_tokenizers_own_on_diverse_text(table: WordCache) -> None:
    assert not table.rules.is_uncuttable
    wanted = table.tokenizer.encode_ids(DIVERSE)
    assert ids_of(table, DIVERSE) == wanted
    assert ids_of(table, DIVERSE) == wanted  # now all of it is remembered


@given(
    sentences=st.lists(
        st.text(
            st.characters(codec="utf-8", exclude_characters="\n")
            | st.sampled_from(list(' ()"-.–£€ aB1,▁字ẞ\u0301\u00a0\u200b\u200d\u0e33[]<>')),
            max_size=40,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_ids_are_the_tokenizers_own_on_any_text(table: WordCache, sentences: list[str]) -> None:
    assert ids_of(table, sentences) == table.tokenizer.encode_ids(sentences)
