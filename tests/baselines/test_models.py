"""The suite: architectures match the published ones, and are the same whenever they are built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

from baselines.models import EXTENDED, HELD_OUT, NAMES, build
from baselines.zoo import extended, held_out
from tests.crosses import nightly_but

# Of the published architectures; of the others, what their docstrings say they are made of.
NUM_PARAMETERS = {
    "inception_v3": 23_834_568,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "squeezenet1_1": 1_235_496,
    "bert_base": 109_482_240,
    "resnext50_32x4d": 25_028_904,
    "nasnet_a": 5_289_978,
    "nasrnn": 16 * 512 * 512 + 512,
    "vit_s16": 22_050_664,
    "gpt2": 124_439_808,
    "llama_gqa": 110_633_984,
    "mobilenet_v3": 5_483_032,
    "repvgg_a0": 9_108_968,
    "mobileone_s0": 5_293_272,
    "bert_lora": 109_482_240 + 12 * 4 * 2 * 16 * 768,
    "linear_attention": 1_579_520,
    "moe_loop": 8_439_872,
    "heads_loop": 10_639_872,
    "ensemble_mlp": 16 * (128 * 512 + 512 + 512 * 512 + 512 + 512 * 16 + 16),
    "toy_bert": 8 * 4 * 1024 * 1024,
}


# Of the published ones; the others have no checkpoint to be compared with.
NUM_OTHER_PARAMETERS = {
    "densenet121": 7_978_856 + 896,  # three biases before pools, which the published one has not
    "mobilenet_v2": 3_504_872,
    "efficientnet_b0": 5_288_548,
    "shufflenet_v2": 2_278_604,
    "convnext_t": 28_589_128,
    "swin_t": 28_288_354,
    "opt_125m": 125_239_296,
    "bart_base": 139_420_416,
    "clip_vision_b32": 87_456_000,
    "mobilenet_v1": 4_231_976,
    "mobilevit_s": 5_578_632,
    "mobilevit_v2": 4_901_841,
    "poolformer_s12": 11_915_176,
    "convnextv2_atto": 3_708_400,
    "regnet_x_400mf": 5_495_976,
    "efficientnet_b2": 9_109_994,
    "deit_tiny": 5_717_416 + 2 * 192,  # a token of the distilled one, and its position
    "distilbert": 66_362_880,
    "resnet56": 855_770 - 192,  # the published one's shortcuts have no kernels but pads
}


def tensors(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_suite_has_the_twenty_models() -> None:
    assert len(NAMES) == 20
    assert set(NAMES) == set(NUM_PARAMETERS)


@pytest.mark.parametrize("name", NUM_OTHER_PARAMETERS)
def test_other_models_are_as_published(name: str) -> None:
    with torch.device("meta"):
        model = (extended.ENTRIES | held_out.ENTRIES)[name][0]()
    assert sum(p.numel() for p in model.parameters()) == NUM_OTHER_PARAMETERS[name]


def test_other_models_are_others() -> None:
    assert len({*NAMES, *EXTENDED, *HELD_OUT}) == len(NAMES) + len(EXTENDED) + len(HELD_OUT)
    assert set(NUM_OTHER_PARAMETERS) < {*EXTENDED, *HELD_OUT}


@pytest.mark.parametrize(
    "name", ["shufflenet_v2", "ghostnet", "yolo", "diffusion_unet", "gemma_like", "resnet56", "gated_experts"]
)
@torch.no_grad()
def test_other_models_are_well_scaled(name: str) -> None:
    model, inputs = build(name)
    for output, again in zip(tensors(model(*inputs)), tensors(build(name)[0](*inputs)), strict=True):
        assert output.isfinite().all()
        assert 1e-3 < output.std() < 1e2
        assert torch.equal(output, again)


@pytest.mark.parametrize("name", nightly_but(["resnet18", "toy_bert", "nasrnn"], NAMES))
@torch.no_grad()
def test_model_is_as_published_and_well_scaled(name: str) -> None:
    model, inputs = build(name)
    assert sum(p.numel() for p in model.parameters()) == NUM_PARAMETERS[name]
    assert not any(module.training for module in model.modules())
    assert all(p.dtype == torch.float32 for p in model.parameters())
    for output in tensors(model(*inputs)):
        assert output.isfinite().all()
        assert 1e-3 < output.std() < 1e2
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            parameters = (module.weight, module.bias, module.running_mean, module.running_var)
            assert all(p.unique().numel() > 1 for p in parameters)
            assert (module.running_var > 0).all()
        bias = getattr(module, "bias", None)
        assert not isinstance(bias, Tensor) or bias.abs().max() > 0


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3", "nasrnn", "heads_loop"])
def test_build_is_deterministic_and_leaves_the_generator(name: str) -> None:
    state = torch.get_rng_state()
    first, (x,) = build(name)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(123)
    second, (y,) = build(name)
    assert torch.equal(x, y)
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("name", "axis"), [("squeezenet1_1", 0), ("nasrnn", 1), ("moe_loop", 0)])
@torch.no_grad()
def test_batch_changes_inputs_only(name: str, axis: int) -> None:
    one, (x,) = build(name)
    three, (y,) = build(name, batch=3)
    assert (x.shape[axis], y.shape[axis]) == (1, 3)
    assert three(y).shape[axis] == 3
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), three.parameters(), strict=True))


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no model named 'resnet5'.*resnet50"):
        build("resnet5")


def test_batch_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        build("nasrnn", batch=0)
