"""Small models that are trained here, once for each user: on handwritten digits, and on English text."""

from __future__ import annotations

import os
import re
import sysconfig
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import platformdirs
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification

from baselines.trained.task import Trained, accuracy
from baselines.zoo.blocks import norm_conv
from baselines.zoo.entries import NO_CACHE, PlainTensors
from baselines.zoo.resnet import Residual

_BATCH = 64  # images of digits
_TEXTS, _LENGTH = 8, 128  # bytes of a text
_CALIBRATION = 15  # calls


def _fit(name: str, make: Callable[[], nn.Module], batch: Callable[[], Call], steps: int) -> nn.Module:
    """Train a classifier, or take its weights from the cache.

    Args:
        name: of its file.
        make: makes it, untrained.
        batch: draws inputs and labels.
        steps: of AdamW.
    """
    version = zlib.crc32(Path(__file__).read_bytes())
    path = platformdirs.user_cache_path("torchrlopt-baselines") / f"{name}_{version:08x}.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        if not path.exists():
            optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
            rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
            for _ in range(steps):
                inputs, labels = batch()
                scores = model(inputs)
                loss = nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                rates.step()
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(f".{os.getpid()}")
            save_file(model.state_dict(), aside)
            aside.replace(path)
    model.load_state_dict(load_file(path))
    return model.eval()


Call = tuple[Tensor, Tensor]


def _digits(name: str, make: Callable[[], nn.Module], steps: int) -> Trained:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    xs = torch.tensor(images / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8)
    ys = torch.tensor(labels)
    end = len(xs) // 4 // _BATCH * _BATCH  # the last quarter, by other writers, is held out
    known, held_out = xs[:-end], xs[-end:].split(_BATCH)

    def batch() -> Call:
        picked = torch.randint(len(known), (_BATCH,))
        return known[picked] + 0.1 * torch.randn(_BATCH, 1, 8, 8), ys[picked]

    model = _fit(name, make, batch, steps)
    inputs, *others = known[: (1 + _CALIBRATION) * _BATCH].split(_BATCH)
    calls = [(x,) for x in held_out]
    return Trained(model, (inputs,), [(x,) for x in others], calls, accuracy(ys[-end:].numpy()), "accuracy")


def digits_vit() -> Trained:
    """A vision transformer of 4 layers: images [64, 1, 8, 8] to logits [64, 10]."""
    config = ViTConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, image_size=8,
        patch_size=2, num_channels=1, num_labels=10,
    )  # fmt: skip

    def make() -> nn.Module:
        return PlainTensors(ViTForImageClassification(config), "pixel_values", ("logits",))

    return _digits("digits_vit", make, 600)


def digits_cnn() -> Trained:
    """A residual network of 7 convolutions: images [64, 1, 8, 8] to logits [64, 10]."""

    def make() -> nn.Module:
        layers = [*norm_conv(1, 32, 3), nn.ReLU()]
        for width in (32, 64, 128):
            branch = (*norm_conv(width, width, 3), nn.ReLU(), *norm_conv(width, width, 3))
            layers += [Residual(nn.Sequential(*branch), nn.Identity())]
            layers += [*norm_conv(width, 2 * width, 1, 2), nn.ReLU()] if width < 128 else []
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    return _digits("digits_cnn", make, 600)


def docstrings_decoder() -> Trained:
    """A Llama of 4 layers on bytes: texts [8, 128] to logits [8, 128, 128]; perplexity of a byte."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts: tuple[list[str], list[str]] = ([], [])
    for file in files:
        found = re.findall(r'"""(.*?)"""', file.read_text(encoding="utf-8"), re.DOTALL)
        texts[zlib.crc32(file.name.encode()) % 8 == 0].extend(found)  # an eighth of the modules is held out
    known, held_out = (torch.tensor(list("\n".join(own).encode("ascii", "ignore"))) for own in texts)

    def batch(many: int = 16) -> Call:
        starts = torch.randint(len(known) - _LENGTH - 1, (many, 1))
        picked = known[starts + torch.arange(_LENGTH + 1)]
        return picked[:, :-1], picked[:, 1:]

    config = LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=_LENGTH,
    )  # fmt: skip

    def make() -> nn.Module:
        return PlainTensors(LlamaForCausalLM(config), "input_ids", ("logits",), **NO_CACHE)

    model = _fit("docstrings_decoder", make, batch, 600)
    size = _TEXTS * _LENGTH
    calls = [(x.reshape(_TEXTS, _LENGTH),) for x in held_out[: 16 * size].split(size)]
    inputs, *others = [(x.reshape(_TEXTS, _LENGTH),) for x in known[: (1 + _CALIBRATION) * size].split(size)]

    def perplexity(answers: list[list[np.ndarray]]) -> float:
        logits = torch.cat([torch.from_numpy(call[0])[:, :-1].flatten(0, 1).double() for call in answers])
        labels = torch.cat([ids[:, 1:].flatten() for (ids,) in calls])
        return float(nn.functional.cross_entropy(logits, labels).exp())

    return Trained(model, inputs, others, calls, perplexity, "perplexity")
