"""Walks the ATen graph once and translates every call into ONNX nodes.

A call whose result never changes becomes a constant. For any other, three translators are tried in order: the
one for linear layers, our own for that operator, and torch's exporter. If none of them succeeds, it becomes
an opaque node; so does a call that is made for its side effect.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Collection
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.by_exporter import translate_by_exporter
from torchrlopt.capture.effects import has_effect
from torchrlopt.capture.excluded import excluded_calls
from torchrlopt.capture.folding import fold
from torchrlopt.capture.linears import find_linears, transposed_weight
from torchrlopt.capture.opaque import Types, emit_opaque, node_inputs, opaque_name
from torchrlopt.errors import CaptureError
from torchrlopt.ops.builder import GraphBuilder, Result, Untranslatable
from torchrlopt.ops.matmul import linear, transposed_weight_gemm
from torchrlopt.ops.onnx_types import Dim, meta_of, type_of_meta
from torchrlopt.ops.to_onnx import TABLE, SymScalar, Target, bind
from torchrlopt.torch_private.operators import OpOverload, schema_of
from torchrlopt.torch_private.tensors import dim_of

_log = logging.getLogger(__name__)

# A constant of at most this many elements is a Constant node; a larger one is an input of the graph.
MAX_CONSTANT_ELEMENTS = 64

_OF_LINEARS = frozenset({"Gemm", "MatMul"})
"""ONNX operators of a linear. If they are excluded, its view, product and view are taken one by one."""

Environment = dict[str, ir.Value | list[ir.Value | None] | None]


class Walker:
    """One walk over one ATen graph.

    Attributes:
        builder: the ONNX nodes made so far.
        environment: the ONNX values of each fx node, by fx name; a list for a tuple, None if there is no
            value.
        constants: large constants by name of their graph input.
        origins: name of an ONNX node -> fx node it was made from.
        groups: fx node -> all fx nodes that its ONNX nodes stand for, if that is more than itself.
        token: token of the last call with a side effect, None if the graph has none.
        excluded: fx nodes that the user excludes.
    """

    def __init__(self, gm: torch.fx.GraphModule, exclude: Collection[str] = ()) -> None:
        self.builder = GraphBuilder()
        self.environment: Environment = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.origins: dict[str, str] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        self.token: ir.Value | None = None
        self._dim_values: dict[Dim, ir.Value] = {}
        self._folded = fold(gm)
        self._constant_values: dict[int, ir.Value] = {}
        self.excluded = set(excluded_calls(gm, exclude))
        self._exclude = frozenset(exclude)
        self._linears = {
            node: found
            for node, found in find_linears(gm.graph).items()
            if self._exclude.isdisjoint(_OF_LINEARS)
            and self.excluded.isdisjoint(member.name for member in found.members)
        }
        self._hidden = {part.members[1] for part in self._linears.values()}
        nodes = list(gm.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                self._placeholder(node)
        # Large constants are inputs too, after all placeholders.
        for node in nodes:
            if node.name in self._folded.tensors:
                self._constant(node)
        for node in nodes:
            if node.op == "call_function" and node.name not in self._folded.names:
                self._call(node)

    def _placeholder(self, node: torch.fx.Node) -> None:
        meta = node.meta.get("val")
        known = type_of_meta(meta)
        if known is None:
            self.environment[node.name] = None
            return
        value = self.builder.add_input(node.name, *known)
        self.environment[node.name] = value
        if isinstance(meta, torch.SymInt):
            self._dim_values.setdefault(dim_of(meta), value)

    def _constant(self, node: torch.fx.Node) -> None:
        tensor = self._folded.tensors[node.name]
        dims = tuple(tensor.shape)
        twin = self._constant_values.get(id(tensor))
        if twin is not None:
            self.environment[node.name] = twin
            return
        if tensor.numel() <= MAX_CONSTANT_ELEMENTS and not tensor.is_complex():
            value = self.builder.constant(tensor, name=node.name)
        elif _is_uniform(tensor):
            # Zeros and ones broadcast to any user; the clean-up drops the Expand there.
            scalar = self.builder.constant(tensor.reshape(-1)[0])
            value = self.builder.op("Expand", scalar, self.builder.ints(dims), dims=dims)
            self.builder.close_group(node.name, value, [(tensor.dtype, dims)])
        else:
            self.constants[node.name] = tensor
            value = self.builder.add_input(node.name, tensor.dtype, dims)
        self.environment[node.name] = self._constant_values[id(tensor)] = value

    def _call(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            source = self.environment.get(node_inputs(node)[0].name)
            if isinstance(source, list) and isinstance(node.args[1], int):
                self.environment[node.name] = source[node.args[1]]
                return
        if node in self._hidden:
            return
        _refuse_mutation(node)
        is_effect = has_effect(node)
        if not node.users and not is_effect:
            self.environment[node.name] = None
            return
        # For a call without a result, the tracer may record nothing.
        meta: Any = meta_of(node) if node.users else node.meta.get("val")
        several = isinstance(meta, tuple | list)
        types: Types = tuple(type_of_meta(item) for item in meta) if several else (type_of_meta(meta),)
        target = Target(node, types, _used(node, several), self._dim_values)
        values = self._keep(target, several) if is_effect else self._translate(target, several)
        self.environment[node.name] = values
        if isinstance(meta, torch.SymInt) and isinstance(values, ir.Value):
            self._dim_values.setdefault(dim_of(meta), values)

    def _keep(self, target: Target, several: bool) -> ir.Value | list[ir.Value | None] | None:
        """Emits a call with a side effect unchanged, after the previous one."""
        node = target.node
        made, self.token = emit_opaque(
            self.builder, node, self.environment, target.types, self.token, has_token=True
        )
        if not several and made[0] is not None:
            return self._close(target, made[0], several)
        self._append_group(target, made)
        return made if several else None

    def _translate(self, target: Target, several: bool) -> ir.Value | list[ir.Value | None]:
        node = target.node
        translators = (self._as_linear, self._directly, self._by_exporter)
        for translator in () if node.name in self.excluded else translators:
            try:
                result = translator(target)
                if result is not None and not self._exclude.isdisjoint(self.builder.open_operators()):
                    self.excluded.add(node.name)
                    self.groups.pop(node.name, None)
                    self.builder.discard_group()
                    break
                if result is not None:
                    return self._close(target, result, several)
            except Untranslatable as verdict:
                _log.debug("%s: %s", node.name, verdict)
            self.builder.discard_group()
        made, _ = emit_opaque(self.builder, node, self.environment, target.types)
        return self._close(target, made if several else made[0], several)

    def _close(
        self, target: Target, result: Result | None, several: bool
    ) -> ir.Value | list[ir.Value | None]:
        node = target.node
        if result is None or several == isinstance(result, ir.Value):
            raise CaptureError("a translation returned another structure than its operator", where=node.name)
        self._append_group(target, result)
        return result if isinstance(result, ir.Value) else list(result)

    def _append_group(self, target: Target, result: Result) -> None:
        count = len(self.builder.nodes)
        self.builder.close_group(target.node.name, result, target.types)
        for made in self.builder.nodes[count:]:
            self.origins[str(made.name)] = target.node.name

    def _as_linear(self, target: Target) -> Result | None:
        node = target.node
        found = self._linears.get(node)
        if found is not None:
            added = None if found.bias is None else self._value(found.bias)
            result = linear(self.builder, target, self._value(found.x), self._value(found.weight), added)
            self.groups[node.name] = tuple(member.name for member in found.members)
            return result
        weight = transposed_weight(node)
        if weight is None:
            return None
        bias, x, transposed = node.args
        result = transposed_weight_gemm(
            self.builder, target, self._value(x), self._value(weight), self._value(bias)
        )
        self.groups[node.name] = (str(transposed), node.name)
        return result

    def _directly(self, target: Target) -> Result | None:
        operation = target.node.target
        if isinstance(operation, OpOverload):
            key = str(operation).removeprefix("aten.")
        else:
            key = opaque_name(operation)
        translator = TABLE.get(key)
        if translator is None or _is_complex(target):
            return None
        if isinstance(operation, OpOverload):
            return translator(self.builder, target, *bind(target.node, self._argument))
        return translator(self.builder, target, *map(self._argument, target.node.args))

    def _by_exporter(self, target: Target) -> Result | None:
        # A form that our own translation rejects is special, and the exporter ignores such things (for
        # example a pool's divisor_override).
        known = str(target.node.target).removeprefix("aten.") in TABLE
        if known or _is_complex(target) or _is_random(target.node):
            return None
        return translate_by_exporter(self.builder, target, self.environment)

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            value = self._value(argument)
            meta = argument.meta.get("val")
            if isinstance(meta, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
                return SymScalar(value, dim_of(meta) if isinstance(meta, torch.SymInt | int) else "")
            return value
        if isinstance(argument, list | tuple):
            return [self._argument(item) for item in argument]
        return argument

    def _value(self, node: Any) -> ir.Value:
        value = self.environment.get(node.name)
        if not isinstance(value, ir.Value):
            raise Untranslatable(f"{node} has no single value")
        return value


def _is_uniform(tensor: torch.Tensor) -> bool:
    return not tensor.is_complex() and bool((tensor == tensor.reshape(-1)[0]).all())


def _used(node: torch.fx.Node, several: bool) -> frozenset[int]:
    if not several:
        return frozenset({0})
    used: set[int] = set()
    for user in node.users:
        index = user.args[1] if user.target is operator.getitem else None
        if not isinstance(index, int):
            return frozenset(range(len(node.meta["val"])))
        if user.users:
            used.add(index)
    return frozenset(used)


def _is_complex(target: Target) -> bool:
    if any(known is not None and known[0].is_complex for known in target.types):
        return True
    for source in target.node.all_input_nodes:
        meta = source.meta.get("val")
        if isinstance(meta, torch.Tensor) and meta.is_complex():
            return True
    return False


def _is_random(node: torch.fx.Node) -> bool:
    operation = node.target
    return isinstance(operation, OpOverload) and torch.Tag.nondeterministic_seeded in operation.tags


def _refuse_mutation(node: torch.fx.Node) -> None:
    operation = node.target
    if isinstance(operation, OpOverload) and schema_of(operation).is_mutable:
        # Reordering around a write would be wrong, so a graph that writes is not rewritten at all.
        raise CaptureError(
            "an operator writes to its input",
            where=f"{node.name}: {node.meta.get('stack_trace', '')}".strip(),
            expected="a functional graph, as AOTAutograd makes it",
            got=str(operation),
        )
