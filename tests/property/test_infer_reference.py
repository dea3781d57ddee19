"""Random operands and attributes: inference refuses them, or the reference gives the inferred shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.core_calls import build, print_type, read_type
from tests.core.test_infer import ONE_OF_EACH
from torchrlopt import _C, _tools
from torchrlopt.errors import ModelFormatError

SIZES = st.sampled_from([0, 1, 1, 2, 2, 3, 4, 5])
INTS = st.one_of(st.integers(-3, 4), st.sampled_from([2**31, -(2**31), 2**62, -(2**63), 2**63 - 1]))
MAX_ELEMENTS = 5000


@st.composite
def calls(draw: st.DrawFn, op: str) -> tuple[list[str], dict[str, Any]]:
    """The known good call of `op` with some dims and attributes changed."""
    types, attrs, _ = ONE_OF_EACH[op]
    changed = []
    for text in types:
        dtype, dims = read_type(text)
        new = list(dims)
        for i in range(len(new)):
            if draw(st.integers(0, 3)) == 0:
                new[i] = draw(SIZES)
        if draw(st.integers(0, 9)) == 0:
            new = [draw(SIZES) for _ in range(draw(st.integers(0, 5)))]
        changed.append(print_type((dtype, new)))
    schema = next(each for each in _C.ops() if each["name"] == op)["attrs"]
    given_attrs = dict(attrs)
    for name, default in schema.items():
        if draw(st.integers(0, 2)) > 0:
            continue
        value = attrs.get(name, default)
        if isinstance(value, list):
            given_attrs[name] = draw(st.lists(INTS, max_size=4))
        elif isinstance(value, int):
            given_attrs[name] = draw(INTS)
        elif isinstance(value, float):
            given_attrs[name] = draw(st.floats(-2, 2))
    return changed, given_attrs


@pytest.mark.parametrize("op", ONE_OF_EACH)
@settings(max_examples=25)
@given(data=st.data())
def test_inference_and_evaluation_agree_on_shapes(op: str, data: st.DataObject) -> None:
    types, attrs = data.draw(calls(op))
    try:
        graph = build(op, types, attrs)
    except ModelFormatError:
        return
    expected = [graph.type(value)[1] for value in graph.outputs]
    if any(np.prod(np.maximum(dims, 1), dtype=float) > MAX_ELEMENTS for dims in expected):
        return
    zeros = {f"x{i}": np.zeros(read_type(text)[1]) for i, text in enumerate(types)}
    try:
        outputs = _tools.evaluate(graph, zeros)
    except ModelFormatError as error:
        # Values, not shapes, may be out of range: an index into an empty axis.
        if "indices" in str(error) or "the reference has no such operator" in str(error):
            return
        raise
    assert [list(output.shape) for output in outputs] == expected
