"""Graphs with measured sensitivities: what priors learn from, and what they are tried on."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import fx

from baselines.models import build
from torchrlopt.capture.job import jobs_of
from torchrlopt.executors.lowering.fx_values import static_shape, tensor_of
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import lowerable, owner_of, retyped
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.judge.budget import rms
from torchrlopt.precision.sensitivity import Sensitivities, sensitivities
from torchrlopt.precision.state import Times
from torchrlopt.precision.times import work_us
from torchrlopt.torch_private.modes import without_dispatch_modes
from training.precision.mixed_run import values_of

LEARNT = (
    "resnet18", "resnet56", "squeezenet1_1", "inception_v3", "densenet121", "mobilenet_v1", "mobilenet_v3",
    "efficientnet_b0", "shufflenet_v2", "ghostnet", "regnet_x_400mf", "repvgg_a0", "mobileone_s0",
    "convnextv2_atto", "yolo", "vit_s16", "deit_tiny", "dinov2_small", "distilbert", "albert_base",
    "squeezebert", "mobilebert", "bert_tiny_128", "gpt2", "llama_gqa", "electra_small", "moe_loop",
    "ensemble_mlp", "toy_bert", "levit_128s",
)  # fmt: skip
"""Models to learn from."""

HELD_OUT = (
    "swin_t", "pvt_tiny", "segformer_b0", "unet", "diffusion_unet", "nasrnn", "nasnet_a", "poolformer_s12",
    "linear_attention", "temporal_convs",
)  # fmt: skip
"""Models of families that `LEARNT` does not contain: hierarchical transformers, U-Nets, recurrent networks,
cells that a search found, mixers of pools, linear attention, convolutions over time."""

DIRECTIONS = 8
"""Reverse passes for what is learned."""

Part = tuple[str, str, str]
"""What is rounded: kind (result, weight or edge), the operand of an edge, and the call."""

_Made = TypeVar("_Made")


@dataclasses.dataclass(frozen=True)
class Table:
    """A graph as arrays; N nodes, E edges, P parts, F numbers of a node.

    Attributes:
        operators: of each node.
        features: float32 [N, F], from shapes, weights and the place in the graph.
        edges: int64 [2, E], from operand to reader.
        parts: what is rounded.
        places: int64 [P, 2], nodes that compute and read a part; twice the call for results and weights.
        logs: float32 [P], logarithms of the measured squared errors.
    """

    operators: list[str]
    features: np.ndarray[Any, Any]
    edges: np.ndarray[Any, Any]
    parts: list[Part]
    places: np.ndarray[Any, Any]
    logs: np.ndarray[Any, Any]


class Lowered:
    """A model, lowered, that can be run with any calls in bfloat16.

    Args:
        name: of the model.

    Attributes:
        calls: that may be lowered.
        times: of one fixed model of costs: half the arithmetic and half the bytes in bfloat16.
        forward_s: processor time of a call.
    """

    def __init__(self, name: str) -> None:
        with torch.no_grad(), without_dispatch_modes():
            self._job = jobs_of(*build(name))[0]
            self._inputs = self._job.traced.own_inputs()
            self._module = lower_captured(self._job.captured.model, self._job.captured)
            self._static = self._job.captured.static_inputs
            self.calls = lowerable(self._module.graph, self._static)
            self._exact, self.forward_s = timed(lambda: self._module(*self._inputs))
        high = {each.name: work_us(each) for each in self.calls}
        self.times = Times(high, {name: us / 2 for name, us in high.items()})
        self._errors: dict[frozenset[str], float] = {}

    def error(self, lowered: Collection[str]) -> float:
        """Relative error of the outputs with these calls in bfloat16, measured once for each set."""
        key = frozenset(lowered)
        if key not in self._errors:
            with torch.no_grad(), without_dispatch_modes():
                self._errors[key] = rms(retyped(self._module, key)(*self._inputs), self._exact)
        return self._errors[key]

    def measured(self, num_directions: int, seed: int) -> Sensitivities:
        """Measure the sensitivities."""
        with without_dispatch_modes():
            return sensitivities(self._module, self._inputs, self._static, self.calls, num_directions, seed)

    def table(self, found: Sensitivities) -> Table:
        """The graph as arrays, with these sensitivities."""
        fixed = static_nodes(self._module.graph, self._static)
        nodes = [each for each in self._module.graph.nodes if each not in fixed and each.op != "output"]
        at = {each: number for number, each in enumerate(nodes)}
        edges = [(at[each], at[node]) for node in nodes for each in node.all_input_nodes if each in at]
        kept = values_of(self._module, self._inputs, fixed)
        weights = {node: value for node, value in kept.items() if _is_floating(value)}
        depth, height = [0] * len(nodes), [0] * len(nodes)
        for source, reader in edges:
            depth[reader] = max(depth[reader], depth[source] + 1)
        for source, reader in reversed(edges):
            height[source] = max(height[source], height[reader] + 1)
        features = [
            [*_numbers(each, depth[number], height[number], max(depth)), *_of_weights(each, weights)]
            for number, each in enumerate(nodes)
        ]
        by_name = {each.name: at[each] for each in nodes}
        parts: list[Part] = [("result", name, name) for name in found.results]
        parts += [("weight", name, name) for name in found.weights]
        parts += [("edge", operand, name) for operand, name in found.edges]
        value = {"result": found.results, "weight": found.weights}
        sizes = [
            found.edges[source, name] if kind == "edge" else value[kind][name] for kind, source, name in parts
        ]
        positive = [number for number, size in enumerate(sizes) if size > 0]
        return Table(
            [_operator(each) for each in nodes],
            _finite(features),
            np.asarray(edges, np.int64).reshape(-1, 2).T,
            [parts[each] for each in positive],
            np.asarray([[by_name[parts[each][1]], by_name[parts[each][2]]] for each in positive], np.int64),
            np.log(np.asarray([sizes[each] for each in positive], np.float64)).astype(np.float32),
        )


def sensitivities_of(parts: list[Part], logs: np.ndarray[Any, Any]) -> Sensitivities:
    """Sensitivities from the logarithms of parts."""
    sizes = np.exp(np.asarray(logs, np.float64)).tolist()
    pairs = list(zip(parts, sizes, strict=True))
    return Sensitivities(
        {name: size for (kind, _, name), size in pairs if kind == "result"},
        {(source, name): size for (kind, source, name), size in pairs if kind == "edge"},
        {name: size for (kind, _, name), size in pairs if kind == "weight"},
    )


def timed(function: Callable[[], _Made]) -> tuple[_Made, float]:
    """Call a function; returns its result and the processor time in seconds."""
    start = time.process_time()
    made = function()
    return made, time.process_time() - start


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _finite(rows: list[list[float]]) -> np.ndarray[Any, Any]:
    """As an array; statistics of masks, whose entries are infinite, count as none."""
    return np.nan_to_num(np.asarray(rows, np.float32), nan=0.0, posinf=0.0, neginf=0.0)


def _operator(node: fx.Node) -> str:
    return node.op if node.op != "call_function" else str(node.target)


def _numbers(node: fx.Node, depth: int, height: int, deepest: int) -> list[float]:
    sizes = [math.prod(static_shape(each) or ()) for each in (node, *node.all_input_nodes)]
    shape = static_shape(node) or ()
    value = tensor_of(node)
    return [
        math.log1p(sizes[0]),
        math.log1p(shape[-1] if shape else 0),
        math.log1p(shape[1] if len(shape) > 1 else 0),
        math.log1p(sum(sizes[1:])),
        math.log1p(work_us(node)) if node.op == "call_function" else 0.0,
        math.log1p(len(node.users)),
        len(node.all_input_nodes),
        depth / max(deepest, 1),
        math.log1p(depth),
        math.log1p(height),
        float(value is not None and value.dtype is torch.float32),
        float(owner_of(node) is not node),
    ]


def _of_weights(node: fx.Node, weights: Mapping[fx.Node, torch.Tensor]) -> list[float]:
    """Sizes and statistics of the first two weights that a call reads."""
    found: list[float] = []
    for each in [each for each in node.all_input_nodes if each in weights][:2]:
        value = weights[each].double()
        size = float(value.square().mean().sqrt()) + 1e-12
        found += [
            math.log1p(value.numel()),
            math.log(size),
            float(value.mean()) / size,
            math.log1p(float(value.abs().max()) / size),
        ]
    return (found + [0.0] * 8)[:8]
