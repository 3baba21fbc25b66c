"""A layer in eight-bit whole numbers, for CPUs: a quarter of the bytes, and several times as fast.

A weight is a whole number from -127 to 127 times a scale of its row; what goes into a product is one from 0 to 255,
less a zero point, times a scale for all of it. oneDNN multiplies them. Because the layer is shared, its weights are
rounded and laid out once for all passes.

Shapes: T tokens in rows, R wanted rows, H hidden, W intermediate.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from litebert.errors import ConfigError, LitebertError
from litebert.files import write_json
from litebert.model.albert import Attention, Encoder, FeedForward, Seen, run_block
from litebert.model.attention import Backend, Layout, attend
from litebert.model.backends.native import Kernel, NativePasses, kernel
from litebert.model.config import AlbertConfig, Half
from litebert.model.quantize import rounded

LEVELS = 255
TURNS, FAR, SLOWER, CLOSE = 7, 0.2, 1.5, 1.2
"""How often two ways are tried, how far off ours may be, and how much slower: oneDNN's threads are luckier on a machine
that has other work, and ours is faster on every one that was measured. Times that are closer than the last to what ours
may take are not remembered: they are tried again by the next process."""
FUSED = {"gelu": "none", "gelu_new": "tanh"}
"""Activations that oneDNN computes while it multiplies, and which way."""
HALF_FROM, WRITTEN_OUT = 128, 1 << 20
"""Attention in texts of so many tokens is computed in bfloat16, and up to so many scores per head by the plain formula:
on CPUs with instructions for it that is faster, and eight bits lose far more."""
Ranges = dict[str, tuple[float, float]]
"""By place, as in "attention.0.given", the least and the largest number that goes into a product. The places of a block
are `given` and `context` in attention, `given` and `wide` in the feed-forward half; all its passes share them."""


def has_onednn() -> bool:
    """Does this CPU have the instructions that oneDNN needs? Without them products could overflow."""
    return bool(torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported())


def has_int8() -> bool:
    """Can this CPU compute from eight bits, one way or the other, and gain by it?"""
    return has_onednn() or fastest_kernel() is not None


@cache
def fastest_kernel() -> Kernel | None:
    """Our own code, where it computes what float32 does and is no slower than oneDNN from eight bits, or, where that
    cannot be had, faster than from float32, by a trial that is remembered."""
    tools = kernel()
    if tools is None:
        return None
    record = tools.path.with_suffix(f".torch-{torch.__version__}.json")
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        off, times = float(found["off"]), [float(found[name]) for name in ("native", "other")]
    except (OSError, ValueError, TypeError, KeyError):
        off, times = _trial(tools)
        if not 1 / CLOSE < times[0] / _most(times) < CLOSE:
            with suppress(LitebertError):  # a folder that cannot be written
                write_json(record, {"off": off, "native": times[0], "other": times[1]})
    return tools if off < FAR and times[0] < _most(times) else None


def _most(times: Sequence[float]) -> float:
    """What ours may take. Eight bits are less exact than float32, so beside that they must gain."""
    return times[1] * (SLOWER if has_onednn() else 1)


def _trial(tools: Kernel) -> tuple[float, list[float]]:
    """How far off hidden states are, and the milliseconds of both for 32 tokens through two passes of ALBERT-base: the
    best of some turns, since others may work on this machine too."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        encoder = Encoder(AlbertConfig(vocab_size=100, num_hidden_layers=2)).eval()
    ids, ours = torch.arange(32, device="cpu")[None], NativePasses(tools)
    theirs = EightBlocks(encoder, _observed(encoder, ids)) if has_onednn() else run_block
    best = [math.inf, math.inf]
    with torch.inference_mode():
        truth = encoder(ids)
        for turn in range(1 + TURNS):  # the first lays out the weights
            for number, (passes, block) in enumerate(((ours, run_block), (None, theirs))):
                encoder.run_all, encoder.run_block = passes, block
                began = time.perf_counter()
                found = encoder(ids)
                if turn:
                    best[number] = min(best[number], 1000 * (time.perf_counter() - began))
                if passes is not None:
                    off = ((found - truth).norm() / truth.norm()).item()
    return off, best


def _observed(encoder: Encoder, ids: Tensor) -> Ranges:
    encoder.run_block = observer = Observer(encoder)
    with torch.inference_mode():
        encoder(ids)
    encoder.run_block = run_block
    return observer.ranges


def places_of(encoder: Encoder) -> list[str]:
    """The names that `Ranges` must have."""
    inside = {"attention": ("given", "context"), "ffn": ("given", "wide")}
    return [f"{name}.{place}" for name in _names_of(encoder).values() for place in inside[name.split(".")[0]]]


def use_int8(encoder: Encoder, ranges: Mapping[str, tuple[float, float]] | None = None, native: bool = True) -> None:
    """From now on its passes are computed from eight bits: where it can be compiled, by code of our own, which needs no
    ranges (`native.py`), elsewhere by oneDNN."""
    leave_int8(encoder)
    tools = fastest_kernel() if native and encoder.adapters is None else None
    if tools is not None:
        encoder.run_all = NativePasses(tools)
    else:
        encoder.run_block = EightBlocks(encoder, ranges)
    encoder.unpadded = True


def leave_int8(encoder: Encoder) -> None:
    encoder.run_block, encoder.run_all, encoder.unpadded = run_block, None, False


def is_int8(encoder: Encoder) -> bool:
    return encoder.run_all is not None or isinstance(encoder.run_block, EightBlocks)


class _Point(NamedTuple):
    """How numbers are rounded."""

    scale: float
    zero: int
    shift: Tensor
    """The zero point and one half: what follows the point is cut off."""

    @staticmethod
    def of(least: float, largest: float) -> _Point:
        least, largest = min(least, 0.0), max(largest, 0.0)  # 0 must be among them
        scale = max((largest - least) / LEVELS, 1e-12)
        zero = round(-least / scale)
        return _Point(scale, zero, torch.tensor(zero + 0.5))


class _Product(NamedTuple):
    """A matrix as oneDNN wants it."""

    weight: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor

    @staticmethod
    def of(layer: nn.Linear) -> _Product:
        weight, scale = rounded(layer.weight.detach().float())
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        return _Product(packed, scale, torch.zeros(len(scale), dtype=torch.int32), layer.bias.detach().float())

    def __call__(self, rows: Tensor, point: _Point, dtype: torch.dtype = torch.float32) -> Tensor:
        return self._multiply(rows, point, 1.0, 0, dtype, "none", [], "")

    def activated(self, rows: Tensor, point: _Point, out: _Point, activation: str) -> Tensor:
        """After an activation, rounded for the next product."""
        return self._multiply(rows, point, out.scale, out.zero, torch.uint8, "gelu", [], activation)

    def added(self, rows: Tensor, point: _Point, residual: Tensor) -> Tensor:
        """In the residual's own memory, which is faster than in new memory."""
        found: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
            rows, point.scale, point.zero, self.weight, self.scale, self.zero, residual, self.bias,
            1.0, 0, torch.float32, 1.0, 0, "sum", 1.0, "none", [], "",
        )  # fmt: skip
        return found

    def _multiply(self, rows: Tensor, point: _Point, *answer: Any) -> Tensor:
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, point.scale, point.zero, self.weight, self.scale, self.zero, self.bias, *answer
        )
        return found


class EightBlocks:
    """In the place of `Encoder.run_block`: blocks from eight-bit products.

    Where `ranges` are given, they say how what goes into products is rounded; else each tensor is looked at.
    """

    def __init__(self, encoder: Encoder, ranges: Mapping[str, tuple[float, float]] | None = None) -> None:
        if encoder.adapters is not None:
            raise ConfigError(
                "int8: this model has changes of its weights at every pass (LoRA), which int8 cannot hold"
            )
        if not has_onednn():
            raise ConfigError(
                "int8: this CPU has no instructions for it (AVX-512 VNNI or AMX; with a C++ compiler AVX2 or ARM's dot "
                "products too), or gains nothing by them; use engine='torch'"
            )
        self._points = {place: _Point.of(*both) for place, both in (ranges or {}).items()}
        self._activation = FUSED.get(encoder.config.hidden_act)
        self._names = _names_of(encoder)
        able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        self._has_bfloat16 = bool(able.get("avx512_bf16") or able.get("amx_bf16"))
        self._products: dict[nn.Module, _Product] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy lays out its weights anew."""
        return vars(self) | {"_products": {}}

    def __call__(
        self,
        attention: Attention,
        ffn: FeedForward,
        hidden: Tensor,
        layout: Layout,
        bias: Tensor | None,
        backend: Backend,
        attention_seen: Seen | None = None,
        ffn_seen: Seen | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # (T or R, H)
        if (attention.training and torch.is_grad_enabled()) or attention_seen is not None or ffn_seen is not None:
            raise ConfigError("an int8 model answers and does not learn; train the one that it was made from")
        with torch.autocast("cpu", enabled=False), torch.no_grad():
            hidden = self._attended(attention, hidden.float(), layout, bias, backend, rows)
            return ffn.norm(self._fed_forward(ffn, hidden))

    def _attended(
        self, block: Attention, hidden: Tensor, layout: Layout, bias: Tensor | None, backend: Backend,
        rows: Tensor | None,
    ) -> Tensor:  # (T or R, H)  # fmt: skip
        point = self._point(block, "given", hidden)
        half = layout.length >= HALF_FROM and self._has_bfloat16
        if half and backend == "sdpa" and layout.batch * layout.length**2 <= WRITTEN_OUT:
            backend = "eager"
        dtype = torch.bfloat16 if half else torch.float32
        qkv = self._product(block.qkv)(_rounded_at(hidden, point), point, dtype)
        q, k, v = qkv.unflatten(-1, (3, block.num_heads, -1)).unbind(-3)  # (T, N, D) each
        context = attend(q, k, v, layout, bias=bias, backend=backend).flatten(-2).float()  # (T, H)
        if rows is not None:
            hidden, context = hidden.index_select(0, rows), context.index_select(0, rows)
        point = self._point(block, "context", context)
        residual = hidden.clone() if rows is None else hidden  # who gave it may want it
        return block.norm(self._product(block.out).added(_rounded_at(context, point), point, residual))

    def _fed_forward(self, ffn: FeedForward, hidden: Tensor) -> Tensor:  # (R, H)
        point = self._point(ffn, "given", hidden)
        given, product = _rounded_at(hidden, point), self._product(ffn.widen)
        inner = self._points.get(f"{self._names[ffn]}.wide")
        if inner is None or self._activation is None:
            wide = ffn.activation(product(given, point))
            inner = self._point(ffn, "wide", wide)
            wide = _rounded_at(wide, inner)
        else:
            wide = product.activated(given, point, inner, self._activation)
        return self._product(ffn.narrow).added(wide, inner, hidden)

    def _product(self, layer: nn.Linear) -> _Product:
        if layer not in self._products:
            self._products[layer] = _Product.of(layer)
        return self._products[layer]

    def _point(self, block: nn.Module, place: str, rows: Tensor) -> _Point:
        known = self._points.get(f"{self._names[block]}.{place}")
        if known is not None:
            return known
        return _Point.of(*(one.item() for one in torch.aminmax(rows))) if len(rows) else _Point.of(0.0, 0.0)


class Observer:
    """In the place of `Encoder.run_block`: blocks as they are, and what goes into their products."""

    def __init__(self, encoder: Encoder) -> None:
        self.ranges: Ranges = {}
        self._names = _names_of(encoder)

    def __call__(self, attention: Attention, ffn: FeedForward, *given: Any) -> Tensor:
        places = {
            attention.qkv: (attention, "given"), attention.out: (attention, "context"),
            ffn.widen: (ffn, "given"), ffn.narrow: (ffn, "wide"),
        }  # fmt: skip
        hooks = [layer.register_forward_pre_hook(self._saw(*place)) for layer, place in places.items()]
        try:
            return run_block(attention, ffn, *given)
        finally:
            for hook in hooks:
                hook.remove()

    def _saw(self, block: nn.Module, place: str) -> Any:
        name = f"{self._names[block]}.{place}"

        def saw(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            least, largest = (one.item() for one in torch.aminmax(inputs[0]))
            before = self.ranges.get(name, (math.inf, -math.inf))
            self.ranges[name] = min(before[0], least), max(before[1], largest)

        return saw


def _names_of(encoder: Encoder) -> dict[nn.Module, str]:
    return {
        block: f"{half}.{number}"
        for half in get_args(Half) for number, block in enumerate(getattr(encoder, half))
    }  # fmt: skip


def _rounded_at(rows: Tensor, point: _Point) -> Tensor:  # uint8
    return torch.add(point.shift, rows, alpha=1 / point.scale).clamp_(0, LEVELS).to(torch.uint8)
