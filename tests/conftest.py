"""What tests share: a tiny tokenizer and model made here, and the way to data and peers that may be absent.

The large data sets stand outside the repository. Where they are (LITEBERT_DATA, or ../shared/data), a test that misses
its data or its oracle library fails; elsewhere it is skipped with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch

from litebert.inference import Model
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.tasks import Mask
from litebert.tokenizer import Tokenizer, train_unigram

# Tests run side by side: with more threads than cores torch spends its time waiting.
torch.set_num_threads(1)

FIXED = "CI" in os.environ  # there, a change is judged by the same examples every time
hypothesis.settings.register_profile("quick", max_examples=25, deadline=None, derandomize=FIXED)
hypothesis.settings.register_profile("thorough", max_examples=300, deadline=None, derandomize=FIXED)
hypothesis.settings.load_profile(os.environ.get("LITEBERT_HYPOTHESIS", "quick"))

REPOSITORY = Path(__file__).parent.parent
os.environ["LITEBERT_CACHE"] = str(REPOSITORY / ".cache" / "litebert")  # not what the user has
DATA = Path(os.environ.get("LITEBERT_DATA", REPOSITORY.parent / "shared" / "data"))

PROSE = [
    "The lighthouse keeper wrote down the weather every morning before breakfast.",
    "Nobody in the village remembered when the old bridge had last been painted.",
    "She packed two sandwiches, a map, and the letter that had started it all.",
    "Rain fell on the tin roof while the children counted the seconds between thunder.",
    "The baker opened at five, and by seven the shelves were nearly empty.",
    "A model that answers quickly is worth more than one that answers tomorrow.",
    "They measured the garden twice (once in feet, once in metres) and disagreed.",
    "His grandmother's recipe called for 3 eggs, £2 of butter and a lot of patience.",
    "When the train stopped between stations, people began to talk to each other.",
    "The library was closed on Mondays, so Tuesday mornings were always busy.",
    "A quick brown fox jumps over the lazy dog; xylophones, 0 1 2 3 4 5 6 7 8 9!",
] * 12  # fmt: skip


def missing(what: str) -> None:
    """Skip where the data sets are absent, fail where they are present: there, everything must be."""
    if DATA.is_dir():
        pytest.fail(f"{what} is missing although {DATA} is there")
    pytest.skip(f"{what} is not here; set LITEBERT_DATA or install the dev extra to run this")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with the real data sets."""
    if not DATA.is_dir():
        pytest.skip("the real data sets are not here; set LITEBERT_DATA to the folder that holds them")
    return DATA


def peer(name: str) -> ModuleType:
    """An oracle library."""
    try:
        module = importlib.import_module(name)
        if name == "transformers":
            module.logging.disable_progress_bar()
            module.logging.set_verbosity_error()
        return module
    except ImportError:
        missing(name)
        raise


@pytest.fixture(scope="session")
def trained_albert() -> Path:
    """The folder of a really trained ALBERT, which the rxnmapper package carries."""
    spec = importlib.util.find_spec("rxnmapper")
    if spec is None or spec.origin is None:
        missing("rxnmapper (pip install --no-deps rxnmapper==0.4.3)")
    assert spec is not None
    assert spec.origin is not None
    return next((Path(spec.origin).parent / "models" / "transformers").iterdir())


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_unigram(PROSE, 200)


@pytest.fixture
def tiny_config(tokenizer: Tokenizer) -> AlbertConfig:
    return AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )


@pytest.fixture
def model(tokenizer: Tokenizer, tiny_config: AlbertConfig) -> Model:
    """A tiny pre-training model with random weights."""
    torch.manual_seed(0)
    return Model(Albert(tiny_config, pretraining_heads(tiny_config)).eval(), tokenizer, Mask())
