"""Small models for non-finite numbers: single operators, and graphs that the library surely rewrites."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """A function of tensors and weights.

    Attributes:
        run: takes the inputs, then the weights.
        inputs: their shapes.
        weights: their shapes; variances and the like are made positive by the model itself.
    """

    run: Callable[..., Tensor | tuple[Tensor, ...]]
    inputs: tuple[Shape, ...]
    weights: tuple[Shape, ...] = ()


class Weighted(nn.Module):
    """A model with its weights as parameters."""

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterList(torch.randn(shape, generator=draw) for shape in model.weights)
        self.run = model.run

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.run(*inputs, *self.weights)


_ROW, _IMAGE = (3, 17), (2, 4, 9, 9)

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs, "acos": torch.acos, "asin": torch.asin, "atan": torch.atan, "ceil": torch.ceil,
    "celu": F.celu, "clamp": lambda x: x.clamp(-0.5, 0.5), "clamp_max": lambda x: x.clamp(max=0.5),
    "clamp_min": lambda x: x.clamp(min=0.5), "cos": torch.cos, "cosh": torch.cosh,
    "cumsum": lambda x: x.cumsum(-1), "elu": F.elu, "erf": torch.erf, "exp": torch.exp,
    "expm1": torch.expm1, "floor": torch.floor, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardtanh": F.hardtanh,
    "isfinite": torch.isfinite, "isinf": torch.isinf, "isnan": torch.isnan, "leaky_relu": F.leaky_relu,
    "log": torch.log, "log1p": torch.log1p, "log2": torch.log2, "logsigmoid": F.logsigmoid,
    "logit": torch.logit, "mish": F.mish, "nan_to_num": torch.nan_to_num, "neg": torch.neg,
    "reciprocal": torch.reciprocal, "relu": F.relu, "relu6": F.relu6, "round": torch.round,
    "rsqrt": torch.rsqrt, "selu": F.selu, "sigmoid": torch.sigmoid, "sign": torch.sign, "silu": F.silu,
    "sin": torch.sin, "sinh": torch.sinh, "softplus": F.softplus, "softshrink": F.softshrink,
    "softsign": F.softsign, "sqrt": torch.sqrt, "square": torch.square, "tan": torch.tan,
    "tanh": torch.tanh, "threshold": lambda x: F.threshold(x, 0.1, 20.0), "tril": torch.tril,
    "trunc": torch.trunc, "cast": lambda x: x.double().float(), "half": lambda x: x.half().float(),
    "bool": lambda x: x.bool(), "pow2": lambda x: x**2, "pow3": lambda x: x**3, "pow_half": lambda x: x**0.5,
    "pow_minus": lambda x: x**-1.0, "mul_zero": lambda x: x * 0.0, "sub_self": lambda x: x - x,
    "div_self": lambda x: x / x, "add_zero": lambda x: x + 0.0, "minus_zero": lambda x: 0.0 - x,
    "relu_twice": lambda x: F.relu(F.relu(x)), "neg_twice": lambda x: x.neg().neg(),
    "relu_of_neg": lambda x: F.relu(-x), "relu_as_max": lambda x: torch.maximum(x, torch.zeros(())),
    "clamp_of_clamp": lambda x: x.clamp(-1, 1).clamp(-0.5, 2),
    "swish_by_hand": lambda x: x * torch.sigmoid(x), "abs_of_relu": lambda x: F.relu(x).abs(),
    "gelu_by_hand": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "hardswish_by_hand": lambda x: x * F.relu6(x + 3) / 6,
    "exp_of_sum": lambda x: torch.exp(x) * torch.exp(-x),
    "sqrt_of_square": lambda x: torch.sqrt(x * x), "scaled_twice": lambda x: x * 1e-30 * 1e30,
    "divided_twice": lambda x: x / 3.0 / 5.0,
}  # fmt: skip

_ROWWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda x: x.amax(-1), "amin": lambda x: x.amin(-1), "any": lambda x: x.any(-1),
    "argmax": lambda x: x.argmax(-1), "argmin": lambda x: x.argmin(-1),
    "log_softmax": lambda x: F.log_softmax(x, -1), "logsumexp": lambda x: x.logsumexp(-1),
    "max": lambda x: x.max(-1).values, "mean": lambda x: x.mean(-1), "min": lambda x: x.min(-1).values,
    "norm": lambda x: x.norm(dim=-1), "norm_1": lambda x: x.norm(p=1, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1), "prod": lambda x: x.prod(-1),
    "softmax": lambda x: F.softmax(x, -1), "softmin": lambda x: F.softmin(x, -1),
    "std": lambda x: x.std(-1), "sum": lambda x: x.sum(-1), "var": lambda x: x.var(-1),
    "mean_twice": lambda x: x.mean(-1).mean(-1), "sum_of_scaled": lambda x: (x * 2).sum(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "softmax_by_hand": lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True),
    "log_of_softmax": lambda x: torch.log(F.softmax(x, -1)),
    "softmax_shifted": lambda x: F.softmax(x - x.amax(-1, keepdim=True), -1),
    "cat": lambda x: torch.cat([F.relu(x), torch.tanh(x)], -1), "pad": lambda x: F.pad(x, (1, 2)),
    "slice": lambda x: x[:, 3:] + x[:, :-3], "roll": lambda x: x.roll(2, -1),
    "where": lambda x: torch.where(x > 0, x, -x), "masked": lambda x: x.masked_fill(x > 0.5, 0.0),
    "sort": lambda x: x.sort(-1).values, "topk": lambda x: x.topk(3, -1).values,
}  # fmt: skip

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "atan2": torch.atan2, "div": torch.div, "eq": torch.eq, "fmax": torch.fmax,
    "fmin": torch.fmin, "fmod": torch.fmod, "ge": torch.ge, "gt": torch.gt, "le": torch.le, "lt": torch.lt,
    "maximum": torch.maximum, "minimum": torch.minimum, "mul": torch.mul, "ne": torch.ne, "pow": torch.pow,
    "remainder": torch.remainder, "sub": torch.sub, "copysign": torch.copysign,
    "sum_of_products": lambda x, y: x * y + x * x, "common_factor": lambda x, y: x * y - x * y * 2,
    "there_and_back": lambda x, y: x + y - y, "through_division": lambda x, y: x * y / y,
    "max_of_sums": lambda x, y: torch.maximum(x + 1, y + 1),
    "min_of_negs": lambda x, y: torch.minimum(-x, -y),
    "relu_of_sum": lambda x, y: F.relu(x + y), "where_other": lambda x, y: torch.where(x > y, x, y),
}  # fmt: skip

_POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1), "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool_unpadded": lambda x: F.avg_pool2d(x, 2, count_include_pad=False),
    "max_pool_ceil": lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
    "global_average": lambda x: F.adaptive_avg_pool2d(x, 1),
    "global_max": lambda x: F.adaptive_max_pool2d(x, 1),
    "nearest": lambda x: F.interpolate(x, scale_factor=2), "shuffle": lambda x: F.pixel_shuffle(x, 2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "instance_norm": F.instance_norm, "group_norm": lambda x: F.group_norm(x, 2),
    "relu_of_max_pool": lambda x: F.relu(F.max_pool2d(x, 2)),
    "max_pool_of_relu": lambda x: F.max_pool2d(F.relu(x), 2),
    "local_response": lambda x: F.local_response_norm(x, 3), "reflect": lambda x: F.pad(x, (1, 1, 2, 1),
    "reflect"),
}  # fmt: skip


def _norm(x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return F.batch_norm(x, m, v.abs() + 0.5, w, b)


def _attention(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x @ q, x @ k, x @ v)


_KERNEL, _POINT, _CHANNELS = (4, 4, 3, 3), (4, 4, 1, 1), (4,)
_SQUARE, _WIDE = (17, 17), (17, 24)

_WEIGHTED: dict[str, Model] = {
    "linear": Model(F.linear, (_ROW,), (_SQUARE, (17,))),
    "linear_relu": Model(lambda x, w, b: F.relu(F.linear(x, w, b)), (_ROW,), (_SQUARE, (17,))),
    "linear_gelu": Model(lambda x, w, b: F.gelu(F.linear(x, w, b)), (_ROW,), (_SQUARE, (17,))),
    "linear_clamp": Model(lambda x, w: F.linear(x, w).clamp(-1, 1), (_ROW,), (_SQUARE,)),
    "linear_scaled": Model(lambda x, w: F.linear(x, w) * 0.5, (_ROW,), (_SQUARE,)),
    "linear_residual": Model(lambda x, w, b: F.linear(x, w, b) + x, (_ROW,), (_SQUARE, (17,))),
    "two_linears": Model(lambda x, v, w: F.linear(F.linear(x, v), w), (_ROW,), (_SQUARE, _SQUARE)),
    "low_rank": Model(
        lambda x, w, a, b: F.linear(x, w) + F.linear(F.linear(x, a), b), (_ROW,), (_SQUARE, (2, 17), (17, 2))
    ),
    "shared_input": Model(lambda x, v, w: (F.relu(x @ v), torch.tanh(x @ w)), (_ROW,), (_WIDE, _SQUARE)),
    "shared_weight": Model(lambda x, y, w: x @ w + y @ w, (_ROW, _ROW), (_SQUARE,)),
    "attention": Model(_attention, ((2, 5, 17),), (_SQUARE, _SQUARE, _SQUARE)),
    "affine_layer_norm": Model(lambda x, w, b: F.layer_norm(x, (17,), w, b), (_ROW,), ((17,), (17,))),
    "prelu": Model(F.prelu, (_IMAGE,), (_CHANNELS,)),
    "conv": Model(lambda x, w, b: F.conv2d(x, w, b, padding=1), (_IMAGE,), (_KERNEL, _CHANNELS)),
    "conv_relu": Model(lambda x, w, b: F.relu(F.conv2d(x, w, b)), (_IMAGE,), (_KERNEL, _CHANNELS)),
    "conv_relu6": Model(lambda x, w: F.relu6(F.conv2d(x, w, padding=1)), (_IMAGE,), (_KERNEL,)),
    "conv_strided": Model(
        lambda x, w: F.conv2d(x, w, stride=2, dilation=2, padding=2), (_IMAGE,), (_KERNEL,)
    ),
    "conv_grouped": Model(lambda x, w: F.conv2d(x, w, groups=2), (_IMAGE,), ((4, 2, 3, 3),)),
    "conv_transposed": Model(lambda x, w: F.conv_transpose2d(x, w, stride=2), (_IMAGE,), (_KERNEL,)),
    "conv_max_pool": Model(lambda x, w: F.max_pool2d(F.conv2d(x, w), 2), (_IMAGE,), (_KERNEL,)),
    "pad_conv": Model(lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1)), w), (_IMAGE,), (_KERNEL,)),
    "norm": Model(_norm, (_IMAGE,), (_CHANNELS,) * 4),
    "conv_norm_relu": Model(
        lambda x, w, *n: F.relu(_norm(F.conv2d(x, w, padding=1), *n)), (_IMAGE,), (_KERNEL, *(_CHANNELS,) * 4)
    ),
    "conv_residual": Model(lambda x, w: F.relu(F.conv2d(x, w, padding=1) + x), (_IMAGE,), (_KERNEL,)),
    "parallel_convs": Model(
        lambda x, v, w: F.conv2d(x, v, padding=1) + F.conv2d(x, w), (_IMAGE,), (_KERNEL, _POINT)
    ),
    "rep_vgg": Model(
        lambda x, v, w, *n: F.relu(_norm(F.conv2d(x, v, padding=1), *n) + F.conv2d(x, w) + x),
        (_IMAGE,),
        (_KERNEL, _POINT, *(_CHANNELS,) * 4),
    ),
    "shared_image": Model(
        lambda x, v, w: torch.cat([F.conv2d(x, v), F.conv2d(x, w)], 1), (_IMAGE,), (_KERNEL, _KERNEL)
    ),
    "average_and_conv": Model(
        lambda x, w: F.conv2d(x, w, padding=1) + F.avg_pool2d(x, 3, 1, 1), (_IMAGE,), (_KERNEL,)
    ),
    "embedding": Model(lambda x, w: F.embedding(x.isnan().long(), w) * 2, (_ROW,), ((2, 17),)),
    "log_softmax_of_linear": Model(lambda x, w: F.log_softmax(x @ w, -1), (_ROW,), (_SQUARE,)),
}

MODELS: dict[str, Model] = {
    **{name: Model(run, (_ROW,)) for name, run in {**_UNARY, **_ROWWISE}.items()},
    **{name: Model(run, (_ROW, _ROW)) for name, run in _BINARY.items()},
    **{name: Model(run, (_IMAGE,)) for name, run in _POOLS.items()},
    **_WEIGHTED,
}
