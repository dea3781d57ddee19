"""ONNX models from outside: checked and bounded before anything else looks at them.

A file may be malformed, huge, or point at files that are none of its business. In this process only size
caps, the protobuf parser, `onnx.checker` without shape inference and the checks here touch it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from torchrlopt.errors import ModelFormatError, UnsafePathError

# What onnx_ir raises on protos that make no sense (its SerdeError is a RuntimeError).
_REFUSALS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError)

MAX_FILE_BYTES = 2 << 30
"""Size of the largest model file; larger models keep their weights as external data."""

MAX_INLINE_BYTES = 1 << 30
"""Size of the initializers up to which they are written into the model file."""

MAX_NODES = 1_000_000
"""Largest number of nodes, subgraphs included."""

MAX_DEPTH = 32
"""Deepest nesting of subgraphs."""


def load(path: str | Path) -> onnx_ir.Model:
    """Read a model file; its external data stays on disk and is mapped when it is needed.

    Args:
        path: the file.

    Raises:
        ModelFormatError: the file is no model, or inconsistent.
        UnsafePathError: its external data is outside its directory, or no plain file.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ModelFormatError(
            "the file is too large", where=str(path), expected=f"up to {MAX_FILE_BYTES} bytes", got=size
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ModelFormatError("the file is no ONNX model", where=str(path), got=str(error)) from error
    return prepared(proto, path)


def prepared(proto: onnx.ModelProto, path: Path | None = None) -> onnx_ir.Model:
    """Check a model and make it ready to be read: nodes sorted, every node named.

    Args:
        proto: the model.
        path: the file it comes from; None for a model in memory, which may have no external data.

    Raises:
        ModelFormatError: it is malformed.
        UnsafePathError: its external data is outside the file's directory, or no plain file.
    """
    _check_size(proto)
    _check_external_data(proto, path)
    try:
        # By path the checker finds external data; it runs no shape inference either way.
        onnx.checker.check_model(proto if path is None else str(path), full_check=False)
        model = onnx_ir.from_proto(proto)
    except (onnx.checker.ValidationError, *_REFUSALS) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelFormatError("the model breaks the ONNX specification", got=reason) from error
    if path is not None:
        onnx_ir.external_data.set_base_dir(model.graph, path.parent)
    _name_nodes(model.graph)
    return model


def save(model: onnx_ir.Model, path: str | Path) -> None:
    """Write a model so that the file is either complete or not there.

    Args:
        model: the model.
        path: the file; initializers beyond `MAX_INLINE_BYTES` go to a file beside it, with `.data` added.
    """
    path = Path(path)
    total = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    data_name = f"{path.name}.data" if total > MAX_INLINE_BYTES else None
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as directory:
        onnx_ir.save(model, Path(directory) / path.name, external_data=data_name)
        # The data first: a model must never point at data that is not there yet.
        for name in filter(None, (data_name, path.name)):
            os.replace(Path(directory) / name, path.parent / name)


def _graphs(proto: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto | onnx.FunctionProto, int]]:
    """The graph, all functions and all subgraphs, with how deep they are nested."""
    waiting: list[tuple[onnx.GraphProto | onnx.FunctionProto, int]] = [(proto.graph, 0)]
    waiting += [(function, 0) for function in proto.functions]
    while waiting:
        graph, depth = waiting.pop()
        yield graph, depth
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [(inner, depth + 1) for inner in (*attribute.graphs, attribute.g) if inner.node]


def _check_size(proto: onnx.ModelProto) -> None:
    total = 0
    for graph, depth in _graphs(proto):
        total += len(graph.node)
        if total > MAX_NODES or depth > MAX_DEPTH:
            raise ModelFormatError(
                "the model is too large",
                expected=f"up to {MAX_NODES} nodes, nested up to {MAX_DEPTH} deep",
                got=f"{total} nodes, depth {depth}",
            )


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph, _ in _graphs(proto):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                    yield from (sparse.values, sparse.indices)


def _check_external_data(proto: onnx.ModelProto, path: Path | None) -> None:
    """Every piece of external data is inside a plain file in the model's own directory."""
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            if path is None:
                raise UnsafePathError("a model in memory refers to external data", where=tensor.name)
            _check_location(tensor, path.parent)


def _check_location(tensor: onnx.TensorProto, directory: Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    where = f"tensor {tensor.name}"
    parts = Path(location).parts
    if not parts or "\0" in location or "\\" in location or ".." in parts or Path(location).is_absolute():
        raise UnsafePathError("external data is not inside the model's directory", where=where, got=location)
    found = directory
    for part in parts:
        found = found / part
        try:
            status = found.lstat()
        except OSError as error:
            raise UnsafePathError("external data is not there", where=where, got=location) from error
        if stat.S_ISLNK(status.st_mode):
            raise UnsafePathError("external data is behind a symbolic link", where=where, got=location)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise UnsafePathError("external data is no plain file of its own", where=where, got=location)
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", status.st_size - offset))
    except ValueError as error:
        raise UnsafePathError("external data has no proper extent", where=where, got=str(error)) from error
    if offset < 0 or length < 0 or offset + length > status.st_size:
        raise UnsafePathError(
            "external data reaches beyond its file",
            where=where,
            expected=f"0 to {status.st_size}",
            got=f"{offset} to {offset + length}",
        )


def _name_nodes(graph: onnx_ir.Graph) -> None:
    """Give every node that lacks a name of its own one: names are how nodes are found again."""
    taken: set[str] = set()
    for node in graph:
        name = node.name or next((f"{output.name}" for output in node.outputs if output.name), node.op_type)
        number = 0
        unique = name
        while unique in taken:
            number += 1
            unique = f"{name}.{number}"
        taken.add(unique)
        node.name = unique
