"""TensorFlow and TVM as peers: they compute the same as PyTorch."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from baselines.peers.case import Case

pytest.importorskip("tensorflow", reason="pip install 'torchrlopt[peers]'")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from baselines.peers.measured import Settings, measure_model
from baselines.peers.onnx_to_tensorflow import OnnxFunction


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16, eps=1e-3)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).reshape(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + nn.functional.gelu(self.out(y.transpose(1, 2).flatten(2)), approximate="tanh")


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(6, 2, 1, bias=False)
        self.scale = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(torch.cat([self.one(x), self.two(x)], 1)) * self.scale
        return (y + x * y.mean((2, 3), keepdim=True)).sigmoid(), y[:, 1:5:2]


IMAGE, TOKENS = (2, 6, 13, 10), (2, 5, 16)
MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "strided": (nn.Conv2d(6, 8, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(2, 1)), IMAGE),
    "groups": (nn.Conv2d(6, 9, 3, groups=3, padding=1), IMAGE),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6, padding=1, stride=2), IMAGE),
    "depthwise, two each": (nn.Conv2d(6, 12, 3, groups=6), IMAGE),
    "max_pool": (nn.MaxPool2d(3, 2, padding=1), IMAGE),
    "max_pool, ceil": (nn.MaxPool2d(3, 2, ceil_mode=True), IMAGE),
    "avg_pool": (nn.AvgPool2d(3, 2, padding=1), IMAGE),
    "avg_pool, image only": (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), IMAGE),
    "avg_pool, ceil": (nn.AvgPool2d(3, 2, ceil_mode=True), IMAGE),
    "avg_pool, all": (nn.AvgPool2d(3, 2, padding=1, ceil_mode=True), IMAGE),
    "hardswish": (nn.Sequential(nn.Conv2d(6, 4, 1), nn.Hardswish(), nn.Hardsigmoid()), IMAGE),
    "classifier": (nn.Sequential(nn.Flatten(), nn.Linear(780, 7), nn.Softmax(1)), IMAGE),
    "attention": (Attention(), TOKENS),
    "skip": (Skip(), IMAGE),
}


@pytest.mark.parametrize("grappler", [True, False], ids=["grappler", "plain"])
@pytest.mark.parametrize("name", MODULES)
def test_tensorflow_computes_what_pytorch_does(name: str, grappler: bool) -> None:
    module, shape = MODULES[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + 0.3
    file = io.BytesIO()
    torch.onnx.export(module.eval(), (x,), file, dynamo=True, verbose=False)
    model = onnx.load_from_string(file.getvalue())
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not grappler})
    function = tf.function(OnnxFunction(model)).get_concrete_function(tf.TensorSpec(shape, tf.float32))
    with torch.no_grad():
        expected = module(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(function(tf.constant(x.numpy())), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-4, atol=2e-6)


def test_an_operator_that_is_not_known_is_named() -> None:
    node = onnx.helper.make_node("Celu", ["x"], ["y"])
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    with pytest.raises(NotImplementedError, match="Celu"):
        OnnxFunction(onnx.helper.make_model(graph))(tf.zeros(2))


@pytest.mark.parametrize("peer", ["tensorflow", "tensorflow_plain", "tvm"])
def test_peers_compute_the_model(peer: str, tmp_path: Path) -> None:
    pytest.importorskip(peer.partition("_")[0])
    cases = [Case("ensemble_mlp", each, batch=1, dtype="float32", threads=1) for each in ("eager", peer)]
    row = measure_model(cases, Settings(rounds=1, round_s=0.01), tmp_path, lambda _: None)[1]
    assert row.reason == ""
    assert row.median_ms is not None
    assert row.median_ms > 0
    assert row.max_error is not None
    assert row.max_error < 1e-5
