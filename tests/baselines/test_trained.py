"""Models with trained weights: their tasks are what they say, and what is missing is named."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

pytest.importorskip("transformers", reason="the small transformers come from the transformers package")

from baselines.trained import table
from baselines.trained.onnx_files import OnnxModule
from baselines.trained.table import NAMES, missing, trained
from baselines.trained.task import Trained, accuracy

#: What float32 achieves at least on what was held out; the unit says what it is.
AT_LEAST = {
    "accuracy": 0.85,
    "similarity": 0.9,
    "overlap": 1.0,
    "cosine": 0.999999,
}
AT_MOST = {"perplexity": 8.0, "error in cents": 10.0, "difference": 1e-6}


def test_accuracy_is_over_all_rows_of_all_calls() -> None:
    figure = accuracy(np.array([1, 0, 1]))
    assert figure([[np.array([[0.0, 1.0], [0.0, 1.0]])], [np.array([[0.0, 1.0]])]]) == pytest.approx(2 / 3)


def test_half_of_the_calls_is_held_out() -> None:
    calls = [(torch.tensor(at),) for at in range(6)]
    made = Trained.halved(torch.nn.ReLU(), calls, figure=len, unit="calls")
    assert [int(x) for (x,) in (made.inputs, *made.others)] == [0, 1, 2]
    assert [int(x) for (x,) in made.held_out] == [3, 4, 5]
    assert not made.model.training


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    row = table._Row("sound:silero_vad", "no_such_package", "no-such-package")
    monkeypatch.setitem(table._ROWS, "silero_vad", row)
    assert missing("silero_vad") == "pip install --no-deps no-such-package"
    with pytest.raises(ValueError, match="silero_vad needs a package: pip install --no-deps no-such-package"):
        trained("silero_vad")
    with pytest.raises(ValueError, match="no trained model named 'silero'; choose one of: digits_vit"):
        trained("silero")


def test_an_onnx_model_is_a_module_that_computes_in_float64() -> None:
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 3, 1, 1], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"]),
        helper.make_node("Cast", ["i"], ["z"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["y", "z"], ["out"]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 4, 4])
    i = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [1])
    out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, ["n", 2, 4, 4])
    graph = helper.make_graph(nodes, "graph", [x, i], [out], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model = OnnxModule(proto, (5, 3, 4, 4), (1,))
    inputs = (torch.rand(5, 3, 4, 4), torch.tensor([3]))
    weights = torch.tensor(weight.float_data).reshape(2, 3).double()
    exact = torch.einsum("nchw,dc->ndhw", inputs[0].double(), weights)
    torch.testing.assert_close(model(*inputs).double(), 3 * exact)
    with torch.autocast("cpu", torch.bfloat16):
        assert (model(*inputs) - 3 * exact).abs().max() > 1e-4  # the convolution is in bfloat16
    result = model.double()(inputs[0].double(), inputs[1])
    torch.testing.assert_close(result, 3 * exact, rtol=0, atol=1e-14)


@pytest.mark.nightly  # trains some for minutes, in the first run of a user
@pytest.mark.parametrize("name", NAMES)
def test_a_model_does_its_task(name: str) -> None:
    if todo := missing(name):
        pytest.skip(todo)
    task = trained(name)
    shapes = [[x.shape for x in call] for call in (task.inputs, *task.others, *task.held_out)]
    assert all(each == shapes[0] for each in shapes)
    assert len(task.others) == 15
    with torch.no_grad():
        answers = [[task.model(*call).numpy()] for call in task.held_out]
        noise = [[np.random.default_rng(0).random(call[0].shape, np.float32)] for call in answers]
        assert (
            task.model.double()(*(x.double() if x.is_floating_point() else x for x in task.inputs))
            .isfinite()
            .all()
        )
    good, bad = task.figure(answers), task.figure(noise)
    if task.unit in AT_LEAST:
        assert bad < AT_LEAST[task.unit] <= good + 1e-9
    else:
        assert good <= AT_MOST[task.unit] < bad
