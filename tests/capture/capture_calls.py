"""Helpers that capture functions and modules, and run the captured graphs in ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir
import torch
from functorch.compile import aot_function, make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from torchrlopt.capture.captured import Captured
from torchrlopt.capture.graph_to_onnx import capture


@dataclasses.dataclass
class Capture:
    """One captured graph with what it was last called with and returned.

    Attributes:
        captured: the captured graph.
        inputs: the inputs of `captured.aten`.
        outputs: what `captured.aten` returned.
    """

    captured: Captured
    inputs: list[Any] = dataclasses.field(default_factory=list)
    outputs: tuple[Any, ...] = ()

    def op_types(self) -> Counter[str]:
        """Number of nodes by operator, Constants left out."""
        return Counter(node.op_type for node in self.captured.model.graph if node.op_type != "Constant")

    def node(self, op_type: str) -> onnx_ir.Node:
        """The only node of an operator."""
        (found,) = [node for node in self.captured.model.graph if node.op_type == op_type]
        return found


def _recording(captures: list[Capture], static: Callable[[], Any]) -> Any:
    def compile_inference(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        record = Capture(capture(gm, static()))
        captures.append(record)

        def run(*inputs: Any) -> Any:
            record.inputs = list(inputs)
            record.outputs = tuple(gm(*inputs))
            return record.outputs

        return make_boxed_func(run)

    return compile_inference


def capture_function(function: Callable[..., Any], *inputs: Any) -> Capture:
    """Captures a function of tensors; fast, as Dynamo has no part in it."""
    captures: list[Capture] = []
    compiler = _recording(captures, list)
    # AOTAutograd asks for a function with as many parameters as there are inputs.
    with torch.no_grad():
        aot_function(lambda *args: function(*args), fw_compiler=compiler, inference_compiler=compiler)(
            *inputs
        )
    (record,) = captures
    return record


def capture_module(module: torch.nn.Module, *inputs: Any, dynamic: bool | None = None) -> Capture:
    """Captures a module through torch.compile, and runs it once."""
    captures: list[Capture] = []

    def static() -> Any:
        return TracingContext.get().fw_metadata.static_input_indices

    compiler = _recording(captures, static)
    backend = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(module, backend=backend, dynamic=dynamic)(*inputs)
    (record,) = captures
    return record


def tensor_outputs(record: Capture) -> list[torch.Tensor]:
    """What the captured model has to return: the distinct tensors of the result that are no placeholders."""
    (output,) = [node for node in record.captured.aten.graph.nodes if node.op == "output"]
    found: dict[torch.fx.Node, torch.Tensor] = {}
    for node, value in zip(output.args[0], record.outputs, strict=True):
        if isinstance(node, torch.fx.Node) and node.op != "placeholder" and isinstance(value, torch.Tensor):
            found[node] = value
    return list(found.values())


def run_in_onnxruntime(record: Capture) -> list[np.ndarray[Any, Any]]:
    """Runs the captured model, as it is, on the recorded inputs."""
    import onnxruntime

    captured = record.captured
    placeholders = [node.name for node in captured.aten.graph.nodes if node.op == "placeholder"]
    given = dict(zip(placeholders, record.inputs, strict=True)) | captured.constants
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = onnx_ir.to_proto(captured.model)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    feeds: dict[str, Any] = {}
    for wanted in session.get_inputs():
        value = given[wanted.name]
        feeds[wanted.name] = (
            value.detach().contiguous().numpy() if isinstance(value, torch.Tensor) else np.array(value)
        )
    return list(session.run(None, feeds))


def assert_captured_right(record: Capture, tolerance: float = 1e-4) -> None:
    """ONNX Runtime agrees with PyTorch on every output: dtype, shape and numbers."""
    found, wanted = run_in_onnxruntime(record), tensor_outputs(record)
    assert len(found) == len(wanted)
    for result, expected in zip(found, wanted, strict=True):
        reference = expected.detach().numpy()
        assert (result.dtype, result.shape) == (reference.dtype, reference.shape)
        np.testing.assert_allclose(result, reference, rtol=tolerance, atol=tolerance)
