"""Text to ids: train a vocabulary, import one, encode with offsets."""

from litebert.tokenizer.core import Encoding, Tokenizer, Truncation
from litebert.tokenizer.training import train_unigram, train_wordpiece

__all__ = ["Encoding", "Tokenizer", "Truncation", "train_unigram", "train_wordpiece"]
