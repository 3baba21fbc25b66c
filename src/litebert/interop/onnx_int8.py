"""A graph with matrices of eight bits.

The whole numbers are those of `litebert quantize`; what goes into a product is rounded as it comes. All by ONNX's own
operators, in the order in which runtimes know them as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from litebert.interop.huggingface import LARGE
from litebert.model.int8 import rounded

if TYPE_CHECKING:
    import onnx


def in_eight_bits(model: onnx.ModelProto) -> None:
    """Large matrices, and the table of words, become whole numbers with a scale for each of their rows."""
    graph = model.graph
    change = _Change(graph)
    nodes = [new for node in graph.node for new in change.of(node)]
    kept = [one for one in graph.initializer if one.name not in change.replaced]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*kept, *change.made.values()])


class _Change:
    """Nodes that read matrices, as nodes that read whole numbers."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        import onnx

        self.onnx = onnx
        self.made: dict[str, onnx.TensorProto] = {}
        self.replaced: set[str] = set()
        self._matrices = {
            one.name: one for one in graph.initializer if len(one.dims) == 2 and one.dims[0] * one.dims[1] > LARGE
        }
        self._looked_up_in = {node.input[0] for node in graph.node if node.op_type == "Gather"}
        self._turned = {
            node.output[0]: node.input[0]
            for node in graph.node if node.op_type == "Transpose" and node.input[0] in self._matrices
        }  # fmt: skip
        self._there: set[str] = set()
        """Values that nodes compute once and several others read."""

    def of(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if node.op_type == "Gather" and node.input[0] in self._matrices:
            return self._looked_up(node)
        if node.op_type == "Transpose" and node.output[0] in self._turned:
            return []
        if node.op_type == "MatMul" and node.input[1] in self._turned:
            return self._multiplied(node, self._turned[node.input[1]], by_rows=True)
        if node.op_type == "MatMul" and node.input[1] in self._matrices:
            return self._multiplied(node, node.input[1], by_rows=False)
        if node.op_type == "Gemm" and node.input[1] in self._matrices:
            settings = {one.name: one.i for one in node.attribute}
            return self._multiplied(node, node.input[1], bool(settings.get("transB")))
        return [node]

    def _looked_up(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """A row of whole numbers, times its scale."""
        name, out = node.input[0], node.output[0]
        whole, scale = self._rounded(name)
        column = self._constant(f"{name}.column", self._array(self.made[scale])[:, None])
        return [
            self._node("Gather", [whole, node.input[1]], f"{out}.whole"),
            self._node("Cast", [f"{out}.whole"], f"{out}.cast", to=self.onnx.TensorProto.FLOAT),
            self._node("Gather", [column, node.input[1]], f"{out}.scale"),
            self._node("Mul", [f"{out}.cast", f"{out}.scale"], out),
        ]

    def _multiplied(self, node: onnx.NodeProto, name: str, by_rows: bool) -> list[onnx.NodeProto]:
        """The matrix of this name gives a number for each of its rows, or for each column."""
        given, out, bias = node.input[0], node.output[0], node.input[2:]
        eight = [f"{given}.eight", f"{given}.scale", f"{given}.zero"]
        nodes = self._once(eight[0], lambda: self.onnx.helper.make_node("DynamicQuantizeLinear", [given], eight))
        if name in self._looked_up_in:  # stands there once, as it is looked up in
            whole, scale = self._rounded(name)
            turned = f"{name}.turned"
            nodes += self._once(turned, lambda: self._node("Transpose", [whole], turned, perm=[1, 0]))
            whole = turned
        else:
            whole, scale = self._rounded(name, by_rows, turned=True)
        product = f"{out}.product" if bias else out
        nodes += [
            self._node("MatMulInteger", [eight[0], whole, eight[2]], f"{out}.whole"),
            self._node("Cast", [f"{out}.whole"], f"{out}.cast", to=self.onnx.TensorProto.FLOAT),
            self._node("Mul", [eight[1], scale], f"{out}.scale"),
            self._node("Mul", [f"{out}.cast", f"{out}.scale"], product),
        ]
        return [*nodes, self._node("Add", [product, *bias], out)] if bias else nodes

    def _rounded(self, name: str, by_rows: bool = True, turned: bool = False) -> tuple[str, str]:
        """Names of the whole numbers of a matrix, one scale for each of its rows or columns, and of the scales."""
        whole, scale = f"{name}.eight_bits", f"{name}.scales"
        if name not in self.replaced:
            matrix = torch.from_numpy(np.array(self._array(self._matrices[name])))
            eight, scales = rounded(matrix if by_rows else matrix.T)
            self._constant(whole, (eight.T if turned else eight).contiguous().numpy())
            self._constant(scale, scales.numpy())
            self.replaced.add(name)
        return whole, scale

    def _once(self, name: str, make: Any) -> list[onnx.NodeProto]:
        if name in self._there:
            return []
        self._there.add(name)
        return [make()]

    def _constant(self, name: str, values: np.ndarray) -> str:
        self.made.setdefault(name, self.onnx.numpy_helper.from_array(values, name))
        return name

    def _array(self, tensor: onnx.TensorProto) -> np.ndarray:
        return np.asarray(self.onnx.numpy_helper.to_array(tensor))

    def _node(self, kind: str, given: list[str], out: str, **settings: Any) -> onnx.NodeProto:
        return self.onnx.helper.make_node(kind, given, [out], **settings)
