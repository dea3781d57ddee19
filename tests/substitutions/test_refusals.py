"""Near misses: graphs that resemble a pattern, on which the substitution would be wrong. It must not fire.

Each substitution fires on the graph without the flaw, so that it is the flaw that prevents the match.
"""

from __future__ import annotations

import pytest

from tests.substitutions.graphs import graph_of
from torchrlopt.errors import SubstitutionError
from torchrlopt.substitutions import load_library

LIBRARY = load_library()

CONV = "x: f32[1,4,8,8], %w: f32[4,4,3,3]"
NORM = "%s: f32[4], %o: f32[4], %m: f32[4], %v: f32[4]"
TWO = "x: f32[1,4,8,8], %w: f32[4,4,3,3], %u: f32[4,4,1,1], %b: f32[4], %c: f32[4]"
ROWS = "x: f32[2,6,4], %w: f32[4,8], %b: f32[8]"

#: Substitution, inputs and lines of a graph on which it fires, the flaw: a part of the text, what it becomes.
CASES: tuple[tuple[str, str, str, str, str], ...] = (
    # BatchNorm in front of a padded convolution: the padding is zero behind it, not in front of it
    ("fold_batchnorm_before_conv", f"{CONV}, {NORM}",
     "t = BatchNormalization(x, %s, %o, %m, %v); y = Conv(t, %w; pads=[0,0,0,0])",
     "pads=[0,0,0,0]", "pads=[1,1,1,1]"),
    # ... whose statistics are computed from the data
    ("fold_batchnorm_into_conv", f"{CONV}, {NORM}",
     "t = Conv(x, %w); y = BatchNormalization(t, %s, %o, %m, %v)",
     "y = BatchNormalization(t, %s, %o, %m, %v)",
     "n = ReduceMean(x; axes=[0,2,3], keepdims=0); y = BatchNormalization(t, %s, %o, %m, n)"),
    ("fold_batchnorm_into_linear", f"x: f32[6,4], %w: f32[4,8], %b: f32[8], {NORM.replace('[4]', '[8]')}",
     "t = FusedMatMul(x, %w, %b); y = BatchNormalization(t, %s, %o, %m, %v)", "x: f32[6,4]", "x: f32[2,8,4]"),
    ("fold_batchnorm_of_rows_into_linear", f"x: f32[3,2,4], %w: f32[4,8], {NORM.replace('[4]', '[8]')}",
     "t = FusedMatMul(x, %w); r = Reshape(t; shape=[-1,8]); y = BatchNormalization(r, %s, %o, %m, %v)",
     "%w: f32[4,8]", "%w: f32[4,16]"),
    # a scale along the width is no scale of channels
    ("fold_channel_scale_into_conv", f"{CONV}, %s: f32[4,1,1]",
     "t = Conv(x, %w; pads=[1,1,0,0]); y = Mul(t, %s)",
     "%s: f32[4,1,1]", "%s: f32[7]"),
    ("fold_channel_shift_into_conv", f"{CONV}, %s: f32[4,1,1]",
     "t = Conv(x, %w; pads=[0,0,0,0]); y = Add(t, %s)",
     "%s: f32[4,1,1]", "%s: f32[1,6,1]"),
    ("fold_channel_scale_before_conv_no_b", f"{CONV}, %s: f32[4,1,1]",
     "t = Mul(x, %s); y = Conv(t, %w; group=1)",
     "%s: f32[4,1,1]", "%s: f32[8,1]"),
    # padding with something else than zero, or of channels
    ("fold_pad_into_conv_no_b", CONV, "t = Pad(x; pads=[0,0,1,1,0,0,1,1]); y = Conv(t, %w)",
     "pads=[0,0,1,1,0,0,1,1]", "pads=[0,0,1,1,0,0,1,1], value=0.5"),
    ("fold_pad_into_conv_no_b", CONV, "t = Pad(x; pads=[0,0,1,1,0,0,1,1]); y = Conv(t, %w)",
     "pads=[0,0,1,1,0,0,1,1]", 'pads=[0,0,1,1,0,0,1,1], mode="reflect"'),
    ("fold_pad_into_conv_no_b", CONV, "t = Pad(x; pads=[0,0,1,1,0,0,1,1]); y = Conv(t, %w)",
     "pads=[0,0,1,1,0,0,1,1]", "pads=[1,0,1,1,0,0,1,1]"),
    ("fold_subsample_into_conv_no_b", "x: f32[1,4,8,8], %w: f32[4,4,1,1]",
     "t = AveragePool(x; kernel_shape=[1,1], strides=[2,2]); y = Conv(t, %w)", "kernel_shape=[1,1]",
     "kernel_shape=[2,2]"),
    # sums of convolutions of different geometry
    ("add_biased_convs_shared_input", TWO.replace("[4,4,1,1]", "[4,4,3,3]"),
     "t = Conv(x, %w, %b; pads=[1,1,1,1]); u = Conv(x, %u, %c; pads=[1,1,1,1]); y = Add(t, u)",
     "u = Conv(x, %u, %c; pads=[1,1,1,1])", "u = Conv(x, %u, %c; pads=[2,2,2,2], dilations=[2,2])"),
    ("add_biased_convs_shared_input", TWO.replace("[4,4,1,1]", "[4,4,3,3]"),
     "t = Conv(x, %w, %b; pads=[1,1,1,1]); u = Conv(x, %u, %c; pads=[1,1,1,1]); y = Add(t, u)",
     "u = Conv(x, %u, %c; pads=[1,1,1,1])", "u = Conv(x, %u, %c; pads=[0,0,2,2])"),
    ("add_enlarged_biased_conv", TWO,
     "t = Conv(x, %w, %b; pads=[1,1,1,1]); u = Conv(x, %u, %c); y = Add(t, u)", "pads=[1,1,1,1]",
     "pads=[2,2,2,2], dilations=[2,2]"),
    # the 1x1 kernel reads outside the 3x3 one
    ("add_enlarged_biased_conv", TWO,
     "t = Conv(x, %w, %b; strides=[2,2], pads=[1,1,2,2]); u = Conv(x, %u, %c; "
     "strides=[2,2], pads=[1,1,0,0]); y = Add(t, u)",
     "pads=[1,1,2,2]", "pads=[0,0,3,3]"),
    # a residual that is broadcast is no identity kernel
    ("add_identity_to_conv_no_b", "x: f32[1,4,8,8], %w: f32[4,4,3,3]",
     "t = Conv(x, %w; pads=[1,1,1,1]); y = Add(t, x)", "t = Conv(x, %w; pads=[1,1,1,1]); y = Add(t, x)",
     "z = ReduceMean(x; axes=[2,3]); t = Conv(x, %w; pads=[1,1,1,1]); y = Add(t, z)"),
    ("add_batchnorm_to_conv", f"{CONV}, %b: f32[4], {NORM}",
     "t = Conv(x, %w, %b; pads=[1,1,1,1]); u = BatchNormalization(x, %s, %o, %m, %v); y = Add(t, u)",
     "u = BatchNormalization(x, %s, %o, %m, %v)", "r = Relu(x); u = BatchNormalization(r, %s, %o, %m, %v)"),
    # the inner bias of a padded outer convolution is not a constant
    ("compose_pointwise_then_conv_no_b", "x: f32[1,4,8,8], %w: f32[4,4,1,1], %u: f32[4,4,3,3], %b: f32[4]",
     "t = Conv(x, %w); y = Conv(t, %u; pads=[1,1,1,1])", "Conv(x, %w)", "Conv(x, %w, %b)"),
    ("swap_average_pool_conv", "x: f32[1,4,8,8], %w: f32[4,4,1,1]",
     "t = AveragePool(x; kernel_shape=[3,3]); y = Conv(t, %w)", "y = Conv(t, %w)",
     "r = Relu(t); y = Conv(r, %w)"),
    ("replace_average_pool_by_conv", "x: f32[1,4,8,8]",
     "y = AveragePool(x; kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1)", ", count_include_pad=1",
     ""),
    # merges
    ("merge_conv_shared_input", "x: f32[1,4,8,8], %w: f32[4,4,3,3], %u: f32[6,4,3,3]",
     "t = Conv(x, %w); u = Conv(x, %u); y = Concat(t, u; axis=1)", "u = Conv(x, %u)",
     "u = Conv(x, %u; pads=[1,1,1,1], dilations=[2,2])"),
    ("merge_convs_as_groups", "x: f32[1,4,8,8], z: f32[1,4,8,8], %w: f32[2,4,3,3], %u: f32[2,4,3,3]",
     "t = Conv(x, %w); u = Conv(z, %u); y = Concat(t, u; axis=1)", "%u: f32[2,4,3,3]", "%u: f32[6,4,3,3]"),
    ("merge_relu_after_split", "x: f32[4,6]",
     "a, b = Split(x; axis=1, sizes=[3,3]); c = Relu(a); d = Relu(b); y = Concat(c, d; axis=1)",
     "d = Relu(b)", "d = Abs(b)"),
    # the second layer reads the first: as one node they would close a cycle
    ("merge_linear_shared_input", "x: f32[6,4], %w: f32[4,4], %u: f32[4,4]",
     "a = FusedMatMul(x, %w); b = FusedMatMul(x, %u); y = Add(a, b)", "b = FusedMatMul(x, %u)",
     "b = FusedMatMul(a, %u)"),
    # algebra
    ("absorb_low_rank_pair", "x: f32[6,4], %w: f32[4,4], %b: f32[4], %d: f32[4,2], %u: f32[2,4]",
     "l = FusedMatMul(x, %w, %b); d = FusedMatMul(x, %d); e = FusedMatMul(d, %u); y = Add(l, e)",
     "e = FusedMatMul(d, %u)", "r = Relu(d); e = FusedMatMul(r, %u)"),
    ("compose_linears_no_b", "x: f32[6,4], %w: f32[4,4], %u: f32[4,4]",
     "t = FusedMatMul(x, %w); y = FusedMatMul(t, %u)", "FusedMatMul(x, %w)",
     'FusedMatMul(x, %w; activation="Relu")'),
    ("move_scale_after_relu", "x: f32[6,4]", "c: f32[] = Constant(; value=[2.0]); t = Mul(x, c); y = Relu(t)",
     "value=[2.0]", "value=[-2.0]"),
    ("swap_linear_mean", ROWS, "t = FusedMatMul(x, %w, %b); y = ReduceMean(t; axes=[1])", "axes=[1]",
     "axes=[2]"),
    ("factor_common_factor", "x: f32[6], z: f32[6], c: f32[6]", "t = Mul(x, c); u = Mul(z, c); y = Add(t, u)",
     "z: f32[6]", "z: f32[1]"),
    # recognition with other constants, axes or masks
    ("recognise_gelu", "x: f32[6]",
     "r: f32[] = Constant(; value=[0.70710678]); o: f32[] = Constant(; value=[1.0]); h: f32[] = Constant(; "
     "value=[0.5]);"
     " u = Mul(x, r); e = Erf(u); a = Add(e, o); m = Mul(x, a); y = Mul(m, h)", "0.70710678", "0.7071"),
    ("recognise_layernorm", "x: f32[2,4,4], %w: f32[4], %b: f32[4]",
     "k: f32[] = Constant(; value=[1e-05]); m = ReduceMean(x; axes=[2]); c = Sub(x, m); s = Mul(c, c); "
     "v = ReduceMean(s; axes=[2]);"
     " e = Add(v, k); d = Sqrt(e); n = Div(c, d); t = Mul(n, %w); y = Add(t, %b)",
     "v = ReduceMean(s; axes=[2])", "v = ReduceMean(s; axes=[1])"),
    ("recognise_hard_swish", "x: f32[6]", "s = HardSigmoid(x; alpha=0.16666667); y = Mul(x, s)",
     "alpha=0.16666667", "alpha=0.2"),
    ("recognise_attention", "q: f32[1,2,4,4], k: f32[1,2,4,4], v: f32[1,2,4,4]",
     "f: f32[] = Constant(; value=[0.5]); r = Transpose(k; perm=[0,1,3,2]); s = MatMul(q, r); "
     "c = Mul(s, f); p = Softmax(c); y = MatMul(p, v)",
     "p = Softmax(c)", "p = Softmax(c; axis=2)"),
    ("recognise_attention", "q: f32[1,2,4,4], k: f32[1,2,4,4], v: f32[1,2,4,4]",
     "f: f32[] = Constant(; value=[0.5]); r = Transpose(k; perm=[0,1,3,2]); s = MatMul(q, r); "
     "c = Mul(s, f); p = Softmax(c); y = MatMul(p, v)",
     "value=[0.5]", "value=[-0.5]"),
    ("recognise_softmax", "x: f32[4,4]",
     "m = ReduceMax(x; axes=[1]); c = Sub(x, m); e = Exp(c); s = ReduceSum(e; axes=[1]); y = Div(e, s)",
     "s = ReduceSum(e; axes=[1])", "s = ReduceSum(e; axes=[0])"),
    # movement
    ("remove_transpose_pair", "x: f32[2,2,2]",
     "t = Transpose(x; perm=[1,2,0]); y = Transpose(t; perm=[2,0,1])",
     "perm=[2,0,1]", "perm=[1,2,0]"),
    ("merge_reshapes", "x: f32[2,6]", "t = Reshape(x; shape=[3,4]); y = Reshape(t; shape=[12])",
     "shape=[12]", "shape=[0,-1]"),
    ("remove_slice", "x: f32[4]", "y = Slice(x; axes=[0], starts=[0], ends=[4], steps=[1])",
     "starts=[0], ends=[4], steps=[1]", "starts=[3], ends=[-5], steps=[-1]"),
    ("remove_concat_of_split", "x: f32[2,2]",
     "a, b = Split(x; axis=0, sizes=[1,1]); y = Concat(a, b; axis=0)",
     "Concat(a, b;", "Concat(b, a;"),
    ("merge_slices_into_concat", "x: f32[6]",
     "a = Slice(x; axes=[0], starts=[0], ends=[2]); b = Slice(x; axes=[0], starts=[2], ends=[4]); "
     "y = Concat(a, b; axis=0)",
     "starts=[2], ends=[4]", "starts=[3], ends=[5]"),
    ("move_slice_before_linear", ROWS,
     "t = FusedMatMul(x, %w, %b); y = Slice(t; axes=[1], starts=[0], ends=[1])",
     "axes=[1]", "axes=[2]"),
    ("move_slice_before_layernorm_no_b", "x: f32[2,6,4], %w: f32[4]",
     "t = LayerNormalization(x, %w); y = Slice(t; axes=[1], starts=[0], ends=[1])", "axes=[1]", "axes=[2]"),
    # clean
    ("remove_cast_pair", "x: f32[4]", 't = Cast(x; to="f64"); y = Cast(t; to="f32")', 'to="f64"', 'to="f16"'),
    ("absorb_relu_into_clip", "x: f32[4]", "t = Relu(x); y = Clip(t; min=-1.0, max=6.0)", "max=6.0",
     "max=-0.5"),
    ("remove_mul_one", "x: f32[4]", "c: f32[] = Constant(; value=[1.0]); y = Mul(x, c)", "value=[1.0]",
     "value=[1.001]"),
    # normal form
    ("normalise_linear_bias", ROWS, "t = FusedMatMul(x, %w); y = Add(t, %b)", "%b: f32[8]", "%b: f32[6,8]"),
    ("normalise_div_scalar", "x: f32[4]", "c: f32[] = Constant(; value=[3.0]); y = Div(x, c)",
     "value=[3.0]", "value=[0.0]"),
    ("normalise_square", "x: f32[4]", "c: f32[] = Constant(; value=[2.0]); y = Pow(x, c)", "value=[2.0]",
     "value=[-2.0]"),
    # epilogues
    ("fuse_conv_add_no_b", f"{CONV}, z: f32[1,4,6,6]", "t = Conv(x, %w); y = Add(t, z)", "z: f32[1,4,6,6]",
     "z: f32[1,1,6,6]"),
    ("fuse_linear_gelu", ROWS, "t = FusedMatMul(x, %w, %b); y = Gelu(t)", "y = Gelu(t)",
     'y = Gelu(t; approximate="tanh")'),
    ("hoist_linear_shared_weight_no_b", "x: f32[2,4], z: f32[3,4], %w: f32[4,8]",
     "a = FusedMatMul(x, %w); b = FusedMatMul(z, %w); y = Concat(a, b; axis=0)", "b = FusedMatMul(z, %w)",
     'b = FusedMatMul(z, %w; activation="Relu")'),
)  # fmt: skip


def steps_from(name: str, inputs: str, lines: str) -> int:
    """How many of the substitution's matches can be applied to the graph."""
    graph = graph_of(inputs, lines)
    count = 0
    for match in LIBRARY.matches(graph, name):
        try:
            LIBRARY.apply(graph, name, match["location"]).check()
            count += 1
        except SubstitutionError:
            continue
    return count


@pytest.mark.parametrize(
    ("name", "inputs", "lines", "part", "flaw"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)]
)
def test_does_not_fire_on_a_near_miss(name: str, inputs: str, lines: str, part: str, flaw: str) -> None:
    assert steps_from(name, inputs, lines) >= 1, "it must fire without the flaw"
    assert part in inputs + "\n" + lines
    assert steps_from(name, inputs.replace(part, flaw), lines.replace(part, flaw)) == 0
