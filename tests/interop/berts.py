"""Small BERTs and their cousins, made by transformers, with random weights."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors

WORDS = ["the", "order", "was", "late", "money", "back", "thanks", "love", "great", "bad", "help", "now", "where", "is"]
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
DISTILBERT: dict[str, Any] = {
    "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip


def write_vocabulary(folder: Path) -> int:
    """A vocab.txt; how many tokens it has."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *string.ascii_lowercase]
    tokens += [f"##{letter}" for letter in string.ascii_lowercase]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return len(tokens)


def write_byte_vocabulary(folder: Path) -> int:
    """RoBERTa's tokenizer.json, which does not say what its special tokens are for."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {token: number for number, token in enumerate([*specials, *pre_tokenizers.ByteLevel.alphabet()])}
    pipeline = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    pipeline.add_special_tokens(specials)
    folder.mkdir(parents=True, exist_ok=True)
    pipeline.save(str(folder / "tokenizer.json"))
    return len(vocabulary)


def make_bert(folder: Path, kind: str = "BertModel", **changes: Any) -> Any:
    """Save one there, with its vocabulary, and return it."""
    torch.manual_seed(0)
    if kind.startswith("Roberta"):
        size = write_byte_vocabulary(folder)
        config: Any = transformers.RobertaConfig(vocab_size=size, type_vocab_size=1, **SIZES | changes)
    elif kind.startswith("DistilBert"):
        config = transformers.DistilBertConfig(vocab_size=write_vocabulary(folder), **DISTILBERT | changes)
    else:
        family = kind.split("For")[0].removesuffix("Model")
        config = getattr(transformers, f"{family}Config")(vocab_size=write_vocabulary(folder), **SIZES | changes)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():  # LayerNorms and biases that do something
        for weight in model.parameters():
            if weight.dim() == 1:
                weight += 0.2 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return model
