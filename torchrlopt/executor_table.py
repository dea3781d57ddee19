"""The executors: one row each, with the module that makes it and what sets its prices apart.

An executor turns an ONNX model into a callable. `Options` takes its valid names from here,
`executors.registry` the executors and `machine.cost` their prices; the module of a row is imported only when
its executor is asked for, and holds the executor as `EXECUTOR`.
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
        module: where it is made.
        does: what runs the graph, and what `Options.executor_options` are to it, for people.
        package: the package that it needs beside PyTorch; None where it needs none.
        devices: types of the devices that it runs on; empty for all.
        preferred_on: types of the devices on which `executor="default"` tries it before eager PyTorch,
            whatever the graph; the first that pays is kept, and nothing is compared.
        clearly_below: share of eager's price for a graph on the CPU, both typical, up to which
            `executor="default"` tries this executor first, and compares it with eager; 0 for never. Chosen on
            the suite and the models beside it, see "Installed runtimes by default" in docs/measuring.md.
        is_slow_with_new_sizes: whether it prepares itself anew for every set of sizes, so that timing one set
            says little where they vary.
        holds_for_all_weights: whether what was checked with random weights holds for every set of weights:
            lowering looks at no value of a weight, and another set means no other compilation.
        needs_settling: whether threads of its runtime spin for a while after a call, so that timings of
            others rest in between.
        predicted_from: executors that build in a fraction of its time, and whose measured times, with the
            prices of both, predict its own: "auto" leaves it out where that is not clearly the best.
        crossing_us: what one call of its runtime costs beside the operators, in microseconds: of importance
            where it runs parts of a graph.
        prices: how its `DeviceModel` differs from that of eager PyTorch. The times are those of the CPU: a
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
    needs_settling: bool = True
    predicted_from: tuple[str, ...] = ()
    crossing_us: float = 0.0
    prices: Mapping[str, float | bool] = dataclasses.field(default_factory=dict)


_FOLDER = "torchrlopt.executors"

# In the order in which "auto" tries them: eager first, as the others are compared with it, then those that
# build quickly. What a launch takes in an executor other than eager is assumed, not measured; a profile
# replaces it. None of them runs Python between two calls.
ROWS: tuple[ExecutorRow, ...] = (
    ExecutorRow(
        "eager",
        f"{_FOLDER}.eager.executor",
        "PyTorch itself, one ATen call after the other",
        holds_for_all_weights=True,
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
        # It knows no strides, so what is a view in PyTorch is a copy there; it puts an activation into the
        # convolution or product before it.
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
        # It knows no strides either, but a reshape costs it nothing.
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

#: The executor that runs everywhere: what the others are compared with, and what is left where none can.
BASELINE = ROWS[0].name


def names() -> tuple[str, ...]:
    """The names of all executors."""
    return tuple(row.name for row in ROWS)


def choices() -> tuple[str, ...]:
    """The values of `Options.executor`: the names, and two that leave the choice to us."""
    return ("default", *names(), "auto")


def row_of(name: str) -> ExecutorRow | None:
    """The row of that name; None where there is none."""
    return next((row for row in ROWS if row.name == name), None)


def module_of(row: ExecutorRow) -> Any:
    """The module that makes the executor of a row, imported now."""
    return importlib.import_module(row.module)
