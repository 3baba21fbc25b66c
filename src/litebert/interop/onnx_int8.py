"""A graph with matrices of eight bits.

The whole numbers are those of `litebert quantize`; what goes into a product is rounded as it comes. All by ONNX's own
operators, in the order in which runtimes know them as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from litebert.interop.weights import MIN_QUANTIZED_SIZE
from litebert.model.quantize import quantize_per_row

if TYPE_CHECKING:
    import onnx

Use = Literal["looked up", "rows", "columns", "turned", "other"]
"""What a node does with a matrix: takes some of its rows, or gets a number for each of its rows or columns."""


def quantize_graph(model: onnx.ModelProto) -> None:
    """Large matrices, and the table of words, become whole numbers with a scale for each of their rows."""
    graph = model.graph
    change = _GraphQuantizer(graph)
    nodes = [new for node in graph.node for new in change.of(node)]
    unchanged = [tensor for tensor in graph.initializer if tensor.name not in change.replaced]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*unchanged, *change.made.values()])


class _GraphQuantizer:
    """Nodes that read matrices, as nodes that read whole numbers."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        import onnx

        self.onnx = onnx
        self.made: dict[str, onnx.TensorProto] = {}
        self.replaced: set[str] = set()
        self._turned = {node.output[0]: node.input[0] for node in graph.node if _is_transpose(node)}
        self._uses: dict[str, set[Use]] = {}
        for node in graph.node:
            for name in node.input:
                self._uses.setdefault(self._turned.get(name, name), set()).add(self._use_of(node, name))
        for out in graph.output:
            self._uses.setdefault(self._turned.get(out.name, out.name), set()).add("other")
        self._matrices = {tensor.name: tensor for tensor in graph.initializer if self._can_be_rounded(tensor)}
        self._there: set[str] = set()
        """Values that nodes compute once and several others read."""

    def _can_be_rounded(self, tensor: onnx.TensorProto) -> bool:
        """A large matrix of which nobody makes use in another way than is known here."""
        large = len(tensor.dims) == 2 and tensor.dims[0] * tensor.dims[1] > MIN_QUANTIZED_SIZE
        uses = self._uses.get(tensor.name, {"other"}) - {"turned"}
        return large and (uses == {"columns"} or uses <= {"rows", "looked up"})

    def _use_of(self, node: onnx.NodeProto, name: str) -> Use:
        if _is_transpose(node):
            return "turned"
        settings = {attribute.name: self.onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Gather" and name == node.input[0] and settings.get("axis", 0) == 0:
            return "looked up"
        if node.op_type == "MatMul" and name == node.input[1]:
            return "rows" if name in self._turned else "columns"
        plain = settings.get("alpha", 1) == settings.get("beta", 1) == 1 and not settings.get("transA")
        if node.op_type == "Gemm" and name == node.input[1] and name not in self._turned and plain:
            return "rows" if settings.get("transB") else "columns"
        return "other"

    def of(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if _is_transpose(node) and node.input[0] in self._matrices:
            return []
        names = {name: self._turned.get(name, name) for name in node.input}
        name = next((name for name in names if names[name] in self._matrices), None)
        if name is None:
            return [node]
        use = self._use_of(node, name)
        return self._looked_up(node) if use == "looked up" else self._multiplied(node, names[name], use == "rows")

    def _looked_up(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """A row of whole numbers, times its scale."""
        name, out = node.input[0], node.output[0]
        whole, scales = self._rounded(name)
        column = self._constant(f"{name}.column", scales[:, None])
        return [
            self._node("Gather", [whole, node.input[1]], f"{out}.whole"),
            self._node("Cast", [f"{out}.whole"], f"{out}.cast", to=self.onnx.TensorProto.FLOAT),
            self._node("Gather", [column, node.input[1]], f"{out}.scale"),
            self._node("Mul", [f"{out}.cast", f"{out}.scale"], out),
        ]

    def _multiplied(self, node: onnx.NodeProto, name: str, by_rows: bool) -> list[onnx.NodeProto]:
        """The matrix of this name gives a number for each of its rows, or for each column."""
        source, out, bias = node.input[0], node.output[0], node.input[2:]
        eight = [f"{source}.eight", f"{source}.scale", f"{source}.zero"]
        nodes = self._once(eight[0], lambda: self.onnx.helper.make_node("DynamicQuantizeLinear", [source], eight))
        if "looked up" in self._uses[name]:  # stands there once, as it is looked up in
            whole, scales = self._rounded(name)
            turned = f"{name}.turned"
            nodes += self._once(turned, lambda: self._node("Transpose", [whole], turned, perm=[1, 0]))
            whole = turned
        else:
            whole, scales = self._rounded(name, by_rows, turned=True)
        scale = self._constant(f"{name}.scales", scales)
        product = f"{out}.product" if bias else out
        nodes += [
            self._node("MatMulInteger", [eight[0], whole, eight[2]], f"{out}.whole"),
            self._node("Cast", [f"{out}.whole"], f"{out}.cast", to=self.onnx.TensorProto.FLOAT),
            self._node("Mul", [eight[1], scale], f"{out}.scale"),
            self._node("Mul", [f"{out}.cast", f"{out}.scale"], product),
        ]
        return [*nodes, self._node("Add", [product, *bias], out)] if bias else nodes

    def _rounded(self, name: str, by_rows: bool = True, turned: bool = False) -> tuple[str, np.ndarray]:
        """Under what name the whole numbers of a matrix stand, and a scale for each of its rows or columns."""
        matrix = torch.from_numpy(np.array(self.onnx.numpy_helper.to_array(self._matrices[name])))
        eight, scales = quantize_per_row(matrix if by_rows else matrix.T)
        self.replaced.add(name)
        return self._constant(f"{name}.eight_bits", (eight.T if turned else eight).contiguous().numpy()), scales.numpy()

    def _once(self, name: str, make: Any) -> list[onnx.NodeProto]:
        if name in self._there:
            return []
        self._there.add(name)
        return [make()]

    def _constant(self, name: str, values: np.ndarray) -> str:
        self.made.setdefault(name, self.onnx.numpy_helper.from_array(values, name))
        return name

    def _node(self, kind: str, inputs: list[str], out: str, **settings: Any) -> onnx.NodeProto:
        return self.onnx.helper.make_node(kind, inputs, [out], **settings)


def _is_transpose(node: onnx.NodeProto) -> bool:
    return node.op_type == "Transpose" and [list(attribute.ints) for attribute in node.attribute] == [[1, 0]]
