"""ONNX models that packages carry, as PyTorch modules; the packages are not imported."""

from __future__ import annotations

import builtins
import difflib
import itertools
import json
import keyword
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import onnx
import onnx_ir
import torch
from onnx import version_converter
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, fx, nn

from baselines.trained.task import CALLS, Answers, Trained, accuracy, folder_of, reference
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.onnx.constants import folded

aten = torch.ops.aten

_OPSET = 17  # the oldest of these files has 12


class OnnxModule(nn.Module):
    """The ATen calls of an ONNX model, with inputs of fixed sizes.

    Args:
        model: has static weights.
        *shapes: of its inputs.
    """

    def __init__(self, model: onnx.ModelProto, *shapes: Sequence[int]) -> None:
        super().__init__()
        if model.opset_import[0].version < _OPSET:
            model = version_converter.convert_version(model, _OPSET)
        for value, shape in zip(model.graph.input, shapes, strict=True):
            for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                dim.dim_value = size
        del model.graph.value_info[:]  # of other sizes
        self.calls = lower_model(onnx_ir.from_proto(folded(model)))
        # Autocast knows convolutions by the number of their dimensions only.
        for node in self.calls.graph.find_nodes(op="call_function", target=aten.convolution.default):
            x, weight, bias, *window, transposed, _, groups = node.args
            if not transposed:
                node.target = (aten.conv1d.default, aten.conv2d.default)[len(window[0]) - 1]
                node.args = (x, weight, bias, *window, groups)
        self.calls.recompile()

    def forward(self, *inputs: Tensor) -> Any:
        """The outputs of the model."""
        outputs = self.calls(*inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def double(self) -> OnnxModule:
        """Compute in float64, also where the graph names float32."""

        def wider(argument: Any) -> Any:
            return torch.float64 if argument is torch.float32 else argument

        for node in self.calls.graph.nodes:
            node.args, node.kwargs = (fx.node.map_aggregate(each, wider) for each in (node.args, node.kwargs))
        self.calls.recompile()
        return super().double()


def magika() -> Trained:
    """Google's detector of file types on 16 files in a call: accuracy on those of Matplotlib and NumPy."""
    folder = folder_of("magika") / "models" / "standard_v3_3"
    names = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    labels = {
        ".py": "python", ".png": "png", ".svg": "svg", ".pdf": "pdf", ".ttf": "ttf", ".css": "css",
        ".html": "html", ".js": "javascript", ".csv": "csv", ".pyc": "pythonbytecode", ".so": "elf",
    }  # fmt: skip
    by_kind = [
        sorted(file for package in ("matplotlib", "numpy") for file in folder_of(package).rglob(f"*{suffix}"))
        for suffix in labels
    ]
    random = np.random.default_rng(0)
    kinds = random.integers(len(labels), size=(CALLS, 16))
    calls = []
    for row in kinds:
        contents = [by_kind[kind][random.integers(len(by_kind[kind]))].read_bytes() for kind in row]
        first = [list(each[:4096].lstrip()[:1024]) for each in contents]
        last = [list(each[-4096:].rstrip()[-1024:]) for each in contents]
        tokens = [a + [256] * (2048 - len(a) - len(b)) + b for a, b in zip(first, last, strict=True)]
        calls.append((torch.tensor(tokens, dtype=torch.int32),))
    truth = np.array([names.index(label) for label in labels.values()])[kinds[CALLS // 2 :]].ravel()
    model = OnnxModule(onnx.load(folder / "model.onnx"), calls[0][0].shape)
    return Trained.halved(model, calls, figure=accuracy(truth), unit="accuracy")


def rapidocr() -> Trained:
    """The recogniser of PP-OCRv4 on four lines of text in a call: the share of characters that it reads."""
    model = onnx.load(folder_of("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_rec_infer.onnx")
    characters = ["", *model.metadata_props[0].value.splitlines(), " "]
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 30)
    random = np.random.default_rng(0)
    words = random.choice([*keyword.kwlist, *filter(str.isalnum, dir(builtins))], (CALLS, 4, 2))
    lines = [[" ".join(pair)[:18] for pair in each] for each in words]

    def drawn(text: str) -> np.ndarray:
        image = Image.new("RGB", (320, 48), "white")
        ImageDraw.Draw(image).text((4, 5), text, "black", font)
        noisy = np.asarray(image, np.float32) + 20 * random.standard_normal((48, 320, 3))
        return noisy.clip(0, 255).transpose(2, 0, 1) / 127.5 - 1

    calls = [(torch.tensor(np.stack([*map(drawn, each)]), dtype=torch.float32),) for each in lines]

    def read(scores: np.ndarray) -> str:
        return "".join(characters[at] for at, _ in itertools.groupby(scores.argmax(-1)))

    def similarity(answers: Answers) -> float:
        found = [read(each) for call in answers for each in call[0]]
        pairs = zip(found, itertools.chain(*lines[CALLS // 2 :]), strict=True)
        return float(np.mean([difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs]))

    return Trained.halved(OnnxModule(model, calls[0][0].shape), calls, figure=similarity, unit="similarity")


def nudenet() -> Trained:
    """A YOLOv8 with 18 classes on parts of a portrait: overlap of the likeliest box with that in float32."""
    portrait = Image.open(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg")
    random = np.random.default_rng(0)
    calls = []
    for _ in range(CALLS):
        size = int(random.uniform(320, 510))
        left, top = random.integers(512 - size), random.integers(606 - size)
        part = np.asarray(portrait.crop((left, top, left + size, top + size)).resize((320, 320)))
        calls.append((torch.tensor(part.transpose(2, 0, 1)[None] / 255, dtype=torch.float32),))
    model = OnnxModule(onnx.load(folder_of("nudenet") / "320n.onnx"), calls[0][0].shape)
    expected = reference(model, calls[CALLS // 2 :])

    def likeliest(output: np.ndarray) -> tuple[int, np.ndarray]:
        label, at = np.unravel_index(output[0, 4:].argmax(), output[0, 4:].shape)
        (x, y), (width, height) = output[0, :2, at], output[0, 2:4, at]
        return int(label), np.array([[x - width / 2, y - height / 2], [x + width / 2, y + height / 2]])

    def overlap(answers: Answers) -> float:
        found = []
        for call, own in zip(answers, expected(), strict=True):
            (label, a), (wanted, b) = likeliest(call[0]), likeliest(own)
            common = np.clip(np.minimum(a[1], b[1]) - np.maximum(a[0], b[0]), 0, None).prod()
            union = (a[1] - a[0]).prod() + (b[1] - b[0]).prod() - common
            found.append((label == wanted) * common / union)
        return float(np.mean(found))

    return Trained.halved(model, calls, figure=overlap, unit="overlap")
