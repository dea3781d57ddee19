"""The library without its composites: their results must be reachable step by step."""

from __future__ import annotations

import pytest

from tests.substitutions.test_collapse import MOBILEONE_DEPTHWISE, REPVGG, REPVGG_STRIDED
from torchrlopt import _C
from torchrlopt.substitutions import is_composite, load_library

LIBRARY = load_library()
PRIMITIVES = load_library(primitives_only=True)


def cost_after(text: str, library: _C.Library, searcher: str) -> tuple[float, list[tuple[str, int]]]:
    found = _C.search(_C.parse_graph(text), library, _C.CostModel(), searcher=searcher, budget_ms=2000.0)
    found["graph"].check()
    return found["cost_after_us"], found["steps"]


def test_primitives_are_the_library_without_composites() -> None:
    left_out = set(LIBRARY.names) - set(PRIMITIVES.names)
    assert left_out == {name for name in LIBRARY.names if is_composite(LIBRARY, name)}
    assert {"add_batchnorm_to_conv", "merge_attention_heads", "absorb_low_rank_pair"} <= left_out
    for name in PRIMITIVES.names:
        assert PRIMITIVES.text(name) == LIBRARY.text(name)
        assert PRIMITIVES.family(name) == LIBRARY.family(name)
    assert load_library(primitives_only=True) is load_library(primitives_only=True)


def test_a_comment_that_speaks_of_composites_marks_nothing() -> None:
    text = "# no composite here\nsubstitution drop\n  t = Neg(x)\n  y = Neg(t)\n=>\n  y = Identity(x)\n"
    assert not is_composite(_C.Library(text), "drop")
    assert is_composite(_C.Library("# composite\n" + text), "drop")


@pytest.mark.parametrize("text", [REPVGG, REPVGG_STRIDED, MOBILEONE_DEPTHWISE])
def test_a_training_block_collapses_by_a_chain(text: str) -> None:
    best, _ = cost_after(text, LIBRARY, "greedy")
    cost, _ = cost_after(text, PRIMITIVES, "best_known")
    assert cost == pytest.approx(best, rel=1e-9)


def test_the_chain_adds_a_convolution_enlarges_kernels_and_only_then_merges() -> None:
    greedy, _ = cost_after(REPVGG, PRIMITIVES, "greedy")
    cost, steps = cost_after(REPVGG, PRIMITIVES, "best_known")
    assert cost < 0.6 * greedy, "the first steps lose: greedy does not take them"
    names = [name for name, _ in steps]
    inserted = names.index("insert_conv_before_summed_batchnorm")
    merged = len(names) - 1 - names[::-1].index("add_biased_convs_shared_input")
    assert inserted < names.index("enlarge_summed_kernel", inserted) < merged
