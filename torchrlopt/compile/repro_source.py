"""Writes Python source of a graph, and of inputs like its own with random numbers."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.errors import UnsupportedError
from torchrlopt.generated_code import checked

_SMALL = 64  # constants up to this many elements are written out: they may be shapes and indices

MAKE = '''
def make(shape, stride, dtype, device, low=0, high=1, is_weight=False):
    """A tensor of this kind; small numbers, such that long chains of operators stay finite."""
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if 0 not in shape else 0
    if not (dtype.is_floating_point or dtype.is_complex):
        values = torch.randint(low, high + 1, (extent,))
    elif not is_weight:
        values = torch.randn(extent)
    elif len(shape) < 2:  # variances are positive
        values = 0.5 + torch.rand(extent)
    else:
        values = (torch.rand(extent) - 0.5) * 2 / max(1, extent // max(1, shape[0])) ** 0.5
    return values.to(device=device, dtype=dtype).as_strided(shape, stride)
'''


@dataclasses.dataclass(frozen=True)
class Signature:
    """An input of a graph, without its numbers.

    Attributes:
        name: of the placeholder.
        value: an expression that makes it; for a number that is a size of another input, that size.
        dynamic: dimensions whose size is a symbol.
        role: "weight", "buffer", "input", "number", or "size" for a number that is a size of another input.
    """

    name: str
    value: str
    dynamic: tuple[int, ...]
    role: str


def signatures(module: fx.GraphModule, inputs: Sequence[Any], static: Collection[int]) -> list[Signature]:
    """Describe each input of a graph."""
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    metas = [node.meta.get("val", node.meta.get("example_value")) for node in placeholders]
    sizes = _sizes(placeholders, metas)
    found = []
    for position, (node, meta, value) in enumerate(zip(placeholders, metas, inputs, strict=True)):
        if isinstance(value, torch.Tensor):
            is_weight = position in static or isinstance(value, torch.nn.Parameter)
            kind = "weight" if isinstance(value, torch.nn.Parameter) else "buffer"
            shape = meta.shape if isinstance(meta, torch.Tensor) else value.shape
            dynamic = tuple(dim for dim, size in enumerate(shape) if not isinstance(size, int))
            role = kind if is_weight else "input"
            found.append(Signature(node.name, tensor_text(value, is_weight), dynamic, role))
        else:
            size = sizes.get(str(meta if meta is not None else value))
            role = "number" if size is None else "size"
            found.append(Signature(node.name, size or repr(int(value)), (), role))
    return found


def _sizes(placeholders: Sequence[fx.Node], metas: Sequence[Any]) -> dict[str, str]:
    """Return, for each symbol, the first tensor size that equals it."""
    found: dict[str, str] = {}
    for node, meta in zip(placeholders, metas, strict=True):
        if isinstance(meta, torch.Tensor):
            for dim, size in enumerate(meta.shape):
                if not isinstance(size, int):
                    found.setdefault(str(size), f"{node.name}.size({dim})")
    return found


def tensor_text(tensor: torch.Tensor, is_weight: bool) -> str:
    """Return a call of `make` for such a tensor; for integers, with the smallest and the largest value."""
    parts = [tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, f"{str(tensor.device)!r}"]
    if not (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel():
        parts += [int(tensor.min()), int(tensor.max())]
    text = ", ".join(map(str, parts))
    return f"make({text}, is_weight=True)" if is_weight else f"make({text})"


def class_text(name: str, module: fx.GraphModule) -> str:
    """Return a class with the graph's `forward`, preceded by what it needs.

    Raises:
        UnsupportedError: the graph holds something that cannot be written as source.
    """
    code = checked(module.graph).python_code("self")
    above, attributes = [_import(each, value) for each, value in sorted(code.globals.items())], []
    for target in _targets(module):
        held = getattr(module, target, None)
        if isinstance(held, fx.GraphModule):
            above.append(class_text(f"{name}_{target}", held))
            attributes.append(f"self.{target} = {name}_{target}()")
        elif isinstance(held, torch.Tensor):
            attributes.append(f"self.register_buffer({target!r}, {_constant(held)})")
        else:
            raise UnsupportedError(
                "a part of the graph cannot be written as source", where=target, got=type(held).__name__
            )
    body = "".join(f"        {line}\n" for line in ("super().__init__()", *attributes))
    forward = "".join(f"    {line}\n" for line in code.src.strip().splitlines())
    imports = "\n".join(above)
    return f"{imports}\n\n\nclass {name}(torch.nn.Module):\n    def __init__(self):\n{body}\n{forward}"


def _targets(module: fx.GraphModule) -> list[str]:
    nodes = (node for node in module.graph.nodes if node.op in ("get_attr", "call_module"))
    return list(dict.fromkeys(str(node.target) for node in nodes))


def _constant(tensor: torch.Tensor) -> str:
    if isinstance(tensor, torch.nn.Parameter) or tensor.numel() > _SMALL:
        return tensor_text(tensor, is_weight=True)
    values = tensor.detach().flatten().tolist()
    kind = f"dtype={tensor.dtype}, device={str(tensor.device)!r}"
    return f"torch.tensor([{', '.join(map(_number, values))}], {kind}).reshape({tuple(tensor.shape)})"


def _number(value: Any) -> str:
    is_special = isinstance(value, float) and not math.isfinite(value)
    return f"float({str(value)!r})" if is_special else repr(value)


def _import(name: str, value: Any) -> str:
    """Return a line that binds a name of the graph's code."""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__}" if name == value.__name__ else f"import {value.__name__} as {name}"
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})"
    if value is type(None):
        return f"{name} = type(None)"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualified or "<" in qualified:
        raise UnsupportedError("a part of the graph cannot be imported", where=name, got=repr(value))
    first = qualified.split(".")[0]
    line = f"from {module} import {first} as {name}"
    return line if first == qualified else f"{line}\n{name} = {name}{qualified[len(first) :]}"
