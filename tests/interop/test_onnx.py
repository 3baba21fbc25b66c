"""Exported graphs, computed by ONNX Runtime, beside torch."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import litebert
from litebert.data.batches import Batch, pad
from litebert.errors import ConfigError
from litebert.fewshot import Adapted
from litebert.fewshot.adapt import adapt_frozen as adapt
from litebert.inference import Model
from litebert.interop.export import relative_error
from litebert.interop.onnx import AnswerModule, VectorModule, export_program, make_graph, run_session
from litebert.interop.onnx_int8 import quantize_graph
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.model.config import Sharing
from litebert.tasks import Mask
from litebert.tasks.answer import Answer
from litebert.tasks.choose import Choose
from litebert.tasks.classify import Classify
from litebert.tasks.multilabel import Multilabel
from litebert.tasks.regress import Regress
from litebert.tasks.tag import Tag
from tests.fewshot.test_support_set import pairs_that_say_the_same
from tests.fewshot.words import texts_of

LONGEST = 64
TASKS = {
    "classify": Classify(["a", "b", "c"]), "classify, mlp": Classify(["a", "b"], "mlp"),
    "classify, cnn": Classify(["a", "b"], "cnn"), "multilabel": Multilabel(["a", "b"]), "regress": Regress(),
    "tag": Tag(["O", "B-x", "I-x"]), "tag, crf": Tag(["O", "B-x", "I-x"], crf=True), "choose": Choose(),
    "answer": Answer(), "answer, joint": Answer("joint"), "mask": Mask(),
}  # fmt: skip


def albert_of(task: Any = None, **changes: object) -> Albert:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 100, "embedding_size": 32, "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128,
        "num_attention_heads": 4, "initializer_range": 0.2, "max_position_embeddings": LONGEST,
    } | changes  # fmt: skip
    config = AlbertConfig(**settings)
    if isinstance(task, Mask):
        return Albert(config, pretraining_heads(config)).eval()
    return Albert(config, {} if task is None else {task.head_name: task.head(config)}).eval()


def batches() -> list[Batch]:
    found = []
    for count, length in ((1, 1), (1, 9), (4, 20), (2, LONGEST)):
        ids = torch.randint(5, 100, (count, length), generator=torch.Generator().manual_seed(length))
        real = torch.ones_like(ids, dtype=torch.bool)
        real[1:, length * 2 // 3 :] = False
        found.append(Batch(ids, real, (torch.arange(length) >= length // 3) * real.long()))
    return found


def session_of(graph: onnx.ModelProto) -> Any:
    onnx.checker.check_model(graph)
    return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])


def furthest(graph: onnx.ModelProto, module: torch.nn.Module) -> float:
    session = session_of(graph)
    with torch.inference_mode():
        return max(
            relative_error(
                run_session(session, batch), module(batch.input_ids, batch.real.long(), batch.token_type_ids)
            )
            for batch in batches()
        )


@pytest.mark.parametrize("name", TASKS)
def test_every_head_says_the_same_for_any_number_of_texts_of_any_length(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litebert.interop.onnx_int8.MIN_QUANTIZED_SIZE", 1 << 10)
    module = AnswerModule(albert_of(TASKS[name]), TASKS[name])
    graph = make_graph(module, LONGEST)
    assert furthest(graph, module) < 1e-4
    before = graph.ByteSize()
    quantize_graph(graph)
    assert graph.ByteSize() < 0.7 * before
    assert 1e-5 < furthest(graph, module) < 0.15
    read = {name for node in graph.graph.node for name in node.input}
    assert read >= {one.name for one in graph.graph.initializer}


@pytest.mark.parametrize(
    "changes",
    [{"sharing": sharing} for sharing in get_args(Sharing)]
    + [{"relative_attention_distance": 4, "depth_embedding": True, "lora_rank": 2}, {"num_hidden_groups": 3}],
    ids=str,
)
def test_every_way_of_sharing_says_the_same(changes: dict[str, object]) -> None:
    albert = albert_of(**changes)
    with torch.no_grad():
        for weight in albert.parameters():  # some start as zeros
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    module = VectorModule(albert, None)
    assert furthest(make_graph(module, LONGEST), module) < 1e-4


def test_a_shared_layer_is_stored_once_however_many_passes_there_are() -> None:
    sizes = [
        make_graph(VectorModule(albert_of(num_hidden_layers=depth), None), LONGEST).ByteSize() for depth in (2, 12)
    ]
    layer = 4 * (4 * 64 * 64 + 2 * 64 * 128)
    assert sizes[1] - sizes[0] < layer  # ten passes more cost less than one layer: nodes, no weights


def test_the_built_in_model_is_as_small_as_its_weights() -> None:
    model = litebert.load("litebert-base-en", engine="torch")
    module = VectorModule(model.albert, model.sentence_map)
    graph = make_graph(module, model.max_length)
    parameters = sum(one.numel() for one in module.parameters())
    assert graph.ByteSize() < 4 * parameters * 1.01
    texts = ["The weather is nice.", "It rained for three days, and nobody minded."]
    encoded = [torch.tensor([one.ids]) for one in model.tokenizer.encode(texts)]
    truth = model.embed(texts)
    for eight, close in ((False, 1e-4), (True, 0.2)):
        if eight:
            quantize_graph(graph)
            assert graph.ByteSize() < 13e6
        session = session_of(graph)
        for ids, vector in zip(encoded, truth, strict=True):
            found = run_session(session, Batch(ids, None, torch.zeros_like(ids)))["sentence_embedding"]
            assert relative_error({"": found[0]}, {"": torch.from_numpy(vector)}) < close


def test_a_matrix_that_somebody_reads_in_another_way_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litebert.interop.onnx_int8.MIN_QUANTIZED_SIZE", 1 << 10)
    module = AnswerModule(albert_of(TASKS["classify"]), TASKS["classify"])
    graph = make_graph(module, LONGEST)
    words = next(one.name for one in graph.graph.initializer if "word_embeddings" in one.name)
    graph.graph.node.append(onnx.helper.make_node("ReduceSum", [words], ["sum"]))
    graph.graph.output.append(onnx.helper.make_tensor_value_info("sum", onnx.TensorProto.FLOAT, [1, 1]))
    quantize_graph(graph)
    assert words in {one.name for one in graph.graph.initializer}
    session_of(graph)


def test_the_table_of_words_stands_once_though_it_is_read_and_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litebert.interop.onnx_int8.MIN_QUANTIZED_SIZE", 1 << 10)
    graph = make_graph(AnswerModule(albert_of(TASKS["mask"], vocab_size=20_000), TASKS["mask"]), LONGEST)
    quantize_graph(graph)
    assert [list(one.dims) for one in graph.graph.initializer].count([20_000, 32]) == 1
    assert [32, 20_000] not in [list(one.dims) for one in graph.graph.initializer]


def test_torchs_own_form_says_the_same() -> None:
    module = AnswerModule(albert_of(TASKS["classify"]), TASKS["classify"])
    program = export_program(module, LONGEST).module()
    with torch.inference_mode():
        for batch in batches():
            given = {"input_ids": batch.input_ids, "attention_mask": batch.real.long()}
            given["token_type_ids"] = batch.token_type_ids
            assert relative_error(program(**given), module(**given)) < 1e-5


def test_what_no_graph_can_say_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    lstm = Classify(["a", "b"], "lstm")
    with pytest.raises(ConfigError, match=r"LSTM reads texts one by one.* --head linear"):
        AnswerModule(albert_of(lstm), lstm)
    module = AnswerModule(albert_of(TASKS["classify"]), TASKS["classify"])

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator") from ValueError("a reason\nand more")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(ConfigError, match="torch cannot write this model as a graph: a reason; use --give vectors"):
        make_graph(module, LONGEST)
    assert module.albert.encoder.attention_implementation == "auto"


# --- adapted models: the graph holds the examples --------------------------------------------------------------------


def adapted_to(model: Model, kind: str) -> tuple[Adapted, list[Any]]:
    """And some questions."""
    if kind == "pairs":
        pairs, labels = pairs_that_say_the_same(20, 0)
        return adapt(model, pairs, labels), pairs_that_say_the_same(6, 1)[0]
    texts, labels = texts_of(100 if kind == "bent" else 40, 0)
    return adapt(model, texts, labels), texts_of(6, 1)[0]


@pytest.mark.parametrize("kind", ["few", "bent", "pairs"])
def test_an_adapted_model_answers_the_same(model: Model, kind: str) -> None:
    adapted, asked = adapted_to(model, kind)
    assert (adapted.evidence.exponential, adapted.evidence.characters) == (kind == "bent", kind != "pairs")
    assert adapted.task is not None
    graph = make_graph(AnswerModule(adapted.albert, adapted.task), model.max_length)
    session = session_of(graph)
    asked += [asked[0][:3]] if kind != "pairs" else [("a", "b")]  # hardly any tokens
    truth = adapted.predict(asked)
    both = [[one] if isinstance(one, str) else list(one) for one in asked]
    encoded = [model.tokenizer.encode([one[0]], [one[1]] if len(one) > 1 else None)[0] for one in both]
    together = run_session(session, pad(encoded, model.tokenizer.pad_id))
    for row, (encoding, answer) in enumerate(zip(encoded, truth, strict=True)):
        alone = run_session(session, pad([encoding], model.tokenizer.pad_id))
        for found in (alone, {name: values[row : row + 1] for name, values in together.items()}):
            expected = [answer.probabilities[label] for label in adapted.labels]
            np.testing.assert_allclose(found["probabilities"][0], expected, atol=1e-4)
            assert found["scores"].argmax() == found["probabilities"].argmax()
            assert found["unknown"][0] == pytest.approx(answer.unknown, abs=1.01 / (1 + len(adapted.support.records)))
    assert len({round(float(value), 3) for value in together["unknown"]}) > 1


def test_an_adapted_model_in_eight_bits(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litebert.interop.onnx_int8.MIN_QUANTIZED_SIZE", 1 << 6)
    adapted, asked = adapted_to(model, "few")
    assert adapted.task is not None
    graph = make_graph(AnswerModule(adapted.albert, adapted.task), model.max_length)
    quantize_graph(graph)
    assert onnx.TensorProto.INT8 in {one.data_type for one in graph.graph.initializer}
    found = run_session(session_of(graph), pad(model.tokenizer.encode(asked), model.tokenizer.pad_id))
    expected = [[answer.probabilities[label] for label in adapted.labels] for answer in adapted.predict(asked)]
    np.testing.assert_allclose(found["probabilities"], expected, atol=0.15)
