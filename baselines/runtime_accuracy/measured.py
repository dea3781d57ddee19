"""Runs single operators in a runtime, in the original form and in the form that the executor uses."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir
import torch
from onnx import TensorProto, helper

from baselines.runtime_accuracy.cases import CASES, Case, inputs
from baselines.runtime_accuracy.limits import Limit
from torchrlopt import executor_table
from torchrlopt.executors.onnx_runtimes.conditioning import make_stable, refused


def measured(runtime: str, name: str) -> list[tuple[str, ...]]:
    """A table row for each scale and offset."""
    case = CASES[name]
    model = model_of(case)
    alone = opened(runtime, model)
    is_refused = bool(refused(model, runtime))
    make_stable(model, runtime)
    as_run = opened(runtime, model)
    rows = []
    for label, x in inputs(case):
        limit = Limit(case.function, x)
        before, after = limit.excess(alone(x)), limit.excess(as_run(x))
        if before.fits and after.fits:
            verdict = "as PyTorch"
        elif is_refused:
            verdict = "refused"
        else:
            verdict = "mended" if after.fits else "worse"
        figures = (limit.pytorch, before.error, after.error)
        rows.append((runtime, name, label, *(f"{each:.1e}" for each in figures), verdict))
    return rows


def model_of(case: Case) -> onnx_ir.Model:
    """A model that consists of the operator only."""
    shape = list(case.shape)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    if case.operator == "variance":
        nodes = [
            helper.make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=1),
            helper.make_node("Sub", ["x", "m"], ["c"]),
            helper.make_node("Mul", ["c", "c"], ["s"]),
            helper.make_node("ReduceMean", ["s", "axes"], ["y"], keepdims=1),
        ]
        names = ["axes"]
    elif case.operator == "Swish":  # capture writes it as a product with the sigmoid
        nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
        names = []
    else:
        names = [f"c{at}" for at in range(len(case.constants))]
        nodes = [helper.make_node(case.operator, ["x", *names], ["y"], **case.attributes)]
    held = [
        helper.make_tensor(
            name,
            TensorProto.INT64 if each.dtype == torch.int64 else TensorProto.FLOAT,
            each.shape,
            each.reshape(-1).tolist(),
        )
        for name, each in zip(names, case.constants, strict=True)
    ]
    result = case.function(torch.zeros(shape))
    returned = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(result.shape))
    graph = helper.make_graph(nodes, "operator", [given], [returned], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
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
