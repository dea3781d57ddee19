"""Untrusted ONNX models: checked and bounded before anything else reads them.

A file may be malformed, huge, or refer to files outside its directory. In this process only size caps, the
protobuf parser, `onnx.checker` without shape inference and the checks of `safety.py` touch it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import onnx_ir

from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.onnx import safety
from torchrlopt.onnx.opsets import NATIVE, OLDEST_IR_VERSION, STANDARD_DOMAINS, default_opset
from torchrlopt.onnx.quiet import quiet
from torchrlopt.onnx.saving import Staged
from torchrlopt.onnx.subgraphs import inside, nested
from torchrlopt.onnx.upgrade import upgraded
from torchrlopt.onnx.weightless import has_content, without_weights
from torchrlopt.plain_text import escaped

# Exceptions that onnx_ir raises on malformed protos (its SerdeError is a RuntimeError).
_REFUSALS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, AssertionError, IndexError)


def load(path: str | Path) -> onnx_ir.Model:
    """Read a model file, converted to a supported opset; its external data is mapped on demand.

    Raises:
        ModelFormatError: the file is not a model or is inconsistent, or its name is not UTF-8.
        UnsafePathError: its external data is outside its directory or not a regular file.
        FileNotFoundError: there is no such file.
        UnsupportedError: it is valid but uses an unsupported feature.
    """
    path = Path(path)
    return made_of(upgraded(checked(safety.parse(path), path), path), path)


def prepared(proto: onnx.ModelProto, path: Path | None = None) -> onnx_ir.Model:
    """Check a model and prepare it for reading: nodes sorted, every node named.

    A model in memory, which comes from no `path`, may have no external data.

    Raises:
        ModelFormatError: it is malformed.
        UnsafePathError: its external data is outside the file's directory or not a regular file.
        UnsupportedError: it is valid but uses an unsupported feature.
    """
    return made_of(checked(proto, path), path)


def checked(proto: onnx.ModelProto, path: Path | None = None) -> onnx.ModelProto:
    """Check a model; raises the same errors as `prepared`.

    Returns:
        The model, or a copy without the faults that runtimes repair themselves.
    """
    safety.check(proto, path)
    try:
        # Given a path, the checker finds external data. It runs no shape inference either way.
        onnx.checker.check_model(proto if path is None else str(path), full_check=False)
    except (onnx.checker.ValidationError, *_REFUSALS) as error:
        right = repaired(proto)
        if _is_valid(right):
            return _with_fixed_weights(right)
        if right.opset_import and default_opset(right) is None:
            # If a model imports other domains only, runtimes use their newest standard opset.
            right.opset_import.add(domain="", version=NATIVE)
            if _is_valid(right):
                raise UnsupportedError(
                    "the model does not say which version of the ONNX operators it has", got=_reason(error)
                ) from escaped(error)
        raise ModelFormatError("the model breaks the ONNX specification", got=_reason(error)) from escaped(
            error
        )
    return _with_fixed_weights(proto)


def _with_fixed_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose weights are no inputs, where the format demands that they are.

    Runtimes take such weights for constants. In the later formats, of which results are, a weight that is an
    input may be overridden, so that nothing over it could be folded.
    """
    weights = {tensor.name for tensor in proto.graph.initializer}
    if proto.ir_version >= OLDEST_IR_VERSION or not any(each.name in weights for each in proto.graph.input):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.ir_version = OLDEST_IR_VERSION
    del copy.graph.input[:]
    copy.graph.input.extend(each for each in proto.graph.input if each.name not in weights)
    return copy


def made_of(proto: onnx.ModelProto, path: Path | None = None) -> onnx_ir.Model:
    """Build the model of a checked message; see `prepared`."""
    try:
        with quiet():
            model = onnx_ir.from_proto(proto)
    except _REFUSALS as error:
        raise UnsupportedError("the model has what is not read", got=_reason(error)) from escaped(error)
    _refuse_references(model.graph)
    if path is not None:
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            onnx_ir.external_data.set_base_dir(graph, path.parent)
    name_nodes(model.graph)
    _clear_negative_sizes(model.graph)
    return model


def save_message(proto: onnx.ModelProto, path: str | Path) -> None:
    """Write a model, with external data next to `path`: the file is then complete or not there.

    Initializers beyond `saving.MAX_INLINE_BYTES` go to a file next to it.
    """
    with Staged(Path(path)) as staged:
        staged.write(proto, Path(path).parent)
        staged.commit()


def message(model: onnx_ir.Model) -> onnx.ModelProto:
    """Convert the model to a protobuf message; external data stays where it is.

    Raises:
        ModelFormatError: part of it cannot be represented in a file.
    """
    try:
        with quiet():
            proto: onnx.ModelProto = onnx_ir.to_proto(model)
    except _REFUSALS as error:
        raise ModelFormatError("the model cannot be written", got=_reason(error)) from escaped(error)
    return proto


def _is_valid(proto: onnx.ModelProto) -> bool:
    """Whether the checker accepts a repaired model.

    Its weights are emptied first: for a model in memory the checker finds no external data and rejects 2 GB.
    """
    small = without_weights(proto)
    small.graph.sparse_initializer.extend(proto.graph.sparse_initializer)
    for tensor, whole in zip(small.graph.initializer, proto.graph.initializer, strict=True):
        if has_content(whole) and not has_content(tensor):
            tensor.dims[:] = [0]
    try:
        onnx.checker.check_model(small, full_check=False)
    except (onnx.checker.ValidationError, *_REFUSALS):
        return False
    return True


def name_nodes(graph: onnx_ir.Graph) -> None:
    """Give every node a unique name: nodes are looked up by name."""
    taken: set[str] = set()
    last: dict[str, int] = {}  # suffix per name, so that n nodes of one name do not each probe n suffixes
    for node in graph:
        name = node.name or next((f"{output.name}" for output in node.outputs if output.name), node.op_type)
        number = last.get(name, 0)
        unique = f"{name}.{number}" if number else name
        while unique in taken:
            number += 1
            unique = f"{name}.{number}"
        last[name] = number
        taken.add(unique)
        node.name = unique


def _clear_negative_sizes(graph: onnx_ir.Graph) -> None:
    """Clear sizes of -1, which some exporters write for unknown sizes; runtimes accept them as such."""
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        dims = list(value.shape or ())
        if any(isinstance(dim, int) and dim < 0 for dim in dims):
            value.shape = onnx_ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in dims])


def _refuse_references(graph: onnx_ir.Graph) -> None:
    """Refuse references to function attributes outside any function: they have no value.

    The checker accepts them, and readers would get None.
    """
    for node in graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.is_ref():
                raise ModelFormatError(
                    "an attribute refers to one of a function, and stands in none",
                    where=f"node {node.name} ({node.op_type}), attribute {attribute.name}",
                    got=attribute.ref_attr_name,
                    is_bug=False,  # the file's own
                )


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def repaired(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the faults that ONNX Runtime, which loads most files, tolerates.

    Nodes are sorted. A custom domain that is used but not imported is imported in version 1. A file of format
    3, in which initializers must be inputs, becomes one of format 4 if they are not.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    of_functions = (node for function in copy.functions for node in function.node)
    graphs = [*nested(copy.graph), *(graph for node in of_functions for graph in inside(node))]
    for holder in (*reversed(graphs), *copy.functions):  # inner ones first: sorting copies nodes
        _sort(holder)
    imported = {entry.domain for entry in copy.opset_import}
    used = {node.domain for graph in graphs for node in graph.node}
    for domain in sorted(used - imported - set(STANDARD_DOMAINS)):
        copy.opset_import.add(domain=domain, version=1)
    inputs = {value.name for value in copy.graph.input}
    is_hidden = not {tensor.name for tensor in copy.graph.initializer} <= inputs
    if is_hidden and copy.ir_version == OLDEST_IR_VERSION - 1:
        copy.ir_version = OLDEST_IR_VERSION
    return copy


def _sort(holder: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Sort nodes topologically; leaves cycles unchanged.

    The sort is stable: of the nodes that are ready, the first in the list comes next.
    """
    nodes: Sequence[onnx.NodeProto] = holder.node
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waits = {
        index: {maker[name] for name in _reads(node) if name in maker} for index, node in enumerate(nodes)
    }
    if all(before < index for index, found in waits.items() for before in found):
        return
    sorter = TopologicalSorter(waits)
    try:
        sorter.prepare()
    except CycleError:
        return
    ready = sorted(sorter.get_ready())
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
    copies = [onnx.NodeProto.FromString(nodes[index].SerializeToString()) for index in order]
    del holder.node[:]
    holder.node.extend(copies)


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, including those in its subgraphs."""
    names = set(node.input)
    for graph in inside(node):
        names |= {name for inner in graph.node for name in inner.input}
        names |= {value.name for value in graph.output}
    return names
