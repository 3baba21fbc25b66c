"""BERT folders, with transformers as the oracle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from litebert.data.batches import collate
from litebert.errors import CheckpointError, LitebertError
from litebert.interop.bert import load_bert
from litebert.interop.formats import load_folder
from litebert.interop.huggingface import save_folder
from litebert.tasks.base import hidden_states
from tests.interop.berts import make_bert

TEXTS = ["the order was late", "thanks", "where is the money now xyz"]


def batch_of(folder: Any) -> Any:
    from litebert.data.batches import Example

    return collate([Example([one]) for one in folder.tokenizer.encode(TEXTS)], folder.tokenizer.pad_id)


def inputs_of(batch: Any, theirs: Any) -> dict[str, Any]:
    given = {"input_ids": batch.input_ids, "attention_mask": batch.real.long()}
    segments = getattr(theirs.config, "type_vocab_size", 0) > 1
    return given | ({"token_type_ids": batch.token_type_ids} if segments else {})


ENCODERS = [
    "BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification", "BertForTokenClassification",
    "BertForQuestionAnswering", "RobertaModel", "RobertaForSequenceClassification", "RobertaForMaskedLM",
    "DistilBertModel", "DistilBertForMaskedLM",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*litebert has no head for")
@pytest.mark.parametrize("kind", ENCODERS)
def test_states_are_transformers(kind: str, tmp_path: Path) -> None:
    theirs, folder = make_bert(tmp_path, kind), load_bert(tmp_path)
    batch = batch_of(folder)
    with torch.no_grad():
        wanted = theirs.base_model(**inputs_of(batch, theirs)).last_hidden_state[batch.real]
        torch.testing.assert_close(hidden_states(folder.model.encoder, batch)[batch.real], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "RobertaForSequenceClassification"])
def test_classifiers_answer_as_in_transformers(kind: str, tmp_path: Path) -> None:
    theirs = make_bert(tmp_path, kind, id2label={0: "bad", 1: "good", 2: "neither"})
    folder = load_bert(tmp_path)
    task: Any = folder.task
    assert task.labels == ["bad", "good", "neither"]
    batch = batch_of(folder)
    with torch.no_grad():
        wanted = theirs(**inputs_of(batch, theirs)).logits
        torch.testing.assert_close(task.scores(folder.model, batch)["scores"], wanted, atol=1e-5, rtol=1e-5)


def test_one_output_is_a_number(tmp_path: Path) -> None:
    make_bert(tmp_path, "BertForSequenceClassification", num_labels=1)
    task = load_bert(tmp_path).task
    assert task is not None
    assert task.name == "regress"


@pytest.mark.parametrize(
    "kind", ["BertForMaskedLM", "BertForPreTraining", "RobertaForMaskedLM", "DistilBertForMaskedLM"]
)
def test_hidden_words_are_guessed_as_in_transformers(kind: str, tmp_path: Path) -> None:
    theirs, folder = make_bert(tmp_path, kind), load_bert(tmp_path)
    batch = batch_of(folder)
    with torch.no_grad():
        said = theirs(**inputs_of(batch, theirs))
        wanted = getattr(said, "prediction_logits", None)
        wanted = (said.logits if wanted is None else wanted)[batch.real]
        states = hidden_states(folder.model.encoder, batch)[batch.real]
        ours = folder.model.heads["mlm"](states, folder.model.encoder.word_embeddings.weight)
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-5)


def test_it_can_be_saved_as_an_albert_that_shares_nothing(tmp_path: Path) -> None:
    import transformers

    theirs, folder = make_bert(tmp_path / "bert"), load_bert(tmp_path / "bert")
    save_folder(tmp_path / "albert", folder)
    batch = batch_of(folder)
    albert = transformers.AlbertModel.from_pretrained(tmp_path / "albert").eval()
    with torch.no_grad():
        wanted, found = (one(**inputs_of(batch, theirs)).last_hidden_state[batch.real] for one in (theirs, albert))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        again = hidden_states(load_folder(tmp_path / "albert").model.encoder, batch)
        assert torch.equal(again, hidden_states(folder.model.encoder, batch))


def test_a_sentence_transformers_folder_says_how_long_texts_are(tmp_path: Path) -> None:
    make_bert(tmp_path)
    assert load_bert(tmp_path).max_length == 64
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    assert load_bert(tmp_path).max_length == 24
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    load_bert(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with pytest.warns(UserWarning, match="not means over tokens"):
        load_bert(tmp_path)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "another kind": (lambda f: edit(f, model_type="gpt2"), "model_type='gpt2' is not one of bert, roberta, distilbert"),
    "relative positions": (lambda f: edit(f, position_embedding_type="relative_key"), "absolute ones alone"),
    "a decoder": (lambda f: edit(f, is_decoder=True), "is a decoder"),
    "another activation": (lambda f: edit(f, hidden_act="mish"), "hidden_act='mish' must be one of"),
    "another size": (lambda f: edit(f, intermediate_size=64), "do not belong together"),
    "more layers": (lambda f: edit(f, num_hidden_layers=4), "lacks 16 tensors"),
    "fewer layers": (lambda f: edit(f, num_hidden_layers=2), "have no place"),
    "a size to fill the memory": (lambda f: edit(f, hidden_size=1_000_000), "hidden_size=1000000 must be"),
    "a size that is none": (lambda f: edit(f, hidden_size="32"), "hidden_size='32' must be"),
    "no vocabulary": (lambda f: (f / "vocab.txt").unlink(), "holds none of tokenizer.json"),
    "another vocabulary": (lambda f: (f / "vocab.txt").write_text("a\nb\n"), "lacks"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "weights are missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_no_bert_is_refused(name: str, tmp_path: Path) -> None:
    damage, said = DAMAGES[name]
    make_bert(tmp_path)
    damage(tmp_path)
    with pytest.raises(LitebertError, match=said):
        load_bert(tmp_path)


def test_what_distilbert_computes_otherwise_is_refused(tmp_path: Path) -> None:
    make_bert(tmp_path, "DistilBertForSequenceClassification")
    with pytest.raises(CheckpointError, match="bends with ReLU"):
        load_bert(tmp_path)


def test_who_loads_a_bert_hears_what_can_be_made_of_it(tmp_path: Path) -> None:
    make_bert(tmp_path)
    with pytest.raises(CheckpointError, match="litebert distill --from-bert"):
        load_folder(tmp_path)
