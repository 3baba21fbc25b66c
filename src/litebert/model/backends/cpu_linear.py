"""Matrix products in float32 on an x86 CPU, by oneDNN.

torch sends them to MKL, which runs slower code on processors that are not Intel's: on an AMD EPYC with AVX-512 oneDNN
is 2 to 3 times as fast. Weights are reordered once, since a shared layer uses them in every pass; the copy takes
as much memory as they do. With gradients, compilation, export or another type, `F.linear` is used.

Shapes: T tokens in rows, I numbers in, O out.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.weak import WeakTensorKeyDictionary

X86 = platform.machine().lower() in ("x86_64", "amd64")
HAS_ONEDNN = torch.backends.mkldnn.is_available()
TYPICAL_ROWS = 64
"""The layout is chosen for so many rows; it serves 16 and 512 as well."""


class _ReorderedWeight(NamedTuple):
    """A weight in oneDNN's layout, and what it was made from."""

    state: tuple[int, ...]
    storage: StorageWeakRef
    """While this reference lives, no other storage has the same number."""
    weight: Tensor


_reordered = WeakTensorKeyDictionary()
"""Made again when a weight changes; in-place changes of `weight.data`, or by numpy, are not noticed."""


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # (T, I), (O, I), (O,) -> (T, O)
    """As `F.linear`."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return F.linear(rows, weight, bias)
    if not _supports(rows, weight):
        _reordered.pop(weight, None)  # with gradients, it is about to change
        return F.linear(rows, weight, bias)
    cached = _reordered.get(weight)
    state = (weight.untyped_storage()._cdata, weight.data_ptr(), weight._version)
    if cached is None or cached.state != state:
        weight_in_layout = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
        _reordered[weight] = cached = _ReorderedWeight(
            state, StorageWeakRef(weight.untyped_storage()), weight_in_layout
        )
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, cached.weight, bias, "none", [], "")
    return product


def _supports(rows: Tensor, weight: Tensor) -> bool:
    """Plain float32 tensors on an x86 CPU, without gradients and without a dispatch mode that watches."""
    plain = type(rows) is Tensor and type(weight) in (Tensor, nn.Parameter) and not weight.is_inference()
    here = X86 and rows.device.type == weight.device.type == "cpu" and HAS_ONEDNN and torch.backends.mkldnn.enabled
    exact = rows.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    derived = torch.is_grad_enabled() or forward_ad._current_level >= 0
    watched = _get_current_dispatch_mode() is not None or torch._C._functorch.peek_interpreter_stack() is not None
    sized = rows.shape[-1] == weight.shape[1] > 0  # else torch tells what is wrong
    return bool(plain and here and exact and sized and not derived and not watched)
