"""Matrix products in float32 on an x86 CPU, by oneDNN.

torch sends them to MKL, which runs slower code on processors that are not Intel's: on an AMD EPYC with AVX-512 oneDNN
is 2 to 3 times as fast. Weights are laid out once, as a shared layer uses them in every pass; that takes as much memory
again as they do. What is to be differentiated, compiled or exported goes the usual way, and so does every other type.

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
ROWS = 64
"""The layout is chosen for so many; it serves 16 and 512 as well."""


class _LaidOut(NamedTuple):
    """A weight as oneDNN wants it, and of what it was made."""

    state: tuple[int, ...]
    storage: StorageWeakRef
    """As long as it is kept no other memory has the same number."""
    weight: Tensor


_known = WeakTensorKeyDictionary()
"""Those of weights that changed are made again; what is done in place to `weight.data`, or by numpy, is not seen."""


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # (T, I), (O, I), (O,) -> (T, O)
    """As `F.linear`."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return F.linear(rows, weight, bias)
    if not _fits(rows, weight):
        _known.pop(weight, None)  # who differentiates is about to change it
        return F.linear(rows, weight, bias)
    laid_out = _known.get(weight)
    state = (weight.untyped_storage()._cdata, weight.data_ptr(), weight._version)
    if laid_out is None or laid_out.state != state:
        reordered = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        _known[weight] = laid_out = _LaidOut(state, StorageWeakRef(weight.untyped_storage()), reordered)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, laid_out.weight, bias, "none", [], "")
    return found


def _fits(rows: Tensor, weight: Tensor) -> bool:
    """Are both plain tensors of float32 on such a CPU, of which nothing but the product is wanted, and nobody looks?"""
    plain = type(rows) is Tensor and type(weight) in (Tensor, nn.Parameter) and not weight.is_inference()
    here = X86 and rows.device.type == weight.device.type == "cpu" and HAS_ONEDNN and torch.backends.mkldnn.enabled
    exact = rows.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    derived = torch.is_grad_enabled() or forward_ad._current_level >= 0
    watched = _get_current_dispatch_mode() is not None or torch._C._functorch.peek_interpreter_stack() is not None
    sized = rows.shape[-1] == weight.shape[1] > 0  # else torch tells what is wrong
    return bool(plain and here and exact and sized and not derived and not watched)
