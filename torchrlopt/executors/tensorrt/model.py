"""Prepares the ONNX model for TensorRT: standard operators of an opset that it can parse, no weights.

Nothing here imports TensorRT, so all of it can be tested on machines without it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch

from torchrlopt.errors import LoweringError, OptionsError, RlOptError
from torchrlopt.executors.onnx_runtimes.session_call import (
    of_opaque,
    positions,
    proto_without_weights,
    refuse_opaque,
)
from torchrlopt.executors.weights.split_onnx import WeightPrologue, split_weights
from torchrlopt.executors.weights.static_part import static_inputs
from torchrlopt.onnx import opsets
from torchrlopt.onnx.older_opset import lower_opset
from torchrlopt.onnx.standard import standardise
from torchrlopt.ops.onnx_types import torch_dtype
from torchrlopt.options import LoweringOptions

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured

_LARGEST = 2**31 - 1  # largest size that TensorRT can represent

_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorRtOptions:
    """TensorRT settings in `executor_options`.

    Attributes:
        refit: refit the built engine with new weights instead of rebuilding it. The default depends on the
            weights option: True for "check", False for "frozen", which leaves TensorRT more freedom.
        max_factor: a size that may vary is planned for from 1 up to this many times the example's.
        workspace_bytes: maximum scratch memory of a kernel; None for TensorRT's own default.
        optimization_level: 0 to 5, how long TensorRT searches; None for its own default.
    """

    refit: bool = True
    max_factor: float = 4.0
    workspace_bytes: int | None = None
    optimization_level: int | None = None

    @classmethod
    def of(cls, options: LoweringOptions) -> TensorRtOptions:
        """Read the settings from the user's options.

        Raises:
            OptionsError: an entry of `executor_options` is unknown or has an invalid value.
        """
        given = {"refit": options.weights == "check", **(options.executor_options or {})}
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1, cutoff=0)
                raise OptionsError(
                    f"TensorRT has no option {name!r}",
                    expected=f"one of {', '.join(known)}",
                    got=name,
                    todo=f"did you mean {close[0]!r}?",
                )
        made = cls(**given)
        level, space = made.optimization_level, made.workspace_bytes
        _require("refit", isinstance(made.refit, bool), "True or False", made.refit)
        is_factor = isinstance(made.max_factor, int | float) and made.max_factor >= 1
        _require("max_factor", is_factor, "a number of 1 or more", made.max_factor)
        is_level = level is None or (isinstance(level, int) and 0 <= level <= 5)
        _require("optimization_level", is_level, "0 to 5", level)
        _require("workspace_bytes", space is None or (isinstance(space, int) and space > 0), "bytes", space)
        return made


def _require(name: str, holds: bool, expected: str, got: Any) -> None:
    if not holds:
        raise OptionsError(f"TensorRT's option {name} has no such value", expected=expected, got=repr(got))


@dataclasses.dataclass(frozen=True)
class Range:
    """The range in which the sizes of one input may vary.

    Attributes:
        least, best, most: smallest sizes, the sizes to optimise for, and largest sizes.
        is_value: the input is itself a size, a 0-d integer, and these are its values.
    """

    least: tuple[int, ...]
    best: tuple[int, ...]
    most: tuple[int, ...]
    is_value: bool = False

    def holds(self, argument: Any) -> bool:
        """Whether an argument of the captured graph is in the range."""
        sizes = (int(argument),) if self.is_value else tuple(argument.shape)
        return all(a <= b <= c for a, b, c in zip(self.least, sizes, self.most, strict=True))


Ranges = Mapping[str, Range]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A model that is ready for TensorRT.

    Attributes:
        proto: the serialised model; initializers have no data.
        feeds: inputs that are not weights, in the order of the graph.
        fetches: outputs in order, with their dtypes.
        ranges: of the inputs with sizes that vary.
        prologue: computes the initializers from the weights.
        weights: names of the weights that the prologue takes, including constants from capture.
        tf32: whether float32 products may round their operands to TF32.
    """

    proto: bytes
    feeds: tuple[str, ...]
    fetches: Mapping[str, torch.dtype]
    ranges: Ranges
    prologue: WeightPrologue
    weights: tuple[str, ...]
    tf32: bool


Parse = Callable[[Prepared], Mapping[str, str]]
"""Parses a model with TensorRT's parser: the names of the nodes it rejects, with its reasons."""


def refusals(model: onnx_ir.Model) -> dict[onnx_ir.Node, str]:
    """The nodes that TensorRT certainly does not support; its parser checks the others: see `refused_by`."""
    found = of_opaque(model)
    ends = [(value, [use.node for use in value.uses()]) for value in model.graph.inputs]
    ends += [(value, [node]) for node in model.graph for value in node.outputs if value.is_graph_output()]
    for value, nodes in ends:
        if value.dtype is not None and torch_dtype(value.dtype) not in _DTYPES:
            found |= dict.fromkeys(nodes, f"TensorRT has no tensors of {value.dtype.name}")
    return found


def refused_by(
    parse: Parse, model: onnx_ir.Model, captured: Captured, options: LoweringOptions, device: torch.device
) -> dict[onnx_ir.Node, str]:
    """The nodes that TensorRT's parser rejects, with its reasons.

    Args:
        parse: runs the parser.
        model: not modified; no node is known to be unsupported.
        captured: what it was rewritten from.
        options: the user's options.
        device: where the tensors are.

    Returns:
        Empty if the parser accepts the model, or if it blames no node; the build then reports the error.
    """
    try:
        prepared = prepare(model.clone(), captured, options, device)
    except RlOptError:
        return {}  # `lower` raises it
    # Nodes that replace another one have its name with a suffix after a dot.
    by_label = {str(node.name or node.outputs[0].name): node for node in model.graph}
    found = {}
    for name, reason in parse(prepared).items():
        label = name
        while label and label not in by_label:
            label = label.rpartition(".")[0]
        if label:
            found[by_label[label]] = f"TensorRT's parser refuses it: {' '.join(reason.split())}"
    return found


def zeros_for(prepared: Prepared) -> dict[str, torch.Tensor]:
    """Zero bytes in place of the weights, sharing one buffer; the system allocates only what is read."""
    import onnx

    absent = onnx.TensorProto.EXTERNAL
    proto = onnx.load_from_string(prepared.proto)
    tensors = [each for each in proto.graph.initializer if each.data_location == absent]
    sizes = {
        each.name: math.prod(each.dims) * torch_dtype(onnx_ir.DataType(each.data_type)).itemsize
        for each in tensors
    }
    memory = torch.zeros(max(sizes.values(), default=0), dtype=torch.uint8)
    return {name: memory[:size] for name, size in sizes.items()}


def prepare(
    model: onnx_ir.Model,
    captured: Captured,
    options: LoweringOptions,
    device: torch.device,
    max_factor: float = 4.0,
    opset: int = opsets.TENSORRT,
) -> Prepared:
    """Prepare a rewritten model for TensorRT, in place.

    Args:
        model: of the plan.
        captured: what it was rewritten from.
        options: the user's options.
        device: where the tensors are.
        max_factor: see `TensorRtOptions`.
        opset: version of the standard operators.

    Raises:
        LoweringError: an operator is not an ONNX operator, or TensorRT lacks a dtype.
        UnsupportedError: an operator has no form in the opset.
    """
    refuse_opaque(model)
    standardise(model)
    lower_opset(model, opset)
    position = positions(captured)
    static = captured.constants.keys() | static_inputs(captured, options)
    weights = tuple(str(value.name) for value in model.graph.inputs if value.name in static)
    prologue = split_weights(model, static, device, exact=options.numerics != "real")
    shapes = {str(value.name): _sizes(value) for value in model.graph.inputs if value.name in prologue.names}
    names = [str(value.name) for value in model.graph.inputs]
    feeds = tuple(name for name in names if name in position and name not in static)
    fetches = {str(value.name): torch_dtype(value.dtype) for value in model.graph.outputs}
    examples = {node.name: node.meta["val"] for node in captured.aten.graph.find_nodes(op="placeholder")}
    _check_dtypes({name: examples[name] for name in feeds}, fetches)
    proto = proto_without_weights(model, shapes)
    ranges = ranges_of(examples, feeds, max_factor)
    tf32 = options.numerics == "real" and _may_use_tf32(model)
    return Prepared(proto, feeds, fetches, ranges, prologue, weights, tf32)


def _may_use_tf32(model: onnx_ir.Model) -> bool:
    """Whether torch itself would use TF32 for most of the products in the model.

    torch has separate settings for convolutions and matrix products; an engine has one for both.
    """
    of_products = torch.backends.cuda.matmul.fp32_precision == "tf32"
    of_convolutions = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    ops = [node.op_type for node in model.graph]
    num_convolutions = sum(op in ("Conv", "ConvTranspose") for op in ops)
    num_products = sum(op in ("MatMul", "Gemm", "Einsum") for op in ops)
    return bool(of_convolutions if num_convolutions >= max(num_products, 1) else of_products)


def _sizes(value: onnx_ir.Value) -> tuple[int, ...]:
    sizes = tuple(value.shape or ())
    if value.shape is None or not all(isinstance(size, int) for size in sizes):
        raise LoweringError("a weight of the engine has no fixed shape", got=value.name)
    return tuple(int(size) for size in sizes)  # type: ignore[arg-type]  # checked above


def _check_dtypes(feeds: Mapping[str, Any], fetches: Mapping[str, torch.dtype]) -> None:
    used = {name: x.dtype for name, x in feeds.items() if isinstance(x, torch.Tensor)} | dict(fetches)
    for name, dtype in used.items():
        if dtype not in _DTYPES:
            raise LoweringError("TensorRT has no tensors of this dtype", where=name, got=dtype, is_bug=False)


def ranges_of(examples: Mapping[str, Any], feeds: tuple[str, ...], max_factor: float) -> dict[str, Range]:
    """The ranges of the inputs whose sizes vary.

    A symbol may be anything from 1 (or the declared minimum) to `max_factor` times its example (or the
    declared maximum); sizes that are expressions follow from their symbols.

    Args:
        examples: fake tensors and symbolic sizes, all arguments of the graph by name.
        feeds: the inputs to return ranges for.
        max_factor: see `TensorRtOptions`.
    """
    hints: dict[Any, int] = {}
    for example in examples.values():
        for size in example.shape if isinstance(example, torch.Tensor) else [example]:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.has_hint():
                hints[size.node.expr] = int(size.node.hint)
    found = {}
    for name in feeds:
        example = examples[name]
        sizes = tuple(example.shape) if isinstance(example, torch.Tensor) else (example,)
        if not any(isinstance(size, torch.SymInt) for size in sizes):
            continue
        least = tuple(_size_at(size, hints, lambda hint, low, high: max(low, 1)) for size in sizes)
        best = tuple(_size_at(size, hints, lambda hint, low, high: hint) for size in sizes)
        most = tuple(
            _size_at(size, hints, lambda hint, low, high: min(high, int(hint * max_factor))) for size in sizes
        )
        ends = [sorted(each) for each in zip(least, best, most, strict=True)]
        found[name] = Range(
            tuple(end[0] for end in ends),
            best,
            tuple(end[-1] for end in ends),
            not isinstance(example, torch.Tensor),
        )
    return found


def _size_at(size: Any, hints: Mapping[Any, int], pick: Callable[[int, int, int], int]) -> int:
    """The size if `pick` chooses each symbol's value from its example and its declared bounds."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    values = {}
    for symbol in expression.free_symbols:
        if symbol not in hints:
            return int(size.node.hint)
        bounds = size.node.shape_env.var_to_range.get(symbol)
        low, high = 0, _LARGEST
        if bounds is not None:
            low = int(bounds.lower)
            high = int(bounds.upper) if bounds.upper < _LARGEST else _LARGEST
        values[symbol] = pick(hints[symbol], low, high)
    return int(expression.xreplace(values))
