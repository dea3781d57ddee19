"""The operators under test, and their inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

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


CASES: dict[str, Case] = {
    "Acos": Case("Acos", torch.acos),
    "Acosh": Case("Acosh", torch.acosh, only=lambda x: x.abs() + 1),
    "Asin": Case("Asin", torch.asin),
    "Asinh": Case("Asinh", torch.asinh),
    "Atan": Case("Atan", torch.atan),
    "Atanh": Case("Atanh", torch.atanh),
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
    "Cos": Case("Cos", torch.cos),
    "Cosh": Case("Cosh", torch.cosh),
    "CumSum": Case("CumSum", lambda x: x.cumsum(1), constants=(_LAST[0],), shape=_LONG),
    "Div": Case("Div", lambda x: x / 3, constants=[torch.tensor(3.0)]),
    "Elu": Case("Elu", F.elu),
    "Erf": Case("Erf", torch.erf),
    "Exp": Case("Exp", torch.exp),
    "Gelu": Case("Gelu", F.gelu),
    "Gelu (tanh)": Case("Gelu", lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    "GlobalAveragePool": Case("GlobalAveragePool", lambda x: x.mean((2, 3), keepdim=True)),
    "GroupNormalization": Case(
        "GroupNormalization", lambda x: F.group_norm(x, 4), {"num_groups": 4, "epsilon": 1e-5}, [_ONE, _ZERO]
    ),
    "HardSigmoid": Case("HardSigmoid", F.hardsigmoid, {"alpha": 1 / 6, "beta": 0.5}),
    "HardSwish": Case("HardSwish", F.hardswish),
    "InstanceNormalization": Case("InstanceNormalization", F.instance_norm, {"epsilon": 1e-5}, [_ONE, _ZERO]),
    "LayerNormalization": Case(
        "LayerNormalization",
        lambda x: F.layer_norm(x, x.shape[-1:]),
        {"axis": -1, "epsilon": 1e-5},
        [torch.ones(4096)],
        shape=_LONG,
    ),
    "LeakyRelu": Case("LeakyRelu", F.leaky_relu, {"alpha": 0.01}),
    "Log": Case("Log", torch.log, only=torch.abs),
    "LogSoftmax": Case("LogSoftmax", lambda x: x.log_softmax(-1), {"axis": -1}),
    "MatMul": Case("MatMul", lambda x: x @ _MATRIX.to(x), constants=[_MATRIX], shape=_LONG),
    "Mish": Case("Mish", F.mish),
    "PRelu": Case("PRelu", lambda x: F.prelu(x, _ONE[:1].to(x) / 4), constants=[_ONE[:1] / 4]),
    "Pow (2)": Case("Pow", lambda x: x**2, constants=[torch.tensor(2.0)]),
    "Pow (0.3)": Case("Pow", lambda x: x**0.3, constants=[torch.tensor(0.3)], only=torch.abs),
    "RMSNormalization": Case(
        "RMSNormalization",
        lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
        {"axis": -1, "epsilon": 1e-6},
        [torch.ones(4096)],
        shape=_LONG,
    ),
    "Reciprocal": Case("Reciprocal", torch.reciprocal),
    "ReduceL1": _long("ReduceL1", lambda x: x.abs().sum(1, keepdim=True)),
    "ReduceL2": _long("ReduceL2", lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True)),
    "ReduceLogSum": _long("ReduceLogSum", lambda x: x.sum(1, keepdim=True).log(), only=torch.abs),
    "ReduceLogSumExp": _long("ReduceLogSumExp", lambda x: x.logsumexp(1, keepdim=True)),
    "ReduceMax": _long("ReduceMax", lambda x: x.amax(1, keepdim=True)),
    "ReduceMean": _long("ReduceMean", lambda x: x.mean(1, keepdim=True)),
    "ReduceMin": _long("ReduceMin", lambda x: x.amin(1, keepdim=True)),
    "ReduceProd": Case("ReduceProd", lambda x: x.prod(3, keepdim=True), constants=(torch.tensor([3]),)),
    "ReduceSum": _long("ReduceSum", lambda x: x.sum(1, keepdim=True)),
    "ReduceSumSquare": _long("ReduceSumSquare", lambda x: x.square().sum(1, keepdim=True)),
    "Selu": Case("Selu", F.selu, {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}),
    "Shrink": Case("Shrink", F.softshrink, {"lambd": 0.5, "bias": 0.5}),
    "Sigmoid": Case("Sigmoid", torch.sigmoid),
    "Sin": Case("Sin", torch.sin),
    "Sinh": Case("Sinh", torch.sinh),
    "Softmax": Case("Softmax", lambda x: x.softmax(-1), {"axis": -1}),
    "Softplus": Case("Softplus", F.softplus),
    "Softsign": Case("Softsign", F.softsign),
    "Sqrt": Case("Sqrt", torch.sqrt, only=torch.abs),
    "Swish": Case("Swish", F.silu),
    "Tan": Case("Tan", torch.tan),
    "Tanh": Case("Tanh", torch.tanh),
    "variance": _long("variance", lambda x: x.var(1, correction=0, keepdim=True)),
}


def inputs(case: Case) -> Iterator[tuple[str, torch.Tensor]]:
    """Operands at each scale and around each offset, with a description."""
    base = torch.randn(case.shape, generator=torch.Generator().manual_seed(0))
    only = case.only or (lambda x: x)
    for scale in SCALES:
        yield f"{scale:g}", only(base * scale)
    for offset in OFFSETS:
        yield f"{offset:+g}", only(base + offset)
