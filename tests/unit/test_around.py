"""Models around operators without a converter: what those are given, and what is made of their outputs."""

from __future__ import annotations

import torch

from tests.unit.onnx_text import model_of
from torchrlopt.executors.lowering.around import cut_of, lower_around

MY = ', "my" : 1'
MIDDLE = """g (float[2,4] x) => (float[2,4] z) <float[2,4] b> {
  a = Relu(x)
  b = my.Foo(a)
  z = Neg(b)
}"""


def test_inputs_become_results_and_outputs_arguments() -> None:
    model = model_of(MIDDLE, imports=MY)
    around = lower_around(model, cut_of(model))
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
    assert cut_of(model_of(body, imports=MY)) == ("b", "d")


def test_a_model_with_converters_for_all_is_not_cut() -> None:
    model = model_of("g (float[2,4] x) => (float[2,4] z) { z = Neg(x) }")
    assert cut_of(model) == ()
    x = torch.randn(2, 4)
    torch.testing.assert_close(lower_around(model, ()).module(x)[0], -x)


def test_what_is_no_tensor_goes_by_its_origin() -> None:
    """A sequence has no counterpart in torch: all there is to say is that both models pass on the same."""
    body = """g (float[2,4] x) => (float[2,4] z) <float[2,4] p> {
      r = Relu(x)
      s = SequenceConstruct(r, x)
      i = Constant <value_int = 0> ()
      p = SequenceAt(s, i)
      z = Neg(p)
    }"""
    model = model_of(body)
    around = lower_around(model, cut_of(model))
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
    model = model_of(body)
    around = lower_around(model, cut_of(model))
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
    model = model_of(body, imports=MY)
    around = lower_around(model, cut_of(model))
    assert around.passed == (("b, operand 1", "names", 0),)
