"""Results and claims of the paper (Lan et al., ALBERT, ICLR 2020), and texts for each table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from litebert.studies.reproduce.variants import TableName

SOURCE = "Lan et al., ALBERT: A Lite BERT for Self-supervised Learning of Language Representations, ICLR 2020"
MILLION = 1e6
PAPER_RESULTS: dict[TableName, dict[str, dict[str, float]]] = {
    "embedding": {
        "none/64": {"parameters": 87 * MILLION, "average": 81.3},
        "none/128": {"parameters": 89 * MILLION, "average": 81.7},
        "none/256": {"parameters": 93 * MILLION, "average": 81.8},
        "none/H": {"parameters": 108 * MILLION, "average": 82.3},
        "all/64": {"parameters": 10 * MILLION, "average": 79.0},
        "all/128": {"parameters": 12 * MILLION, "average": 80.1},
        "all/256": {"parameters": 16 * MILLION, "average": 79.6},
        "all/H": {"parameters": 31 * MILLION, "average": 79.8},
    },
    "sharing": {
        "all/H": {"parameters": 31 * MILLION, "average": 79.8},
        "attention/H": {"parameters": 83 * MILLION, "average": 81.6},
        "ffn/H": {"parameters": 57 * MILLION, "average": 79.5},
        "none/H": {"parameters": 108 * MILLION, "average": 82.3},
        "all/128": {"parameters": 12 * MILLION, "average": 80.1},
        "attention/128": {"parameters": 64 * MILLION, "average": 81.7},
        "ffn/128": {"parameters": 38 * MILLION, "average": 80.2},
        "none/128": {"parameters": 89 * MILLION, "average": 81.6},
    },
    "sentence-loss": {
        "none": {"mlm": 54.9, "next_probe": 52.4, "order_probe": 53.3, "average": 79.0},
        "next": {"mlm": 54.5, "next_probe": 90.5, "order_probe": 52.0, "average": 79.2},
        "order": {"mlm": 54.0, "next_probe": 78.9, "order_probe": 86.5, "average": 80.1},
    },
    "depth": {
        layers: {"average": average}
        for layers, average in {"1": 52.9, "3": 71.2, "6": 77.2, "12": 81.5, "24": 82.1, "48": 81.8}.items()
    },
    "width": {
        f"ALBERT/{times}": {"average": average} for times, average in {1: 71.2, 2: 74.6, 4: 76.3, 6: 74.0}.items()
    },
}
"""By table and row: parameters, and scores in percent. `average` is the paper's, over its downstream tasks. Of masking,
strategies and optimizers it has no table."""


@dataclass(frozen=True)
class Claim:
    """A claim that follows from the paper's numbers."""

    table: TableName
    text: str
    row: str
    kind: Literal["above", "at chance", "above chance"] = "above"
    others: tuple[str, ...] = ()
    """Rows that it must be above, all of them."""
    figure: str | None = None
    """Metric; None: masked-token accuracy and, if there is one, the downstream average."""
    learned: str | None = None
    """Metric that must be above chance, or the model has learned nothing and the claim cannot be checked."""
    witness: str | None = None
    """Row that must be above chance, or the metric cannot show what is claimed."""


CLAIMS = (
    Claim("embedding", "Shared, E = 128 is the best size", "all/128", others=("all/64", "all/256", "all/H")),
    Claim("embedding", "Not shared, larger embeddings are better: E = H beats E = 64", "none/H", others=("none/64",)),
    Claim("embedding", "Sharing everything costs something (E = 128)", "none/128", others=("all/128",)),
    Claim("sharing", "Sharing the feed-forward costs more than the attention (E = 128)", "attention/128",
          others=("ffn/128",)),
    Claim("sharing", "Sharing the feed-forward costs more than the attention (E = H)", "attention/H",
          others=("ffn/H",)),
    Claim("sharing", "Sharing the attention alone is cheap: it beats sharing all (E = 128)", "attention/128",
          others=("all/128",)),
    Claim("sharing", "The passes of a shared layer turn less at the end than those of separate ones", "none/128",
          others=("all/128",), figure="last_angle"),
    Claim("sentence-loss", "A model trained with NSP is at chance on SOP", "next", "at chance", figure="order_probe",
          learned="next_head", witness="order"),
    Claim("sentence-loss", "A model trained with SOP is good at NSP too", "order", "above chance",
          figure="next_probe", learned="order_head"),
    Claim("sentence-loss", "SOP teaches order: above NSP and none on it", "order", others=("next", "none"),
          figure="order_probe"),
    Claim("sentence-loss", "No sentence loss is the best for hidden tokens", "none", others=("next", "order"),
          figure="mlm"),
    Claim("depth", "3 layers beat 1", "3", others=("1",)),
    Claim("depth", "6 layers beat 3", "6", others=("3",)),
    Claim("depth", "12 layers beat 6", "12", others=("6",)),
    Claim("depth", "24 layers beat 12", "24", others=("12",)),
    Claim("depth", "48 layers are no better than 24", "24", others=("48",)),
    Claim("width", "Four times as wide is better", "ALBERT/4", others=("ALBERT/1",)),
    Claim("width", "Six times as wide is worse than four times", "ALBERT/4", others=("ALBERT/6",)),
)  # fmt: skip


@dataclass(frozen=True)
class TableText:
    """Title and explanation of a table."""

    title: str
    question: str
    differs: str = ""
    """Differences from the paper that only this table has."""


TABLE_TEXTS: dict[TableName, TableText] = {
    "embedding": TableText(
        "Small word vectors",
        "How small can word vectors be before they cost something, with and without sharing? ALBERT makes a vocabulary "
        "cheap by giving each word E numbers and widening them to the hidden size H by one matrix.",
        "E = H stands where the paper has 768, its hidden size.",
    ),
    "sharing": TableText(
        "One layer or many",
        "Which half of a layer can all passes share, the attention or the feed-forward, and what does it cost?",
        "E = H stands where the paper has 768.",
    ),
    "sentence-loss": TableText(
        "Order or topic",
        "What does a question about two segments teach? Next-sentence prediction (NSP) asks whether the second follows "
        "the first or comes from another document, which the topic gives away; sentence-order prediction (SOP) asks "
        "whether they were swapped.",
        "NSP and SOP are measured for all three by a probe: logistic regression on the last state of [CLS], learned "
        "from pairs of training text and asked about pairs of held-out documents. The paper does not say how it asks a "
        "model what it was not trained for. What the model's own head says of its own question stands beside. Shares "
        "are the mean of those of right and wrong pairs, so that chance is a half.",
    ),
    "depth": TableText(
        "How many passes",
        "The layer is shared, so more passes cost time and no parameters. How many pay?",
        "The paper's row is for a hidden size of 1024, and starts each depth from the trained shallower one.",
    ),
    "width": TableText(
        "How wide",
        "Three passes, wider and wider: when does more width stop to help? BERT, whose layers and word vectors grow "
        "with it, stands beside, as it is said to degrade when it is made large.",
        "The widths are 1, 2, 4 and 6 times ours, where the paper begins with 1024. The paper's BERT of double width, "
        "which degraded, had 24 layers; ours has three.",
    ),
    "masking": TableText(
        "What to hide",
        "Single tokens, whole words, runs of words or spans, and how many of them? All are asked the same: hidden "
        "n-grams of 15 %, and single tokens of 15 %.",
        "The paper takes n-grams of up to three words and has no table of it. Who is trained as he is asked has an "
        "advantage in that column; the downstream average has no such favourite.",
    ),
    "strategies": TableText(
        "Training strategies",
        "Layer decay, embedding scale, weight bounds, attenuated gradients, a hot start, an attention bias: does any "
        "of them help at this budget? Each against the same model without it.",
        "These are ours; the paper has none of them.",
    ),
    "optimizer": TableText(
        "Which optimizer",
        "AdamW, LAMB or Muon, each with the rate that suits it?",
        "The paper uses LAMB for batches of 4096 and compares nothing.",
    ),
}  # fmt: skip
