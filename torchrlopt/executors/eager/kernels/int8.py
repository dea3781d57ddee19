"""Says which products and convolutions can be computed with 8-bit integers: csrc/kernels/int8.h.

Quantising changes results far more than rounding does, so no pass chooses this method by itself. Whoever
knows that the error is affordable asks for it, node by node, before weights are packed (`sites.REQUESTED`);
the packing passes then prefer it to the methods that are equal over the reals. Everything else stays as it
is: activations and residuals are fused, weights are packed in the prologue, again whenever they change.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import convolution, indirect, linear
from torchrlopt.executors.eager.kernels.sites import are_for_or_packed, convolution_at, product_at
from torchrlopt.executors.lowering.fx_values import static_shape

# With fewer outputs, or fewer terms in each, quantising takes longer than is saved. One thread of an AMD EPYC
# (Zen 5) took 0.2 to 0.97 times as long as for bfloat16 with 128 or more of both; with 64, convolutions took
# 0.9 to 1.16 times as long as for bfloat16, and 0.5 to 0.9 times as long as for float32.
_LEAST, _LEAST_OF_FLOAT32 = 128, 64


def supports(node: fx.Node, static: Collection[fx.Node]) -> bool:
    """Whether a node can be computed with 8-bit integers here, and faster than with other numbers.

    Args:
        node: a call in an ATen graph with `meta["val"]`, before weights are packed.
        static: the nodes that are the same in every call.
    """
    product = product_at(node, static, are_for_or_packed)
    if product is not None:
        return linear.takes_int8(product, static) and _is_large(static_shape(product.weight))
    image = convolution_at(node, static, are_for_or_packed)
    return (
        image is not None and convolution.takes_int8(image, static) and _is_large(static_shape(image.weight))
    )


def _is_large(weight: tuple[int, ...] | None) -> bool:
    least = _LEAST_OF_FLOAT32 if indirect.kernels(torch.bfloat16) is None else _LEAST
    return weight is not None and min(weight[0], math.prod(weight[1:])) >= least
