"""Capture as a whole: real models, mappings, opaque nodes, dynamic shapes."""

from __future__ import annotations

import onnx
import onnx_ir
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.capture_calls import (
    assert_captured_right,
    capture_function,
    capture_module,
    tensor_outputs,
)
from tests.crosses import nightly_but
from torchrlopt.capture.graph_to_onnx import capture
from torchrlopt.errors import CaptureError


@torch.library.custom_op("rlopt_test::twice", mutates_args=())
def _twice(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return 2 * x + bias


@_twice.register_fake
def _(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class ConvBlock(nn.Module):
    """A residual block, as in ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(self.conv1(x)).relu_()
        y = self.norm2(self.conv2(y))
        y += x
        return self.head(F.adaptive_avg_pool2d(y.relu_(), 1).flatten(1))


def test_conv_block_is_one_node_per_layer() -> None:
    record = capture_module(ConvBlock().eval(), torch.randn(2, 8, 6, 6))
    assert record.op_types() == {
        "Conv": 2,
        "BatchNormalization": 2,
        "Relu": 2,
        "Add": 1,
        "ReduceMean": 1,
        "Reshape": 1,
        "Gemm": 1,
    }
    assert_captured_right(record)


def test_weights_stay_inputs() -> None:
    record = capture_module(ConvBlock().eval(), torch.randn(2, 8, 6, 6))
    captured = record.captured
    placeholders = [node.name for node in captured.aten.graph.nodes if node.op == "placeholder"]
    # In the order in which they are first read, so that it does not matter how the model was called.
    inputs = [str(value.name) for value in captured.model.graph.inputs]
    assert sorted(inputs) == sorted(placeholders)
    read = [str(value.name) for node in captured.model.graph for value in node.inputs if value is not None]
    assert inputs == [name for name in dict.fromkeys(read) if name in placeholders]
    # two convolutions, two norms of four tensors each, one linear
    assert len(captured.static_inputs) == 2 + 8 + 2
    assert not captured.model.graph.initializers
    assert captured.constants == {}


def test_every_value_is_typed_and_every_name_unique() -> None:
    record = capture_module(ConvBlock().eval(), torch.randn(2, 8, 6, 6))
    graph = record.captured.model.graph
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    assert all(value.dtype is not None and value.shape is not None for value in values)
    names = [node.name for node in graph]
    assert len(set(names)) == len(names)
    assert all(not node.metadata_props and node.doc_string is None for node in graph)
    onnx.checker.check_model(onnx_ir.to_proto(record.captured.model), full_check=True)


def _tiny_transformers() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    from transformers import (
        BertConfig,
        BertModel,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        ViTConfig,
        ViTModel,
    )

    ids = torch.randint(0, 64, (2, 10))
    bert = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    gpt2 = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, use_cache=False)
    llama = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    vit = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    return {
        "bert": (BertModel(bert).eval(), ids),
        "gpt2": (GPT2LMHeadModel(gpt2).eval(), ids),
        "llama": (LlamaForCausalLM(llama).eval(), ids),
        "vit": (ViTModel(vit).eval(), torch.randn(2, 3, 32, 32)),
    }


@pytest.fixture(scope="module")
def transformers() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    return _tiny_transformers()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit"])
def test_transformer(transformers: dict[str, tuple[nn.Module, torch.Tensor]], name: str) -> None:
    module, example = transformers[name]
    record = capture_module(module, example)
    assert record.captured.opaque == ()
    assert record.op_types()["Attention"] == 2
    assert_captured_right(record)


@pytest.mark.parametrize("name", nightly_but(["bert"], ["bert", "gpt2", "llama"]))
def test_transformer_with_dynamic_batch_and_sequence(
    transformers: dict[str, tuple[nn.Module, torch.Tensor]], name: str
) -> None:
    module, example = transformers[name]
    torch._dynamo.mark_dynamic(example, (0, 1))
    record = capture_module(module, example)
    captured = record.captured
    assert captured.opaque == ()
    # Batch and sequence copy (0) or infer (-1): no Reshape needs its target computed.
    targets = [
        node.inputs[1].producer()
        for node in captured.model.graph
        if node.op_type == "Reshape" and node.inputs[1]
    ]
    assert targets
    assert all(target is not None and target.op_type == "Constant" for target in targets)
    assert_captured_right(record)
    # The same model at other sizes.
    other = torch.randint(0, 64, (3, 7))
    position = next(i for i, value in enumerate(record.inputs) if value is example)
    sizes = {2: 3, 10: 7}
    record.inputs = [sizes.get(value, value) if isinstance(value, int) else value for value in record.inputs]
    record.inputs[position] = other
    with torch.no_grad():
        record.outputs = tuple(captured.aten(*record.inputs))
    assert tensor_outputs(record)[0].shape[:2] == (3, 7)
    assert_captured_right(record)


def test_linear_on_three_dims_is_matmul_and_add() -> None:
    layer = nn.Linear(8, 5)
    record = capture_module(layer, torch.randn(2, 3, 8))
    assert record.op_types() == {"Transpose": 1, "MatMul": 1, "Add": 1}
    captured = record.captured
    add = record.node("Add")
    origin = captured.origins[str(add.name)]
    targets = [str(_fx(captured.aten, name).target) for name in captured.groups[origin]]
    assert targets == ["aten.view.default", "aten.addmm.default", "aten.view.default"]
    assert_captured_right(record)


def _fx(gm: torch.fx.GraphModule, name: str) -> torch.fx.Node:
    return next(node for node in gm.graph.nodes if node.name == name)


def test_linear_whose_product_is_read_elsewhere_keeps_its_views() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x.view(6, 8) @ w
        return product.view(2, 3, 5), product.sum()

    record = capture_function(function, torch.randn(2, 3, 8), torch.randn(8, 5))
    assert record.op_types() == {"Reshape": 2, "MatMul": 1, "ReduceSum": 1}
    assert_captured_right(record)


def test_linear_on_two_dims_is_gemm() -> None:
    record = capture_module(nn.Linear(8, 5), torch.randn(3, 8))
    assert record.op_types() == {"Gemm": 1}
    assert record.node("Gemm").attributes["transB"].as_int() == 1
    assert_captured_right(record)


def test_mapping_leads_every_output_back_to_aten() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x.clone().exp().split(2, dim=-1)
        return first + 1, second.contiguous() * 2

    record = capture_function(function, torch.randn(3, 4))
    captured = record.captured
    assert captured.values["split.0"] == "split.0"
    assert captured.fx_values["getitem"] == "split.0"
    assert captured.fx_values["clone"] == "arg0_1"
    assert captured.origins["exp"] == "exp"
    assert set(captured.fx_values.values()) <= set(captured.values)


def test_view_of_another_layout_is_not_put_back() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().view(-1).exp()

    record = capture_function(function, torch.randn(3, 4))
    # The copy is gone; `view` would refuse the transposed tensor that now feeds it.
    assert record.op_types() == {"Transpose": 1, "Reshape": 1, "Exp": 1}
    assert str(record.node("Reshape").name) not in record.captured.origins
    assert_captured_right(record)


def test_unknown_operator_is_one_opaque_node() -> None:
    def function(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.ops.rlopt_test.twice(x.exp(), bias).relu()

    record = capture_function(function, torch.randn(3, 4), torch.randn(4))
    assert record.captured.opaque == ("rlopt_test.twice.default",)
    node = record.node("rlopt_test.twice.default")
    assert (node.domain, node.attributes["fx_node"].as_string()) == ("rlopt.aten", "twice")
    assert [value.name for value in node.inputs if value] == ["exp", "arg1_1"]
    assert list(node.outputs[0].shape or ()) == [3, 4]
    assert record.captured.origins[str(node.name)] == "twice"


def test_random_operator_is_opaque_and_never_merged() -> None:
    record = capture_function(lambda x: torch.rand_like(x) - torch.rand_like(x), torch.randn(3))
    assert record.op_types() == {"aten.rand_like.default": 2, "Sub": 1}


def test_complex_operators_are_opaque() -> None:
    record = capture_function(lambda x: torch.fft.rfft(x).abs() * 2, torch.randn(8))
    assert record.captured.opaque == ("aten._fft_r2c.default", "aten.abs.default")
    transform = record.node("aten._fft_r2c.default")
    assert transform.outputs[0].dtype == onnx_ir.DataType.COMPLEX64
    assert record.op_types()["Mul"] == 1


def test_opaque_tuple_keeps_the_index_of_each_element() -> None:
    record = capture_function(lambda x: torch.linalg.qr(x), torch.randn(4, 3))
    (name,) = record.captured.opaque
    outputs = [str(value.name) for value in record.node(name).outputs]
    assert [output.rpartition(".")[2] for output in outputs] == ["0", "1"]


def test_write_to_an_input_is_refused() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, device="meta")
    y = graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
    y.meta["val"] = x.meta["val"]
    graph.output((y,))
    gm = torch.fx.GraphModule(nn.Module(), graph)
    with pytest.raises(CaptureError, match=r"writes to its input.*got: aten\.add_\.Tensor"):
        capture(gm, [])


def test_graph_without_fake_values_is_refused() -> None:
    gm = torch.fx.symbolic_trace(nn.ReLU())
    with pytest.raises(CaptureError, match="carries no fake value"):
        capture(gm, [])


def test_mask_without_inputs_is_a_constant_input_shared_by_all_layers() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            mask = torch.ones(9, 9).tril().bool()
            x = x.masked_fill(mask, 0.0) * 2
        return x

    record = capture_function(function, torch.randn(9, 9))
    (constant,) = record.captured.constants.values()
    assert constant.dtype == torch.bool
    assert record.op_types() == {"Where": 2, "Mul": 2}
    assert_captured_right(record)


def test_constants_of_constants_leave_no_trace() -> None:
    record = capture_function(
        lambda x: x * torch.tensor(4.0).sqrt() + torch.arange(3).cumsum(0), torch.randn(3)
    )
    assert record.op_types() == {"Mul": 1, "Cast": 1, "Add": 1}
    assert record.captured.opaque == ()
    assert_captured_right(record)


def test_python_float_that_varies_is_an_input() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * factor + factor

    record = capture_module(Model(), torch.randn(3), 2.5, dynamic=True)
    assert any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in record.inputs)
    assert record.op_types() == {"Cast": 1, "Mul": 1, "Add": 1}
    assert_captured_right(record)


def test_constant_that_is_returned_is_made_anew_at_every_call() -> None:
    record = capture_function(lambda x: (torch.arange(100) + 1, x + 1), torch.randn(2))
    assert record.captured.constants.keys() <= {"arange"}
    assert record.op_types()["Add"] == 2
    assert_captured_right(record)


def test_zeros_broadcast_as_a_scalar() -> None:
    record = capture_function(lambda x: torch.zeros_like(x) + x.exp(), torch.randn(20, 20))
    assert record.op_types() == {"Exp": 1, "Add": 1}
    assert record.captured.constants == {}
    assert_captured_right(record)


def test_empty_tensors() -> None:
    record = capture_function(lambda x, w: (x.view(0, 6) * 2, x @ w), torch.randn(0, 2, 3), torch.randn(3, 4))
    assert_captured_right(record)


def test_capture_leaves_the_graph_as_it_was() -> None:
    record = capture_module(ConvBlock().eval(), torch.randn(2, 8, 6, 6))
    before = record.captured.aten.code
    capture(record.captured.aten, [])
    assert record.captured.aten.code == before


def test_capture_of_one_graph_is_the_same_every_time() -> None:
    record = capture_module(ConvBlock().eval(), torch.randn(2, 8, 6, 6))
    again = capture(record.captured.aten, [])
    first = onnx_ir.to_proto(record.captured.model).SerializeToString(deterministic=True)
    assert onnx_ir.to_proto(again.model).SerializeToString(deterministic=True) == first
