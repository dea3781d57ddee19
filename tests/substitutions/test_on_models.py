"""The library on the real models of the suite: which substitutions fire there, and what is left.

Models are captured as in the backend; nothing is lowered or run.
"""

from __future__ import annotations

from collections import Counter

import pytest

from baselines.graphs import graph_of
from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from torchrlopt.substitutions import load_library

LIBRARY = load_library()

#: Model, substitutions that must fire, the most that may be left of some operators.
EXPECTED: dict[str, tuple[set[str], dict[str, int]]] = {
    "repvgg_a0": (
        {"fold_batchnorm_into_conv", "add_enlarged_biased_conv", "add_batchnorm_to_conv", "fuse_conv_relu"},
        {"FusedConv": 22, "Conv": 0, "BatchNormalization": 0, "Add": 0, "Relu": 0},
    ),
    "mobileone_s0": (
        {"remove_add_zero", "add_biased_convs_shared_input", "add_batchnorm_to_conv",
         "add_enlarged_biased_conv"},
        {"FusedConv": 43, "Conv": 0, "BatchNormalization": 0, "Add": 0, "Relu": 0},
    ),
    "resnet18": (
        {"fold_batchnorm_into_conv", "fuse_conv_relu", "fuse_conv_add", "fuse_conv_add_relu"},
        {"FusedConv": 17, "Conv": 3, "BatchNormalization": 0, "Add": 0, "Relu": 0},
    ),
    "inception_v3": (
        {"fold_batchnorm_into_conv", "fuse_conv_relu", "merge_conv_relu_shared_input"},
        {"BatchNormalization": 0, "Relu": 0},
    ),
    "nasnet_a": (
        {"fold_subsample_into_conv_no_b", "fold_batchnorm_into_concat_of_convs", "fuse_conv_add"},
        {"BatchNormalization": 0},
    ),
    "squeezenet1_1": ({"fuse_conv_relu"}, {"FusedConv": 26, "Conv": 0, "Relu": 0}),
    "mobilenet_v3": (
        {"fold_batchnorm_into_conv", "fuse_conv_hard_swish", "fuse_conv_hard_sigmoid"},
        {"BatchNormalization": 0, "HardSwish": 0, "HardSigmoid": 0},
    ),
    "bert_lora": (
        {"absorb_scaled_low_rank_pair", "merge_biased_linear_shared_input", "fuse_linear_gelu"},
        {"FusedMatMul": 49, "MatMul": 0, "Gemm": 0, "Attention": 12, "Gelu": 0},
    ),
    "gpt2": (
        {"recognise_gelu_tanh", "fuse_linear_gelu_tanh", "fuse_linear_add"},
        {"FusedMatMul": 49, "Tanh": 0, "Pow": 0, "Attention": 12},
    ),
    "llama_gqa": (
        {"recognise_rmsnorm", "recognise_swish", "absorb_repeat_into_attention", "absorb_rotation_sign"},
        {"Pow": 0, "Neg": 0, "Expand": 0, "RMSNormalization": 9, "Attention": 4},
    ),
    "vit_s16": (
        {"merge_biased_linear_shared_input", "move_gather_before_layernorm"},
        {"FusedMatMul": 49, "Attention": 12},
    ),
    "linear_attention": (
        {"reassociate_matmul", "merge_biased_linear_shared_input", "fold_scale_before_views_and_linear"},
        {"FusedMatMul": 8, "MatMul": 4, "Mul": 0, "Div": 0},
    ),
    "moe_loop": (
        {"merge_gated_experts", "merge_linear_gelu_into_concat", "merge_slices_into_concat",
         "remove_add_zero"},
        {"FusedMatMul": 16, "Gelu": 0, "Slice": 0, "Add": 4},
    ),
    "heads_loop": (
        {"merge_attention_heads", "fuse_linear_gelu"},
        {"FusedMatMul": 24, "Attention": 6, "Softmax": 0},
    ),
    "nasrnn": (
        {"merge_sigmoid_gates", "merge_tanh_gates", "hoist_linear_shared_weight_no_b",
         "replace_concat_of_gathers"},
        {"FusedMatMul": 11, "MatMul": 0},
    ),
    "ensemble_mlp": ({"merge_linear_relu_shared_input"}, {"FusedMatMul": 18, "Gemm": 0}),
    "toy_bert": ({"merge_linear_shared_input", "compose_linears_no_b"}, {"FusedMatMul": 5}),
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", EXPECTED)
def test_fires_and_leaves_little(name: str) -> None:
    must_fire, most = EXPECTED[name]
    result = _C.search(graph_of(name), LIBRARY, cost_model("eager"), searcher="greedy", budget_ms=60_000)
    fired = {step[0] for step in result["steps"]}
    assert fired >= must_fire, must_fire - fired
    graph = result["graph"]
    graph.check()
    left = Counter(graph.node(i)["op"] for i in graph.topological_order() if not graph.node(i)["is_static"])
    assert {op: left[op] for op in most if left[op] > most[op]} == {}
    assert result["cost_after_us"] < result["cost_before_us"]
