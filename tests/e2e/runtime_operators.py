"""Single operators in a runtime, at many scales, against PyTorch's and float64.

Errors are relative to the size of the element, or to 1e-30 if that is larger. An error is accepted if it is
at most a few times PyTorch's own at that scale, or a few times the effect of a change in the input's last
digit on the exact result.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import torch
import torch.nn.functional as F

from tests.onnx.onnx_text import proto_of
from torchrlopt import executor_table
from torchrlopt.executors.onnx_runtimes.conditioning import make_stable, refused

SCALES = (1e-30, 1e-10, 1e-6, 1e-3, 0.1, 1.0, 30.0, 1e4, 1e30)
OFFSETS = (-30.0, 100.0, 1e3, 1e4, 1e6)

Function = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """An operator.

    Attributes:
        operator: its ONNX type.
        function: PyTorch's version; takes the operands that vary.
        attributes: of the ONNX node.
        constants: its further operands.
        only: None for any numbers; otherwise generates numbers of its domain.
        shape: of the operand.
    """

    operator: str
    function: Function
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constants: Sequence[torch.Tensor] = ()
    only: Callable[[torch.Tensor], torch.Tensor] | None = None
    shape: tuple[int, ...] = (2, 16, 8, 8)


_CHANNELS = 16
_ONE, _ZERO = torch.ones(_CHANNELS), torch.zeros(_CHANNELS)
_LONG = (16, 4096)
_LAST = torch.tensor([1])
_GENERATOR = torch.Generator().manual_seed(0)
_KERNEL = torch.randn(8, _CHANNELS, 3, 3, generator=_GENERATOR)
_MATRIX = torch.randn(4096, 8, generator=_GENERATOR)


def _long(operator: str, function: Function, **options: Any) -> Case:
    return Case(operator, function, constants=(_LAST,), shape=_LONG, **options)


PLAIN: dict[str, Function] = {
    "Acos": torch.acos, "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh,
    "Cos": torch.cos, "Cosh": torch.cosh, "Elu": F.elu, "Erf": torch.erf, "Exp": torch.exp, "Gelu": F.gelu,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True), "HardSwish": F.hardswish, "Mish": F.mish,
    "Reciprocal": torch.reciprocal, "Sigmoid": torch.sigmoid, "Sin": torch.sin, "Sinh": torch.sinh,
    "Softplus": F.softplus, "Softsign": F.softsign, "Swish": F.silu, "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip
LONG: dict[str, Function] = {
    "ReduceL1": lambda x: x.abs().sum(1, keepdim=True),
    "ReduceL2": lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
    "ReduceLogSumExp": lambda x: x.logsumexp(1, keepdim=True),
    "ReduceMax": lambda x: x.amax(1, keepdim=True),
    "ReduceMean": lambda x: x.mean(1, keepdim=True),
    "ReduceMin": lambda x: x.amin(1, keepdim=True),
    "ReduceSum": lambda x: x.sum(1, keepdim=True),
    "ReduceSumSquare": lambda x: x.square().sum(1, keepdim=True),
    "variance": lambda x: x.var(1, correction=0, keepdim=True),
}
_FEATURES: dict[str, Any] = {"constants": [torch.ones(4096)], "shape": _LONG}

CASES: dict[str, Case] = {
    **{name: Case(name, function) for name, function in PLAIN.items()},
    **{name: _long(name, function) for name, function in LONG.items()},
    "Acosh": Case("Acosh", torch.acosh, only=lambda x: x.abs() + 1),
    "AveragePool": Case(
        "AveragePool", lambda x: F.avg_pool2d(x, 2), {"kernel_shape": [2, 2], "strides": [2, 2]}
    ),
    "BatchNormalization": Case(
        "BatchNormalization",
        lambda x: F.batch_norm(x, _ZERO.to(x), _ONE.to(x)),
        {"epsilon": 1e-5},
        [_ONE, _ZERO, _ZERO, _ONE],
    ),
    "Celu": Case("Celu", lambda x: F.celu(x, 0.7), {"alpha": 0.7}),
    "Conv": Case("Conv", lambda x: F.conv2d(x, _KERNEL.to(x)), constants=[_KERNEL]),
    "CumSum": Case("CumSum", lambda x: x.cumsum(1), constants=(_LAST[0],), shape=_LONG),
    "Div": Case("Div", lambda x: x / 3, constants=[torch.tensor(3.0)]),
    "Gelu (tanh)": Case("Gelu", lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    "GroupNormalization": Case(
        "GroupNormalization", lambda x: F.group_norm(x, 4), {"num_groups": 4, "epsilon": 1e-5}, [_ONE, _ZERO]
    ),
    "HardSigmoid": Case("HardSigmoid", F.hardsigmoid, {"alpha": 1 / 6, "beta": 0.5}),
    "InstanceNormalization": Case("InstanceNormalization", F.instance_norm, {"epsilon": 1e-5}, [_ONE, _ZERO]),
    "LayerNormalization": Case(
        "LayerNormalization",
        lambda x: F.layer_norm(x, x.shape[-1:]),
        {"axis": -1, "epsilon": 1e-5},
        **_FEATURES,
    ),
    "LeakyRelu": Case("LeakyRelu", F.leaky_relu, {"alpha": 0.01}),
    "Log": Case("Log", torch.log, only=torch.abs),
    "LogSoftmax": Case("LogSoftmax", lambda x: x.log_softmax(-1), {"axis": -1}),
    "MatMul": Case("MatMul", lambda x: x @ _MATRIX.to(x), constants=[_MATRIX], shape=_LONG),
    "PRelu": Case("PRelu", lambda x: F.prelu(x, _ONE[:1].to(x) / 4), constants=[_ONE[:1] / 4]),
    "Pow (2)": Case("Pow", lambda x: x**2, constants=[torch.tensor(2.0)]),
    "Pow (0.3)": Case("Pow", lambda x: x**0.3, constants=[torch.tensor(0.3)], only=torch.abs),
    "RMSNormalization": Case(
        "RMSNormalization",
        lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
        {"axis": -1, "epsilon": 1e-6},
        **_FEATURES,
    ),
    "ReduceLogSum": _long("ReduceLogSum", lambda x: x.sum(1, keepdim=True).log(), only=torch.abs),
    "ReduceProd": Case("ReduceProd", lambda x: x.prod(3, keepdim=True), constants=(torch.tensor([3]),)),
    "Selu": Case("Selu", F.selu, {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}),
    "Shrink": Case("Shrink", F.softshrink, {"lambd": 0.5, "bias": 0.5}),
    "Softmax": Case("Softmax", lambda x: x.softmax(-1), {"axis": -1}),
    "Sqrt": Case("Sqrt", torch.sqrt, only=torch.abs),
}


def inputs(case: Case) -> Iterator[tuple[str, torch.Tensor]]:
    """Operands at each scale and around each offset, with a description."""
    base = torch.randn(case.shape, generator=torch.Generator().manual_seed(0))
    only = case.only or (lambda x: x)
    for scale in SCALES:
        yield f"{scale:g}", only(base * scale)
    for offset in OFFSETS:
        yield f"{offset:+g}", only(base + offset)


_LARGEST = torch.finfo(torch.float32).max
_LEAST = 1e-30  # smaller elements are judged by absolute error
_ULP = 2.0**-23
_OF_PYTORCH, _OF_CARRIED, _OF_ULP = 8, 8, 64
"""Accepted multiples of each; eight partial sums of 512 terms, a legitimate order, lose up to 64 ulps."""


class Limit:
    """The error limit for some operand.

    Args:
        function: what is computed.
        x: the operand, of float32.
    """

    def __init__(self, function: Function, x: torch.Tensor) -> None:
        self._reference = function(x.double())
        own = self._relative(function(x))
        carried = torch.zeros_like(own)
        generator = torch.Generator().manual_seed(1)
        for _ in range(8):
            sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
            carried = carried.maximum(self._relative(function(x.double() * (1 + sign * _ULP))))
        self._allowed = _OF_PYTORCH * float(own.max()) + _OF_CARRIED * carried + _OF_ULP * _ULP

    def holds(self, found: torch.Tensor) -> bool:
        """Whether every element's error is within the limit."""
        return bool((self._relative(found) <= self._allowed).all())

    def _relative(self, found: torch.Tensor) -> torch.Tensor:
        """Relative error of each element; 0 if float32 cannot represent the result, or there is none."""
        counts = self._reference.abs() < _LARGEST / 4
        error = (found.double() - self._reference).abs() / self._reference.abs().clamp(min=_LEAST)
        return torch.where(counts, error.nan_to_num(nan=math.inf), 0.0)


def verdicts(runtime: str, name: str) -> dict[str, str]:
    """For each scale and offset "as PyTorch", "refused", "mended" or "worse"."""
    case = CASES[name]
    model = model_of(case)
    alone = opened(runtime, model)
    is_refused = bool(refused(model, runtime))
    make_stable(model, runtime)
    as_run = opened(runtime, model)
    found = {}
    for label, x in inputs(case):
        limit = Limit(case.function, x)
        before, after = limit.holds(alone(x)), limit.holds(as_run(x))
        right = "refused" if is_refused else "mended" if after else "worse"
        found[label] = "as PyTorch" if before and after else right
    return found


def model_of(case: Case) -> onnx_ir.Model:
    """A model that consists of the operator only."""
    names = [f"c{at}" for at in range(len(case.constants))]
    if case.operator == "variance":
        body = """m = ReduceMean <keepdims = 1> (x, c0)  c = Sub (x, m)  s = Mul (c, c)
            y = ReduceMean <keepdims = 1> (s, c0)"""
    elif case.operator == "Swish":  # capture writes it as a product with the sigmoid
        body = "s = Sigmoid (x)  y = Mul (x, s)"
    else:
        attributes = ", ".join(f"{name} = {json.dumps(value)}" for name, value in case.attributes.items())
        operator = f"{case.operator} <{attributes}>" if attributes else case.operator
        body = f"y = {operator} ({', '.join(['x', *names])})"
    result = list(case.function(torch.zeros(case.shape)).shape)
    proto = proto_of(f"g (float{list(case.shape)} x) => (float{result} y) {{ {body} }}", 23)
    for name, constant in zip(names, case.constants, strict=True):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(constant.numpy(), name))
    return onnx_ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def opened(runtime: str, model: onnx_ir.Model) -> Callable[[torch.Tensor], torch.Tensor]:
    """Load the model in the runtime."""
    row = executor_table.row_of(runtime)
    assert row is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "operator.onnx"
        onnx.save(onnx_ir.to_proto(model), path)
        call = executor_table.module_of(row).open_file(path, 1)
    return lambda x: torch.from_numpy(call([x.numpy()])[0].copy())
