"""Losses: negative log-likelihood and cross entropy."""

from __future__ import annotations

import torch
from torch import fx

from torchrlopt.ops.emitter import Emitter, Entry, aten
from torchrlopt.ops.to_aten import OpCall, Result, converts


def _negative_log_likelihood(
    emitter: Emitter, call: OpCall, log_prob: fx.Node, target: fx.Node, weight: fx.Node | None
) -> fx.Node:
    """The loss on log-probabilities [N, C, d...] and classes [N, d...]."""
    target = emitter.cast(target, torch.int64)
    ignored = call.attr("ignore_index")
    dtype = emitter.dtype(log_prob)
    zero = emitter.scalar(0.0, dtype)
    keep: fx.Node | None = None
    if ignored is not None:
        keep = emitter.op(aten.ne.Scalar, target, ignored)
        # An ignored class may be out of range: read class 0 there and drop it.
        target = emitter.op(aten.where.self, keep, target, emitter.scalar(0, torch.int64))
    places = emitter.op(aten.unsqueeze.default, target, 1)
    picked = emitter.op(aten.squeeze.dims, emitter.op(aten.gather.default, log_prob, 1, places), [1])
    loss = emitter.op(aten.neg.default, picked)
    factors: fx.Node | None = None
    if weight is not None:
        factors = emitter.op(aten.index.Tensor, weight, [target])
    elif keep is not None:
        factors = emitter.op(aten.ones_like.default, loss)
    if keep is not None and factors is not None:
        factors = emitter.op(aten.where.self, keep, factors, zero)
        loss = emitter.op(aten.where.self, keep, loss, zero)
    if factors is not None:
        loss = emitter.op(aten.mul.Tensor, loss, factors)
    reduction = call.attr("reduction", "mean")
    if reduction == "none":
        return loss
    if reduction == "sum":
        return emitter.op(aten.sum.default, loss)
    if factors is None:
        return emitter.op(aten.mean.default, loss)
    total = emitter.op(aten.sum.default, loss)
    return emitter.op(aten.div.Tensor, total, emitter.op(aten.sum.default, factors))


@converts("NegativeLogLikelihoodLoss")
def _lower_nll_loss(emitter: Emitter, call: OpCall) -> Entry:
    return _negative_log_likelihood(emitter, call, call.x(0), call.x(1), call.maybe_x(2))


@converts("SoftmaxCrossEntropyLoss")
def _lower_cross_entropy(emitter: Emitter, call: OpCall) -> Result:
    log_prob = emitter.op(aten._log_softmax.default, call.x(0), 1, False)
    loss = _negative_log_likelihood(emitter, call, log_prob, call.x(1), call.maybe_x(2))
    return (loss, log_prob)[: call.num_outputs]
