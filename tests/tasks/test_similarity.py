"""How alike two texts are: files, losses, metrics, and vectors that learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import litebert
from litebert.data.batches import Example, collate
from litebert.data.tables import TableOptions
from litebert.errors import CheckpointError, DataError
from litebert.files import read_json
from litebert.inference import Model
from litebert.model import Albert
from litebert.model.sentence_head import SentenceHead, SentenceMap
from litebert.tasks import Similarity
from litebert.tasks.similarity import LOSSES, SimilarOutput, best_threshold
from litebert.tasks.similarity_files import SimilarInput, kind_of
from litebert.tasks.similarity_losses import cosent, multiple_negatives_ranking, supervised_contrastive
from litebert.tokenizer import Tokenizer
from tests.conftest import PROSE, peer

FILES: dict[str, tuple[str, str, str]] = {
    "scored": ("a.tsv", "sentence1\tsentence2\tscore\na\tb\t4.5\nc\td\t1\n", "cosent"),
    "labelled": ("a.csv", "question1,question2,is_duplicate\na,b,1\nc,d,0\n", "cosent"),
    "positives": ("a.csv", "anchor,positive,negative\na,b,c\nd,e,f\n", "negatives"),
    "classes": ("a.csv", "text,label\na,x\nb,y\n", "contrast"),
    "plain": ("a.txt", "a sentence\n\nanother one\n", "simcse"),
}


def written(folder: Path, kind: str) -> Path:
    name, content, _ = FILES[kind]
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def unit(count: int, size: int = 8, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(count, size, generator=torch.Generator().manual_seed(seed)), dim=1)


def told(vectors: Any) -> SimilarOutput:
    rows = np.asarray(vectors, dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return SimilarOutput(float(rows[0] @ rows[-1]), rows)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FILES))
def test_what_a_file_knows_decides_what_it_is_learned_with(tmp_path: Path, kind: str) -> None:
    records = Similarity.read(written(tmp_path, kind))
    assert len(records) == 2
    assert kind_of(records) == kind
    assert Similarity.learn_from(records).loss_name == FILES[kind][2] == LOSSES[kind][0]  # type: ignore[index]


def test_nli_gives_what_follows_and_what_contradicts(tmp_path: Path) -> None:
    rows = ["p,e1,entailment", "p,n,neutral", "p,c1,contradiction", "p,c2,contradiction", "p,e2,entailment", "q,e3,-"]
    (tmp_path / "nli.csv").write_text("\n".join(["premise,hypothesis,gold_label", *rows]), encoding="utf-8")
    records = Similarity.read(tmp_path / "nli.csv")
    assert [(record.text, record.text_b) for record in records] == [("p", "e1"), ("p", "e2")]
    assert {record.negatives for record in records} == {("c1",), ("c2",)}
    assert kind_of(records) == "positives"


def test_several_negatives_stand_in_a_list_or_in_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"query": "q", "positive": "p", "negatives": ["x", "y"]}\n', encoding="utf-8")
    assert Similarity.read(tmp_path / "a.jsonl")[0].negatives == ("x", "y")
    (tmp_path / "b.csv").write_text("anchor,positive,negative_1,negative_2\nq,p,x,\n", encoding="utf-8")
    assert Similarity.read(tmp_path / "b.csv")[0].negatives == ("x",)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("text_a,text_b,label\na,b,maybe\n", r"line 2: label='maybe' of a pair must be a number"),
        ("text_a,text_b,label\na,,1\n", r"line 2: no text in column 'text_b'"),
        ("text_a,text_b,label\na,b,nan\n", r"label='nan' must be a finite number"),
        ("text_a,text_b,label\na,b,entailment\nc,d,0.5\n", r"line 3: label=0.5 must be one of entailment"),
    ],
)
def test_what_cannot_be_read_is_named_and_can_be_left_out(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=complaint):
        Similarity.read(path)
    options = TableOptions(skip_bad=True)
    Similarity.read(path, options)
    assert len(options.skipped) == 1


def test_a_loss_that_the_file_cannot_teach_is_refused() -> None:
    with pytest.raises(DataError, match=r"loss='contrast' does not learn from scored texts; cosent, simcse would"):
        Similarity.learn_from([SimilarInput("a", "b", 0.5), SimilarInput("c", "d", 3.0)], loss="contrast")
    with pytest.raises(DataError, match="the same number everywhere"):
        Similarity.learn_from([SimilarInput("a", "b", 2.0)] * 2)
    with pytest.raises(DataError, match="give files of one kind"):
        kind_of([SimilarInput("a"), SimilarInput("a", "b")])


def test_a_single_text_is_no_question() -> None:
    task = Similarity()
    assert task.parse(["a", "b"], "x") == task.parse({"text_a": "a", "text_b": "b"}, "x") == SimilarInput("a", "b")
    for item in ("one", {"text": "one"}, 3, ["a", "b", "c"]):
        with pytest.raises(DataError, match=r"input 1: .* is no pair"):
            task.parse(item, "input 1")


# --- losses -----------------------------------------------------------------------------------------------------------


def st_loss(name: str) -> Any:
    losses = peer("sentence_transformers.sentence_transformer.losses")
    return getattr(losses, name)


class Given(torch.nn.Module):
    """What sentence-transformers' losses ask for vectors."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": features["given"]}


def of_peer(name: str, columns: list[torch.Tensor], labels: torch.Tensor | None = None) -> float:
    loss = st_loss(name)(Given())
    return float(loss([{"given": column} for column in columns], labels))


def test_cosent_is_that_of_sentence_transformers() -> None:
    left, right, labels = unit(9), unit(9, seed=1), torch.tensor([0.0, 1, 2, 2, 5, 3, 4, 4, 1])
    assert float(cosent((left * right).sum(1), labels)) == pytest.approx(of_peer("CoSENTLoss", [left, right], labels))


@pytest.mark.parametrize("hard", [False, True])
def test_multiple_negatives_are_those_of_sentence_transformers(hard: bool) -> None:
    left, right, other = unit(9), unit(9, seed=1), unit(9, seed=2)
    candidates = torch.cat([right, other]) if hard else right
    none = torch.zeros(9, len(candidates), dtype=torch.bool)
    columns = [left, right, other] if hard else [left, right]
    ours = float(multiple_negatives_ranking(left, candidates, none))
    assert ours == pytest.approx(of_peer("MultipleNegativesRankingLoss", columns), rel=1e-5)


def test_a_text_that_stands_in_two_examples_is_no_negative(tokenizer: Tokenizer, model: Model) -> None:
    task = Similarity("negatives")
    records = [SimilarInput("rain", "thunder"), SimilarInput("rain", "roof"), SimilarInput("eggs", "butter")]
    examples = task.training_examples(records, task.features(records, tokenizer, 32))
    vectors = unit(6)
    found = float(task.loss({"vectors": vectors}, collate(examples, tokenizer.pad_id)))
    left, right = vectors[0::2], vectors[1::2]
    alike = 20 * left @ right.T
    alike[0, 1] = alike[1, 0] = -torch.inf
    assert found == pytest.approx(float(F.cross_entropy(alike, torch.arange(3))), rel=1e-5)


def test_contrast_brings_one_class_together() -> None:
    vectors = F.normalize(torch.tensor([[1.0, 0.1], [1, -0.1], [0.1, 1], [-0.1, 1]]), dim=1)
    right, wrong = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    assert supervised_contrastive(vectors, right, 0.05) < supervised_contrastive(vectors, wrong, 0.05)
    assert float(supervised_contrastive(vectors, torch.arange(4), 0.05)) == 0.0


def test_simcse_reads_every_text_of_any_file_twice(tokenizer: Tokenizer) -> None:
    records = [SimilarInput("rain", "roof", 1.0), SimilarInput("rain", "eggs", 0.0)]
    task = Similarity.learn_from(records, loss="simcse")
    examples = task.training_examples(records, task.features(records, tokenizer, 32))
    assert len(examples) == 3
    assert all(one.sequences[0].ids == one.sequences[1].ids for one in examples)
    assert task.needs_dropout
    assert not Similarity("cosent").needs_dropout


def test_sizes_are_learned_beside_the_whole(tokenizer: Tokenizer) -> None:
    records = [SimilarInput("rain", "roof", 1.0), SimilarInput("eggs", "map", 0.0), SimilarInput("a", "b", 0.5)]
    vectors = {"vectors": unit(6)}

    def loss(*sizes: int) -> float:
        task = Similarity("cosent", sizes=sizes)
        return float(
            task.loss(vectors, collate(task.training_examples(records, task.features(records, tokenizer, 32)), 0))
        )

    def alone(size: int) -> float:
        task = Similarity("cosent")
        batch = collate(task.training_examples(records, task.features(records, tokenizer, 32)), 0)
        return float(task.loss({"vectors": vectors["vectors"][:, :size]}, batch))

    assert loss() == loss(8) == pytest.approx(alone(8))
    assert loss(2) == pytest.approx((alone(8) + alone(2)) / 2, rel=1e-5)


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_correlations_and_labels_are_those_of_scipy_and_scikit_learn() -> None:
    stats, metrics = peer("scipy.stats"), peer("sklearn.metrics")
    random = np.random.default_rng(0)
    outputs = [told(random.standard_normal((2, 5))) for _ in range(40)]
    cosines, truth = np.array([one.score for one in outputs]), random.integers(0, 6, 40).astype(float)
    found = Similarity().metrics([SimilarInput("a", "b", label) for label in truth], outputs)
    assert found["spearman"] == pytest.approx(stats.spearmanr(cosines, truth)[0])
    assert found["pearson"] == pytest.approx(stats.pearsonr(cosines, truth)[0])
    alike = (truth > 2).astype(float)
    found = Similarity(threshold=0.1).metrics([SimilarInput("a", "b", label) for label in alike], outputs)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(alike, cosines >= 0.1))
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(alike, cosines))


def test_what_belongs_together_is_searched_among_all(tokenizer: Tokenizer) -> None:
    x, y = [1.0, 0.0], [0.0, 1.0]
    records = [SimilarInput("q", "p1"), SimilarInput("q", "p2"), SimilarInput("r", "p3", negatives=("n",))]
    outputs = [told([x, x]), told([x, [1, 0.5]]), told([y, [1, 1], y])]
    found = Similarity().metrics(records, outputs)
    assert found["recall@1"] == pytest.approx((1 / 2 + 0) / 2)  # of q one of two; r finds n before p3
    assert found["mrr"] == pytest.approx((1 + 1 / 2) / 2)
    assert found["map"] == pytest.approx((1 + 1 / 2) / 2)


def test_a_text_is_no_negative_of_itself_wherever_it_stands(tokenizer: Tokenizer, model: Model) -> None:
    task = Similarity("negatives")
    records = [
        SimilarInput("rain", "thunder", negatives=("eggs",)), SimilarInput("thunder", "rain"),
        SimilarInput("eggs", "butter"), SimilarInput("salt", "bread", negatives=("thunder", "rain")),
    ]  # fmt: skip
    examples = task.training_examples(records, task.features(records, tokenizer, 32))
    vectors = unit(11)  # rain thunder eggs | thunder rain | eggs butter | salt bread thunder rain
    found = float(task.loss({"vectors": vectors}, collate(examples, tokenizer.pad_id)))
    left, candidates = vectors[[0, 3, 5, 7]], vectors[[1, 4, 6, 8, 2, 9, 10]]
    alike = 20 * left @ candidates.T
    alike[0, [1, 5, 6]] = -torch.inf  # rain twice more, and thunder, which is its own
    alike[1, [0, 5, 6]] = -torch.inf
    alike[2, 4] = -torch.inf  # eggs
    assert found == pytest.approx(float(F.cross_entropy(alike, torch.arange(4))), rel=1e-5)


def test_scores_that_happen_to_be_0_and_1_are_scores(tmp_path: Path) -> None:
    task = Similarity.learn_from([SimilarInput("a", "b", label) for label in (0.0, 0.4, 1.0)])
    some = [SimilarInput("a", "b", 0.0), SimilarInput("c", "d", 1.0)]
    assert task.metric_for(some) == "spearman"
    assert "accuracy" not in task.metrics(some, [told([[1, 0], [0, 1]]), told([[1, 0], [1, 0]])])
    assert Similarity.learn_from(some).metric_for(some) == "accuracy"


def test_a_dash_where_there_is_no_nli_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text_a,text_b,label\na,b,0.5\nc,d,-\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3: label='-' is for NLI"):
        Similarity.read(path)


def test_a_negative_that_is_no_text_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"anchor": "a", "positive": "b", "negatives": [0]}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"line 1: negative=0 must be a string"):
        Similarity.read(path)


@pytest.mark.parametrize("options", [{"sizes": [-40]}, {"scale": [1, 1]}], ids=str)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="do not fit similarity"):
        Similarity.from_settings({"options": options})


def test_classes_find_their_own() -> None:
    records = [SimilarInput("a", label="x"), SimilarInput("b", label="x"), SimilarInput("c", label="y")]
    outputs = [told([[1, 0.1]]), told([[1, -0.1]]), told([[0, 1]])]
    assert Similarity().metrics(records, outputs)["recall@1"] == 1.0
    outputs[2] = told([[1, 0.0]])
    assert Similarity().metrics(records, outputs)["recall@1"] == 0.0


def test_the_threshold_is_where_most_are_right() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        scores, alike = random.integers(0, 9, 15) / 9, random.random(15) < 0.5  # some are equal
        best = best_threshold(scores, alike)
        right = ((scores >= best) == alike).sum()
        assert right == max(((scores >= at) == alike).sum() for at in [*scores, 2.0])


def test_sizes_are_measured_by_themselves() -> None:
    records = [SimilarInput("a", "b", label) for label in (0.0, 1.0, 2.0)]
    outputs = [told([[1, 0], [1, 9]]), told([[1, 0], [1, 4]]), told([[1, 0], [1, 1]])]
    found = Similarity(sizes=(1,)).metrics(records, outputs)
    assert found["spearman"] == pytest.approx(1.0)
    assert found["spearman, 1"] == 0.0  # by the first number all are the same


# --- vectors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FILES))
def test_every_loss_has_a_gradient_for_the_encoder_and_the_map(
    tmp_path: Path, kind: str, tokenizer: Tokenizer, model: Model
) -> None:
    records = Similarity.read(written(tmp_path, kind))
    records += [SimilarInput(f"{one.text} more", one.text_b, one.label, one.negatives) for one in records]
    task = Similarity.learn_from(records)
    albert = Albert(model.config, {task.head_name: task.head(model.config)})
    torch.manual_seed(0)
    batch = collate(task.training_examples(records, task.features(records, tokenizer, 32)), tokenizer.pad_id)
    task.loss(task.scores(albert, batch), batch).backward()
    head: Any = albert.heads[task.head_name]
    for weight in (head.linear.weight, albert.encoder.word_embeddings.weight):
        assert weight.grad is not None
        assert 0 < weight.grad.norm() < torch.inf


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_saved_model_gives_the_same_and_so_does_sentence_transformers(
    pooling: Any, passes: int, model: Model, tmp_path: Path
) -> None:
    random, size = np.random.default_rng(0), model.config.hidden_size
    tokens = random.random(model.tokenizer.vocab_size).astype(np.float32) + 0.5 if pooling == "mean" else None
    made = SentenceMap(
        random.standard_normal((16, size)).astype("f"), np.arange(16, dtype=np.float32), tokens, pooling, passes
    )
    Model(model.albert.with_heads({}), model.tokenizer, Similarity(), model.max_length, made).save(tmp_path)
    again = litebert.load(tmp_path)
    assert isinstance(again.task, Similarity)
    ours = again.embed(PROSE[:5])
    assert np.abs(ours - model.embed(PROSE[:5])[:, :16]).max() > 1e-2  # it is another vector than the plain mean
    theirs = peer("sentence_transformers").SentenceTransformer(str(tmp_path), device="cpu").encode(PROSE[:5])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    score = again.predict([PROSE[:2]])[0].score
    assert score == pytest.approx(again.similarity(*PROSE[:2]), abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_what_sentence_transformers_saves_is_read(pooling: str, model: Model, tmp_path: Path) -> None:
    peer("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    model.save(tmp_path / "ours")
    base = modules.Transformer(str(tmp_path / "ours"))
    pool = modules.Pooling(model.config.hidden_size, pooling_mode=pooling)
    dense = modules.Dense(model.config.hidden_size, 8, activation_function=torch.nn.Identity())
    theirs = SentenceTransformer(modules=[base, pool, dense], device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    ours = litebert.load(tmp_path / "theirs")
    assert ours.dimensions == 8
    np.testing.assert_allclose(ours.embed(PROSE[:5]), theirs.encode(PROSE[:5]), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_vectors_of_length_one_come_and_go(bias: bool, model: Model, tmp_path: Path) -> None:
    peer("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    model.save(tmp_path / "ours")
    size = model.config.hidden_size
    dense = modules.Dense(size, 8, bias=bias, activation_function=torch.nn.Identity())
    parts = [modules.Transformer(str(tmp_path / "ours")), modules.Pooling(size), dense, modules.Normalize()]
    theirs = SentenceTransformer(modules=parts, device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    ours = litebert.load(tmp_path / "theirs")
    np.testing.assert_allclose(ours.embed(PROSE[:5]), theirs.encode(PROSE[:5]), atol=1e-5)
    ours.save(tmp_path / "again")
    back = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    np.testing.assert_allclose(np.linalg.norm(back.encode(PROSE[:5]), axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(back.encode(PROSE[:5]), theirs.encode(PROSE[:5]), atol=1e-5)


def test_of_what_sentence_transformers_adds_and_we_do_not_the_user_hears(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.warns(UserWarning, match="puts 'query: ' before every text; embed does not"):
        litebert.load(tmp_path)


def test_passes_that_begin_with_the_embeddings_are_refused(model: Model, tmp_path: Path) -> None:
    made = SentenceMap.plain(model.config.hidden_size, passes=2)
    Model(model.albert.with_heads({}), model.tokenizer, Similarity(), model.max_length, made).save(tmp_path)
    config = tmp_path / "1_WeightedLayerPooling" / "config.json"
    config.write_text(json.dumps(read_json(config) | {"layer_start": 0}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"begins with the embeddings \(layer_start=0\)"):
        litebert.load(tmp_path)


def test_the_mean_of_the_last_passes_is_what_it_says(model: Model) -> None:
    size = model.config.hidden_size
    each = []
    for passes in (2, 3):
        model.passes = passes
        each.append(model.embed(PROSE[:2]))
    model.encoder.depth = None
    model.sentence_map = SentenceMap.plain(size, passes=2)
    np.testing.assert_allclose(model.embed(PROSE[:2]), np.mean(each, axis=0), atol=1e-5)


def test_learning_begins_with_the_map_that_the_model_has(model: Model) -> None:
    size = model.config.hidden_size
    model.sentence_map = SentenceMap(2 * np.eye(size, dtype=np.float32), np.ones(size, np.float32))
    heads = dict(model.albert.heads.items())
    first: Any = Similarity().initial_head(model.config, heads)
    assert isinstance(first, SentenceHead)
    assert float(first.linear.weight[0, 0].detach()) == 2.0
    other: Any = Similarity(pooling="cls").initial_head(model.config, heads)  # which was not made for it
    assert float(other.linear.weight[0, 0].detach()) == 1.0


def test_pairs_teach_what_is_alike(tokenizer: Tokenizer, model: Model) -> None:
    """Pairs of words that have nothing in common but that somebody says so."""
    alike = [("rain", "thunder"), ("eggs", "butter"), ("train", "bridge"), ("map", "letter")]
    records = [SimilarInput(a, b, float(a == x)) for x, b in alike for a, _ in alike]
    task = Similarity.learn_from(records)
    torch.manual_seed(0)
    albert = Albert(model.config, {task.head_name: task.head(model.config)})
    batch = collate(task.training_examples(records, task.features(records, tokenizer, 32)), tokenizer.pad_id)
    optimizer = torch.optim.AdamW(albert.parameters(), lr=2e-3)
    taught = Model(albert, tokenizer, task)

    def precision() -> float:
        return task.metrics(records, taught.answer_records(records))["average_precision"]

    before = precision()
    for _ in range(60):
        optimizer.zero_grad()
        task.loss(task.scores(albert, batch), batch).backward()
        optimizer.step()
    assert precision() > max(0.95, before)


def test_an_example_of_another_length_changes_nothing(model: Model) -> None:
    task, records = Similarity(), [SimilarInput("rain", PROSE[0] + PROSE[1]), SimilarInput("eggs", "map")]
    taught = Model(model.albert, model.tokenizer, task)
    both = taught.answer_records(records)
    alone = [taught.answer_records([record])[0] for record in records]
    assert [one.score for one in both] == pytest.approx([one.score for one in alone], abs=1e-5)
    assert isinstance(task.features(records, model.tokenizer, 32)[0], Example)
