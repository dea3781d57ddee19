"""ONNX models from outside: checked and bounded before anything else looks at them.

A file may be malformed, huge, or point at files that are none of its business. In this process only size
caps, the protobuf parser, `onnx.checker` without shape inference and the checks of `safety.py` touch it.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir

from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.onnx import safety
from torchrlopt.onnx.opsets import NATIVE, default_opset
from torchrlopt.onnx.quiet import quiet
from torchrlopt.onnx.saving import Staged
from torchrlopt.onnx.tolerance import repaired
from torchrlopt.onnx.upgrade import upgraded
from torchrlopt.onnx.weightless import has_content, without_weights
from torchrlopt.plain_text import escaped

# What onnx_ir raises on protos that make no sense (its SerdeError is a RuntimeError).
_REFUSALS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, AssertionError, IndexError)


def load(path: str | Path) -> onnx_ir.Model:
    """Read a model file; its external data stays on disk and is mapped when it is needed.

    A model of an old opset is converted to one that is read.

    Args:
        path: the file.

    Raises:
        ModelFormatError: the file is no model, or inconsistent, or its name is no UTF-8.
        UnsafePathError: its external data is outside its directory, or no plain file.
        FileNotFoundError: there is no such file.
        UnsupportedError: it is valid, and has what is not read.
    """
    path = Path(path)
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # onnx takes names as UTF-8 only, and would blame the model
        raise ModelFormatError(
            "the name of the file is no UTF-8", where=ascii(str(path)), todo="rename the file"
        ) from escaped(error)
    return made_of(upgraded(checked(safety.parse(path), path)), path)


def prepared(proto: onnx.ModelProto, path: Path | None = None) -> onnx_ir.Model:
    """Check a model and make it ready to be read: nodes sorted, every node named.

    Args:
        proto: the model.
        path: the file it comes from; None for a model in memory, which may have no external data.

    Raises:
        ModelFormatError: it is malformed.
        UnsafePathError: its external data is outside the file's directory, or no plain file.
        UnsupportedError: it is valid, and has what is not read.
    """
    return made_of(checked(proto, path), path)


def checked(proto: onnx.ModelProto, path: Path | None = None) -> onnx.ModelProto:
    """Check a model; `prepared` says what is raised.

    Returns:
        The model, or a copy of it without the faults that runtimes put right themselves.
    """
    safety.check(proto, path)
    try:
        # By path the checker finds external data; it runs no shape inference either way.
        onnx.checker.check_model(proto if path is None else str(path), full_check=False)
    except (onnx.checker.ValidationError, *_REFUSALS) as error:
        right = repaired(proto)
        if _is_valid(right):
            return right
        if right.opset_import and default_opset(right) is None:
            # Where others than the standard operators are imported, runtimes take their newest of these.
            right.opset_import.add(domain="", version=NATIVE)
            if _is_valid(right):
                raise UnsupportedError(
                    "the model does not say which version of the ONNX operators it has", got=_reason(error)
                ) from escaped(error)
        raise ModelFormatError("the model breaks the ONNX specification", got=_reason(error)) from escaped(
            error
        )
    return proto


def made_of(proto: onnx.ModelProto, path: Path | None = None) -> onnx_ir.Model:
    """The model of a message that was checked; see `prepared`."""
    try:
        with quiet():
            model = onnx_ir.from_proto(proto)
    except _REFUSALS as error:
        raise UnsupportedError("the model has what is not read", got=_reason(error)) from escaped(error)
    _refuse_references(model.graph)
    if path is not None:
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            onnx_ir.external_data.set_base_dir(graph, path.parent)
    _name_nodes(model.graph)
    _clear_negative_sizes(model.graph)
    return model


def save(model: onnx_ir.Model, path: str | Path) -> None:
    """Write a model so that the file is either complete or not there.

    Args:
        model: the model, in memory or with external data beside `path`.
        path: the file; initializers beyond `saving.MAX_INLINE_BYTES` go to a file beside it.
    """
    save_message(message(model), path)


def save_message(proto: onnx.ModelProto, path: str | Path) -> None:
    """Write a protobuf message as `save` writes a model."""
    with Staged(Path(path)) as staged:
        staged.write(proto, Path(path).parent)
        staged.commit()


def message(model: onnx_ir.Model) -> onnx.ModelProto:
    """The model as a protobuf message; external data stays where it is.

    Raises:
        ModelFormatError: something in it has no form in a file.
    """
    try:
        with quiet():
            proto: onnx.ModelProto = onnx_ir.to_proto(model)
    except _REFUSALS as error:
        raise ModelFormatError("the model cannot be written", got=_reason(error)) from escaped(error)
    return proto


def _is_valid(proto: onnx.ModelProto) -> bool:
    """Whether the checker takes a model that was put right.

    Its weights are empty then: in memory the checker finds no external data, and takes no 2 GB.
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


def _name_nodes(graph: onnx_ir.Graph) -> None:
    """Give every node that lacks a name of its own one: names are how nodes are found again."""
    taken: set[str] = set()
    last: dict[
        str, int
    ] = {}  # the number that a name was given last: of n nodes of one name none asks n times
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
    """Some exporters write -1 for a size that is not known; runtimes take it so, and so does this package."""
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        dims = list(value.shape or ())
        if any(isinstance(dim, int) and dim < 0 for dim in dims):
            value.shape = onnx_ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in dims])


def _refuse_references(graph: onnx_ir.Graph) -> None:
    """Refuse attributes that stand for one of a function's call, and are in no function: they have no value.

    The checker lets them pass, and whoever reads them would find None.
    """
    for node in graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.is_ref():
                raise ModelFormatError(
                    "an attribute refers to one of a function, and stands in none",
                    where=f"node {node.name} ({node.op_type}), attribute {attribute.name}",
                    got=attribute.ref_attr_name,
                )


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
