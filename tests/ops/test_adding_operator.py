"""What an elementwise operator needs, and that it needs no more: docs/adding.md, "an operator".

Every elementwise operator of one operand in `csrc/core/ops.def` is followed through the stages. A new one
needs a line in `CALLS` here; any other failure of these tests names a part that is still missing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.capture.capture_calls import capture_function
from tests.core.core_calls import evaluate
from tests.onnx.onnx_text import model_of
from torchrlopt import _C
from torchrlopt.capture.whole import whole_operators
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.onnx import opsets
from torchrlopt.onnx.attributes import make_attribute
from torchrlopt.onnx.forms.from_onnx import typed_form
from torchrlopt.onnx.forms.to_onnx import onnx_form
from torchrlopt.onnx.reader import read
from torchrlopt.ops.to_aten import CONVERTERS
from torchrlopt.substitutions.proof.operators import UNARY

ROOT = Path(__file__).resolve().parents[2]

REAL = torch.tensor([-3.0, -1.25, -0.75, -0.5, -0.125, 0.25, 0.5, 0.875, 1.5, 4.0])
UNIT, ABOVE = REAL / 5, REAL.abs() + 1
INTS = torch.tensor([-3, 0, 2, 7])

#: The call of PyTorch that is the operator, the attributes that it gives it, and where it is defined.
CALLS: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, float | str], Tensor]] = {
    "Abs": (torch.abs, {}, REAL),
    "Acos": (torch.acos, {}, UNIT),
    "Acosh": (torch.acosh, {}, ABOVE),
    "Asin": (torch.asin, {}, UNIT),
    "Asinh": (torch.asinh, {}, REAL),
    "Atan": (torch.atan, {}, REAL),
    "Atanh": (torch.atanh, {}, UNIT),
    "BitwiseNot": (torch.bitwise_not, {}, INTS),
    "Ceil": (torch.ceil, {}, REAL),
    "Celu": (lambda x: F.celu(x, 0.75), {"alpha": 0.75}, REAL),
    "Clip": (lambda x: x.clamp(-0.5, 1.5), {"min": -0.5, "max": 1.5}, REAL),
    "Cos": (torch.cos, {}, REAL),
    "Cosh": (torch.cosh, {}, REAL),
    "Elu": (lambda x: F.elu(x, 0.75), {"alpha": 0.75}, REAL),
    "Erf": (torch.erf, {}, REAL),
    "Exp": (torch.exp, {}, REAL),
    "Floor": (torch.floor, {}, REAL),
    "Gelu": (lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}, REAL),
    "HardSigmoid": (F.hardsigmoid, {"alpha": 1 / 6, "beta": 0.5}, REAL),
    "HardSwish": (F.hardswish, {}, REAL),
    "IsInf": (torch.isinf, {}, REAL / 0.0),
    "IsNaN": (torch.isnan, {}, torch.tensor([0.0, float("nan")])),
    "LeakyRelu": (lambda x: F.leaky_relu(x, 0.25), {"alpha": 0.25}, REAL),
    "Log": (torch.log, {}, ABOVE),
    "Mish": (F.mish, {}, REAL),
    "Neg": (torch.neg, {}, REAL),
    "Not": (torch.logical_not, {}, REAL > 0),
    "Reciprocal": (torch.reciprocal, {}, REAL),
    "Relu": (F.relu, {}, REAL),
    "Round": (torch.round, {}, REAL),
    "Selu": (F.selu, {"alpha": 1.6732631921768188, "gamma": 1.0507010221481323}, REAL),
    "Shrink": (lambda x: F.softshrink(x, 0.5), {"lambd": 0.5, "bias": 0.5}, REAL),
    "Sigmoid": (torch.sigmoid, {}, REAL),
    "Sign": (torch.sign, {}, REAL),
    "Sin": (torch.sin, {}, REAL),
    "Sinh": (torch.sinh, {}, REAL),
    "Softplus": (F.softplus, {}, REAL),
    "Softsign": (F.softsign, {}, REAL),
    "Sqrt": (torch.sqrt, {}, ABOVE),
    "Swish": (F.silu, {}, REAL),
    "Tan": (torch.tan, {}, REAL),
    "Tanh": (torch.tanh, {}, REAL),
    "ThresholdedRelu": (lambda x: F.threshold(x, 0.3, 0.0), {"alpha": 0.3}, REAL),
}
#: The core meets them in ONNX files; of PyTorch's calls the library makes them (recognise.txt).
NOT_CAPTURED = {"Softsign", "Swish"}
#: One operand, but the result is not a function of one element of it.
NOT_OF_ONE_ELEMENT = {"Cast", "CumSum", "Trilu"}

TABLE = {str(op["name"]): op for op in _C.ops()}
OPERATORS = sorted(
    name
    for name, op in TABLE.items()
    if op["cost_class"] in ("Elementwise", "Transcendental")
    and op["min_inputs"] == op["max_inputs"] == 1
    and name not in NOT_OF_ONE_ELEMENT
)


def _node(name: str, dtype: str) -> onnx_ir.Node:
    """The operator with the attributes of its call, as the writer makes it."""
    attrs = {**TABLE[name]["attrs"], **CALLS[name][1]}
    form = onnx_form(name, attrs, [dtype], 1, 1)
    x = onnx_ir.Value(name="x")
    constants = [
        onnx_ir.Value(name=f"c{slot}", const_value=onnx_ir.tensor(array))
        for slot, array in sorted(form.constants.items())
    ]
    attributes = [make_attribute(key, value) for key, value in form.attributes.items()]
    return onnx_ir.Node(form.domain, form.op_type, [x, *constants], attributes)


def test_every_operator_has_its_call_here() -> None:
    assert sorted(CALLS) == OPERATORS


@pytest.mark.parametrize("name", OPERATORS)
def test_capture_knows_the_call(name: str) -> None:
    call, attributes, x = CALLS[name]
    with whole_operators():
        record = capture_function(call, x)
    if name in NOT_CAPTURED:
        assert name not in record.op_types()
        return
    assert record.op_types() == {name: 1}
    program = read(record.captured.model)
    ids = [id_ for id_ in program.graph.topological_order() if program.graph.node(id_)["op"] == name]
    (node,) = [program.graph.node(id_) for id_ in ids]
    assert {key: node["attrs"][key] for key in attributes} == pytest.approx(attributes)


@pytest.mark.parametrize("name", OPERATORS)
def test_written_and_read_again_it_is_the_same(name: str) -> None:
    node = _node(name, "f32")
    schema = onnx.defs.get_schema(name, opsets.FIRST_WITH.get(name, opsets.NATIVE))
    assert set(node.attributes) <= set(schema.attributes)

    def content(value: onnx_ir.Value) -> object:
        return None if value.const_value is None else value.const_value.numpy()

    form = typed_form(node, content)  # type: ignore[arg-type]  # arrays, as it wants them
    assert form is not None
    assert form.op == name
    given = {**TABLE[name]["attrs"], **CALLS[name][1]}
    assert {**TABLE[name]["attrs"], **form.attrs} == pytest.approx(given)


@pytest.mark.parametrize("name", OPERATORS)
def test_reference_and_converter_compute_what_pytorch_does(name: str) -> None:
    call, attributes, x = CALLS[name]
    wanted = call(x)
    is_real = x.is_floating_point()
    array = (x.double() if is_real else x).numpy()
    (found,) = evaluate(name, array, **attributes)
    torch.testing.assert_close(torch.from_numpy(found).to(wanted.dtype), wanted, equal_nan=True)
    assert ("", name) in CONVERTERS
    types = {torch.float32: "float", torch.int64: "int64", torch.bool: "bool"}
    before, after = (f"{types[each.dtype]}[{len(x)}]" for each in (x, wanted))
    model = model_of(
        f"g ({before} x) => ({after} y) {{ y = Identity (x) }}",
        opset=opsets.FIRST_WITH.get(name, opsets.NATIVE),
    )
    _replace_identity(model, _node(name, "f32"))
    torch.testing.assert_close(lower_model(model)(x)[0], wanted, equal_nan=True)


def _replace_identity(model: onnx_ir.Model, node: onnx_ir.Node) -> None:
    (old,) = list(model.graph)
    for value in node.inputs[1:]:
        assert value is not None
        model.graph.register_initializer(value)
    node.replace_input_with(0, old.inputs[0])
    node.outputs[0].name, node.name = "made", "one"
    node.outputs[0].type, node.outputs[0].shape = old.outputs[0].type, old.outputs[0].shape
    model.graph.insert_before(old, node)
    old.replace_input_with(0, node.outputs[0])


def test_a_proof_takes_it_for_a_function_that_nothing_is_known_of() -> None:
    assert set(OPERATORS) - {"BitwiseNot", "IsInf", "IsNaN", "Not"} == UNARY
