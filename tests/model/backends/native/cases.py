"""Small encoders, and the native engine beside float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from litebert.model import AlbertConfig, Encoder
from litebert.model.backends.int8 import disable_int8
from litebert.model.backends.native import NativeInt8Backend, NativeLibrary, build, native_library

needs_native = pytest.mark.skipif(
    build.find_compiler() is None or not build.has_instructions(),
    reason="no C++ compiler, or no instructions for int8",
)


def make_encoder(**changes: object) -> Encoder:
    torch.manual_seed(0)
    small = {
        "vocab_size": 100, "embedding_size": 32, "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 256,
        "num_attention_heads": 4, "initializer_range": 0.2,
    }  # fmt: skip
    settings = small | changes
    encoder = Encoder(AlbertConfig(**settings)).eval()  # type: ignore[arg-type]
    for name, parameter in encoder.named_parameters():
        if name in ("relative_bias", "depth_embeddings.weight"):
            torch.nn.init.normal_(parameter)
    return encoder


def enable_native(encoder: Encoder) -> None:
    library = native_library()
    assert library is not None
    use_library(encoder, library)


def use_library(encoder: Encoder, library: NativeLibrary) -> None:
    encoder.backend = NativeInt8Backend(library)


def random_ids(*shape: int) -> Tensor:
    return torch.randint(5, 100, shape, generator=torch.Generator().manual_seed(1))


def relative_error(states: Tensor, expected: Tensor) -> float:
    return ((states - expected).norm() / expected.norm()).item()


def native_and_float32(encoder: Encoder, *inputs: Tensor, **settings: object) -> tuple[Tensor, Tensor]:
    """Hidden states of both."""
    with torch.inference_mode():
        disable_int8(encoder)
        expected = encoder(*inputs, **settings)
        enable_native(encoder)
        return encoder(*inputs, **settings), expected


LENGTHS = [1, 7, 60, 130, 200, 3, 16, 170, 6]  # several groups of 384 tokens, row blocks of all heights
