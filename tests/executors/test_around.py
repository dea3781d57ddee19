"""Models around operators without a converter: their inputs, and the use of their outputs."""

from __future__ import annotations

import onnx_ir
import pytest
import torch

from tests.onnx.onnx_text import model_of, proto_of
from torchrlopt.api.cli.models import _inputs_of
from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.around import Around, lower_alone, lower_pair
from torchrlopt.onnx.files import prepared

MY = ', "my" : 1'
MIDDLE = """g (float[2,4] x) => (float[2,4] z) <float[2,4] b> {
  a = Relu(x)
  b = my.Foo(a)
  z = Neg(b)
}"""


def around_of(body: str, imports: str = "") -> Around:
    """A model as it is lowered beside itself."""
    first, second = lower_pair(model_of(body, imports=imports), model_of(body, imports=imports))
    assert (first.cut, first.passed) == (second.cut, second.passed)
    return first


def test_inputs_become_results_and_outputs_arguments() -> None:
    around = around_of(MIDDLE, MY)
    assert around.cut == ("b",)
    x, b = torch.randn(2, 4), torch.randn(2, 4)
    z, a = around.module(x, b)
    torch.testing.assert_close(z, -b)
    torch.testing.assert_close(a, x.relu())
    assert around.passed == ()


def test_all_operators_without_a_converter_are_found_at_once() -> None:
    body = """g (float[2,4] x) => (float[2,4] z) <float[2,4] b, float[2,4] d> {
      b = my.Foo(x)  c = Relu(b)  d = my.Bar(c)  z = Neg(d)  unused = my.Dead(x)
    }"""
    assert around_of(body, MY).cut == ("b", "d")


def test_a_model_with_converters_for_all_is_not_cut() -> None:
    around = around_of("g (float[2,4] x) => (float[2,4] z) { z = Neg(x) }")
    assert around.cut == ()
    x = torch.randn(2, 4)
    torch.testing.assert_close(around.module(x)[0], -x)


def test_what_is_no_tensor_goes_by_its_origin() -> None:
    """A sequence has no counterpart in torch: all there is to say is that both models pass on the same."""
    body = """g (float[2,4] x) => (float[2,4] z) <float[2,4] p> {
      r = Relu(x)
      s = SequenceConstruct(r, x)
      i = Constant <value_int = 0> ()
      p = SequenceAt(s, i)
      z = Neg(p)
    }"""
    around = around_of(body)
    assert around.cut == ("s", "p")
    assert around.passed == (("p, operand 0", "s", 0),)


def test_what_subgraphs_read_is_compared() -> None:
    body = """g (float[2,4] x, bool c) => (float[2,4] z) {
      a = Relu(x)
      z = If(c) <
        then_branch = one () => (float[2,4] p) { p = Neg(a) },
        else_branch = two () => (float[2,4] q) { q = Add(a, x) }
      >
    }"""
    around = around_of(body)
    x, c, z = torch.randn(2, 4), torch.tensor(True), torch.randn(2, 4)
    results = around.module(x, c, z)
    expected = [z, c, x.relu(), x.relu(), x]
    assert len(results) == len(expected)
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value)


def test_weights_of_types_that_torch_has_not() -> None:
    body = """g (float[2] x) => (float[2] z) <string[2] names = {"a", "b"}, float[2] b> {
      b = my.Lookup(x, names)
      z = Neg(b)
    }"""
    around = around_of(body, MY)
    assert around.passed == (("b, operand 1", "names", 0),)


def test_inputs_of_types_that_torch_has_not_are_left_out() -> None:
    body = """g (float[2] x, string[2] names) => (float[2] z) <float[2] b> {
      a = Relu(x)
      b = my.Lookup(a, names)
      z = Neg(b)
    }"""
    around = around_of(body, MY)
    assert around.passed == (("b, operand 1", "names", 0),)
    assert [str(value.name) for value, _ in around.arguments] == ["x", "b"]


def test_a_type_that_one_model_declares_serves_both() -> None:
    """The written file has the types that were inferred when it was planned; the original has none."""
    untyped = MIDDLE.replace("<float[2,4] b>", "")
    first, second = lower_pair(model_of(untyped, imports=MY), model_of(MIDDLE, imports=MY))
    for around in (first, second):
        assert around.cut == ("b",)
        assert [tuple(fake.shape) for _, fake in around.arguments] == [(2, 4), (2, 4)]


U_NET = """g (float[batch,3,height,width] x) => (float[batch,3,h,w] z) <float[4] s = {1, 1, 2, 2}> {
  a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
  b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
  u = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (b, , s)
  z = Add (u, a)
}"""


def test_free_sizes_are_chosen_so_that_the_model_fits() -> None:
    around = around_of(U_NET)
    assert around.cut == ()
    ((_, fake),) = around.arguments
    assert all(size % 4 == 0 for size in fake.shape[2:])


def test_one_name_is_one_size_and_sums_of_names_are_sums() -> None:
    proto = proto_of("""g (float[past,4] x, float[now,4] y, float[total,4] m) => (float[q,4] z) {
      k = Concat <axis = 0> (x, y)
      z = Add (k, m)
    }""")
    proto.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "past + now"  # no name in the text form
    around, _ = lower_pair(prepared(proto), prepared(proto))
    assert around.cut == ()
    past, now, total = (fake.shape[0] for _, fake in around.arguments)
    assert past != now
    assert total == past + now


def test_operands_that_are_omitted_at_the_end_need_not_be_written() -> None:
    body = "g (float[2,4] x) => (float[2,4] z) <float[2,4] b> { b = my.Foo(x) z = Neg(b) }"
    around, _ = lower_pair(
        model_of(body.replace("Foo(x)", "Foo(x, )"), imports=MY), model_of(body, imports=MY)
    )
    assert around.cut == ("b",)


def test_a_node_that_only_one_model_has_cannot_be_cut_out() -> None:
    with pytest.raises(LoweringError, match="not there any more"):
        lower_pair(model_of(MIDDLE, imports=MY), model_of(MIDDLE.replace("my.Foo", "my.Bar"), imports=MY))
    with pytest.raises(LoweringError, match="in one model only"):
        lower_pair(model_of(MIDDLE.replace("my.Foo", "Relu"), imports=MY), model_of(MIDDLE, imports=MY))


@pytest.mark.parametrize("node", ["Celu <alpha = 0.0> (x)", 'ScatterElements <reduction = "no"> (x, i, x)'])
def test_attributes_that_make_no_sense_are_no_internal_error(node: str) -> None:
    """Runtimes run such nodes; their converters divide by zero, or look for what there is not."""
    around = around_of(f"g (float[2,4] x, int64[2,4] i) => (float[2,4] z) {{ a = Relu(x) z = {node} }}")
    assert around.cut == ("z",)


def test_a_model_alone_is_lowered_at_sizes_that_fit_it() -> None:
    """As `explain` and `bench` have it; the inputs are those that its nodes can take."""
    body = U_NET.replace("x) =>", "x, int64[2] target) =>").replace("h,w] z)", "h,w] z, float[p,q] r)")
    around = lower_alone(model_of(body.replace("z = Add", "r = Reshape (x, target)\n  z = Add")))
    x, target = _inputs_of(around)
    z, r = around.module(x, target)
    assert all(size % 4 == 0 for size in x.shape[2:])
    assert 2 * z.shape[-1] == x.shape[-1]
    assert r.numel() == x.numel()


def test_a_model_alone_says_which_operator_has_no_converter() -> None:
    with pytest.raises(LoweringError, match="operator has no converter; where: b; got: my:Foo"):
        lower_alone(model_of(MIDDLE, imports=MY))


def test_a_model_alone_says_which_attributes_make_no_sense() -> None:
    body = "g (float[4] x) => (float[a] y, float[b] z) { y, z = Split <axis = 0, num_outputs = 2> (x) }"
    model = model_of(body)
    (node,) = model.graph
    node.attributes["num_outputs"] = onnx_ir.AttrInt64("num_outputs", 0)
    with pytest.raises(LoweringError, match="attributes that make no sense"):
        lower_alone(model)
