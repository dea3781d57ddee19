"""The built-in list of ONNX files: exports, files that packages carry, and quantised ones.

Each is written to a folder as `NAME.onnx`, next to `NAME.npz`, its inputs by name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import torch
from onnx import helper
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from baselines import models
from baselines.collection import table as collection
from baselines.trained.task import folder_of

Feeds = dict[str, np.ndarray]

_LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
_LIGHT_NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
    "vgg19", "zfnet512",
)  # fmt: skip

# Package, path in it, and shapes of the inputs whose sizes are free.
_CARRIED: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "magika": ("magika", "models/standard_v3_3/model.onnx", {"bytes": (4, 2048)}),
    "nudenet": ("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    "rapidocr_det": (
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
        {"x": (1, 3, 320, 320)},
    ),
    "rapidocr_rec": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "rapidocr_cls": (
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": (1, 3, 48, 192)},
    ),
    "ppocr_v6_det": ("rapidocr", "models/PP-OCRv6_det_small.onnx", {"x": (1, 3, 320, 320)}),
    "ppocr_v6_rec": ("rapidocr", "models/PP-OCRv6_rec_small.onnx", {"x": (1, 3, 48, 320)}),
    "ddddocr_det": ("ddddocr", "common_det.onnx", {}),
    "ddddocr_old": ("ddddocr", "common_old.onnx", {"input1": (1, 1, 64, 160)}),
    "silero_vad": (
        "silero_vad",
        "data/silero_vad.onnx",
        {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    ),
    "silero_vad_op15": (
        "silero_vad",
        "data/silero_vad_16k_op15.onnx",
        {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    ),
    "silero_vad_half": (
        "silero_vad",
        "data/silero_vad_half.onnx",
        {"input": (1, 576), "state": (2, 1, 128)},
    ),
    "silero_vad_v6": ("faster_whisper", "assets/silero_vad_v6.onnx", {"input": (50, 576)}),
    "silero_vad_openvino": ("silero_vad", "data/silero_vad_openvino_16k.onnx", {}),
    "basic_pitch": (
        "basic_pitch",
        "saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
    "nakdimon": ("piper", "hebrew/nakdimon.onnx", {"input_1": (1, 64)}),
    "tashkeel": (
        "piper",
        "tashkeel/model.onnx",
        {"char_inputs": (1, 32), "diac_inputs": (1, 32), "input_lengths": (1,)},
    ),
    "whisper_features": (
        "onnx_asr",
        "preprocessors/data/whisper80.onnx",
        {"waveforms": (1, 32000), "waveforms_lens": (1,)},
    ),
    "nemo_features": (
        "onnx_asr",
        "preprocessors/data/nemo80.onnx",
        {"waveforms": (1, 32000), "waveforms_lens": (1,)},
    ),
    "kaldi_features": (
        "onnx_asr",
        "preprocessors/data/kaldi.onnx",
        {"waveforms": (1, 32000), "waveforms_lens": (1,)},
    ),
}
# Integers that are no indices.
_VALUES = {"sr": 16000, "waveforms_lens": 32000, "input_lengths": 32}

# Exporter, opset, and how many of the first sizes of each input are free. Names with "/" are architectures of
# `baselines.collection`.
_EXPORTS: dict[str, tuple[str, int, int]] = {
    "squeezenet1_1": ("script", 11, 0),
    "shufflenet_v2": ("script", 12, 1),
    "mobilenet_v3": ("script", 13, 1),
    "deit_tiny": ("script", 14, 1),
    "levit_128s": ("script", 15, 1),
    "bert_tiny_128": ("script", 16, 2),
    "resnet18": ("script", 17, 0),
    "yolo": ("script", 11, 1),
    "resnet56": ("dynamo", 18, 0),
    "efficientnet_b0": ("dynamo", 18, 1),
    "segformer_b0": ("dynamo", 19, 0),
    "mobilevit_s": ("dynamo", 20, 1),
    "convnextv2_atto": ("dynamo", 20, 0),
    "electra_small": ("dynamo", 18, 2),
    "gated_experts": ("dynamo", 18, 0),
    "regnet_x_400mf": ("dynamo", 18, 1),
    "/gpt2": ("script", 17, 2),
    "/swin": ("script", 16, 0),
    "/lstm": ("script", 12, 1),
    "/clip": ("script", 17, 1),
    "/llama": ("dynamo", 18, 2),
    "/whisper": ("dynamo", 18, 0),
    "/deberta_v2": ("dynamo", 20, 0),
    "/detr": ("dynamo", 18, 0),
    "/gru": ("dynamo", 18, 0),
}
_QUANTISED = {"squeezenet1_1": "qdq", "resnet18": "qdq_channels", "bert_tiny_128": "dynamic", "yolo": "qdq"}


def _exported_name(name: str) -> str:
    exporter, opset, free = _EXPORTS[name]
    return f"{name.strip('/')}_{exporter}{opset}{'_free' if free else ''}"


class _Plain(nn.Module):
    """Takes tensors by position and returns those of the result."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The tensors of what the model returns, caches left out."""
        found = self.model(**dict(zip(self.names, inputs, strict=True)))
        if hasattr(found, "to_tuple"):
            found = found.to_tuple()
        return tuple(leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor))


def _export(name: str) -> Callable[[Path], Feeds]:
    exporter, opset, free = _EXPORTS[name]

    def write(path: Path) -> Feeds:
        if name.startswith("/"):
            case = collection.CASES[name[1:]]
            model = collection.build(case)
            if hasattr(getattr(model, "config", None), "use_cache"):
                model.config.use_cache = False
            given = collection.arguments(case, 2, 0)
            inputs: tuple[Tensor, ...] = tuple(given.values())
            model = _Plain(model, list(given))
        else:
            model, inputs = models.build(name, 2 if free else 1)
        names = [f"input_{number}" for number in range(len(inputs))]
        how: dict[str, Any]
        if exporter == "script":
            axes = {each: {axis: f"size_{axis}" for axis in range(free)} for each in names}
            how = {"dynamo": False, "dynamic_axes": axes if free else None}
        else:
            dim = torch.export.Dim.DYNAMIC
            shapes = tuple(dict.fromkeys(range(min(free, x.dim())), dim) for x in inputs)
            given_shapes = (shapes,) if isinstance(model, _Plain) else shapes  # of *inputs
            how = {"dynamo": True, "dynamic_shapes": given_shapes if free else None, "verbose": False}
            how["external_data"] = False
        with torch.no_grad():
            torch.onnx.export(model, inputs, str(path), opset_version=opset, input_names=names, **how)
        return dict(zip(names, (x.numpy() for x in inputs), strict=True))

    return write


def _copied(path_of: Callable[[], Path], shapes: dict[str, tuple[int, ...]]) -> Callable[[Path], Feeds]:
    def write(path: Path) -> Feeds:
        source = path_of()
        proto = onnx.load(source)
        path.write_bytes(source.read_bytes())
        return drawn(proto, shapes)

    return write


def drawn(proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], size: int = 64) -> Feeds:
    """Random inputs of a model.

    Args:
        proto: the model.
        shapes: of inputs by name.
        size: what other free sizes are, except first ones, which are 1.
    """
    weights = {tensor.name for tensor in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name in weights:
            continue
        random = np.random.default_rng(zlib.crc32(value.name.encode()))
        kind = value.type.tensor_type
        free = [dim.dim_value or (size if at else 1) for at, dim in enumerate(kind.shape.dim)]
        shape = shapes.get(value.name, tuple(free))
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if value.name in _VALUES:
            feeds[value.name] = np.full(shape, _VALUES[value.name], dtype)
        elif dtype.kind == "f":
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            feeds[value.name] = random.integers(0, 2, shape).astype(dtype)
    return feeds


def _quantised(name: str, how: str) -> Callable[[Path], Feeds]:
    def write(path: Path) -> Feeds:
        from onnxruntime import quantization as q

        plain = path.with_name(f"{_exported_name(name)}.onnx")
        with np.load(made(_exported_name(name), plain.parent).with_suffix(".npz")) as found:
            feeds = dict(found)
        if how == "dynamic":
            q.quantize_dynamic(plain, path)
            return feeds

        class Reader(q.CalibrationDataReader):  # type: ignore[misc]  # its package has no types
            def __init__(self) -> None:
                random = np.random.default_rng(0)
                calls = [{key: random.standard_normal(x.shape, np.float32) for key, x in feeds.items()}
                         for _ in range(4)]  # fmt: skip
                self.calls = iter(calls)

            def get_next(self) -> Feeds | None:
                return next(self.calls, None)

        q.quantize_static(plain, path, Reader(), quant_format=q.QuantFormat.QDQ, per_channel=how != "qdq")
        return feeds

    return write


def _light(name: str) -> Callable[[Path], Feeds]:
    return _copied(lambda: _LIGHT / f"light_{name}.onnx", {})


def _carried(package: str, file: str, shapes: dict[str, tuple[int, ...]]) -> Callable[[Path], Feeds]:
    return _copied(lambda: folder_of(package) / file, shapes)


FILES: dict[str, Callable[[Path], Feeds]] = {
    **{
        f"light_{name}": _copied(lambda name=name: _LIGHT / f"light_{name}.onnx", {}) for name in _LIGHT_NAMES
    },
    **{name: _carried(*row) for name, row in _CARRIED.items()},
    **{_exported_name(name): _export(name) for name in _EXPORTS},
    **{f"{name}_{how}": _quantised(name, how) for name, how in _QUANTISED.items()},
}
"""What writes each file to a path, and returns inputs for it; ModuleNotFoundError without its package."""


def made(name: str, folder: Path) -> Path:
    """The path of one of `FILES` in a folder; it is written if it is not there."""
    path = folder / f"{name}.onnx"
    if not path.with_suffix(".npz").is_file():
        feeds = FILES[name](path)
        np.savez(path.with_suffix(".npz"), **feeds)
    return path
