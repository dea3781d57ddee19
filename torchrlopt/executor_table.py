"""The executors: one row each, with its module and its cost-model parameters.

An executor turns an ONNX model into a callable. `Options`, `executors.registry` and `machine.cost` read the
valid names, the executors and their costs from here. The module of a row defines its executor as `EXECUTOR`
and is imported only when that executor is requested.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class ExecutorRow:
    """One executor.

    Attributes:
        name: as in `Options.executor`.
        module: the module that defines it.
        does: human-readable: what runs the graph and what the option `executor_options` mean to it.
        package: the package that it needs in addition to PyTorch, if any.
        devices: device types that it runs on; empty for all.
        preferred_on: device types on which `executor="default"` tries it before eager PyTorch for any graph.
            The first such executor that pays off is kept, without comparing it with others.
        clearly_below: `executor="default"` tries this executor first, and compares it with eager, if its
            predicted cost of a graph on the CPU is at most this fraction of eager's (both with typical
            constants); 0 for never. Chosen on the suite and the additional models, see "Installed runtimes by
            default" in docs/measuring.md.
        is_slow_with_new_sizes: whether it recompiles for every set of sizes, so that timing one set says
            little about dynamic shapes.
        holds_for_all_weights: whether a check with random weights is valid for all weights: lowering does not
            depend on the values of weights, and other values do not trigger another compilation.
        records_cuda_graphs: whether it can replay a graph as a CUDA graph, see `LoweringOptions.records`.
        needs_settling: whether threads of its runtime spin for a while after a call, so that timing other
            executors must wait for them first.
        predicted_from: executors that build in a fraction of its time, and whose measured times predict its
            own, using the cost models of both. "auto" skips this executor unless it is predicted to be
            clearly the best.
        crossing_us: overhead of one call of its runtime, excluding the operators, in microseconds. It matters
            when the executor runs parts of a graph.
        prices: fields of its `DeviceModel` that differ from eager PyTorch. The times are for the CPU: a
            launch on a GPU costs the same from every executor.
    """

    name: str
    module: str
    does: str
    package: str | None = None
    devices: tuple[str, ...] = ()
    preferred_on: tuple[str, ...] = ()
    clearly_below: float = 0.0
    is_slow_with_new_sizes: bool = False
    holds_for_all_weights: bool = False
    records_cuda_graphs: bool = False
    needs_settling: bool = True
    predicted_from: tuple[str, ...] = ()
    crossing_us: float = 0.0
    prices: Mapping[str, float | bool] = dataclasses.field(default_factory=dict)


_FOLDER = "torchrlopt.executors"

# In the order in which "auto" tries them: eager first, because the others are compared with it, then those
# that build quickly. Launch costs of executors other than eager are assumed, not measured; a profile replaces
# them. None of these executors runs Python between two operators.
ROWS: tuple[ExecutorRow, ...] = (
    ExecutorRow(
        "eager",
        f"{_FOLDER}.eager.executor",
        "PyTorch itself, one ATen call after the other",
        holds_for_all_weights=True,
        records_cuda_graphs=True,
        needs_settling=False,
    ),
    ExecutorRow(
        "onnxruntime",
        f"{_FOLDER}.onnx_runtimes.onnxruntime",
        "a session of ONNX Runtime; options: session configuration entries",
        package="onnxruntime",
        devices=("cpu",),
        clearly_below=0.96,
        crossing_us=35.0,
        # It has no strides, so a view in PyTorch becomes a copy. It fuses an activation into the preceding
        # convolution or matrix product.
        prices={
            "launch_us": 1.0,
            "contraction_launch_us": 3.0,
            "view_us": 0.5,
            "copies_cuts": True,
            "fuses_epilogues": True,
        },
    ),
    ExecutorRow(
        "openvino",
        f"{_FOLDER}.onnx_runtimes.openvino",
        "a model compiled by OpenVINO; options: properties of the CPU device",
        package="openvino",
        devices=("cpu",),
        clearly_below=0.945,
        is_slow_with_new_sizes=True,
        crossing_us=30.0,
        # It has no strides either, but a reshape is free.
        prices={
            "launch_us": 0.5,
            "contraction_launch_us": 2.0,
            "view_us": 0.0,
            "views_are_free": True,
            "copies_cuts": True,
            "fuses_elementwise": True,
            "fuses_epilogues": True,
        },
    ),
    ExecutorRow(
        "tensorrt",
        f"{_FOLDER}.tensorrt.executor",
        "an engine of TensorRT; options: fields of `TensorRtOptions`",
        package="tensorrt",
        devices=("cuda",),
        preferred_on=("cuda",),
        crossing_us=50.0,  # assumed
        prices={
            "launch_us": 0.5,
            "contraction_launch_us": 2.5,
            "view_us": 0.0,
            "views_are_free": True,
            "fuses_elementwise": True,
            "fuses_epilogues": True,
        },
    ),
    ExecutorRow(
        "inductor",
        f"{_FOLDER}.inductor",
        "the compiler of PyTorch; options: settings of `torch._inductor.config`",
        records_cuda_graphs=True,
        predicted_from=("onnxruntime", "openvino"),
        # It compiles chains of elementwise operators into one kernel.
        prices={
            "launch_us": 0.5,
            "contraction_launch_us": 8.0,
            "view_us": 0.0,
            "views_are_free": True,
            "fuses_elementwise": True,
        },
    ),
)

#: The executor that runs everywhere: the baseline of comparisons and the fallback.
BASELINE = ROWS[0].name


def names() -> tuple[str, ...]:
    """The names of all executors."""
    return tuple(row.name for row in ROWS)


def choices() -> tuple[str, ...]:
    """The values of `Options.executor`: the names, and those that choose one."""
    return ("default", *names(), "auto", "by_calls")


def row_of(name: str) -> ExecutorRow | None:
    """The row of that name, or None."""
    return next((row for row in ROWS if row.name == name), None)


def module_of(row: ExecutorRow) -> Any:
    """Import and return the module that defines the executor of a row."""
    return importlib.import_module(row.module)
