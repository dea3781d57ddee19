"""The built-in list of ONNX files: exports, and files that packages carry.

Each is written to a folder as `NAME.onnx`, next to `NAME.npz`, its inputs by name.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import torch
from onnx import helper

from baselines import models

Feeds = dict[str, np.ndarray]

_LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
_LIGHT_NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
    "vgg19", "zfnet512",
)  # fmt: skip

# Package, path in it, and shapes of the inputs whose sizes are free.
_CARRIED: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "magika": ("magika", "models/standard_v3_3/model.onnx", {"bytes": (4, 2048)}),
    "rapidocr_cls": (
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}
    ),
    "silero_vad_v6": ("faster_whisper", "assets/silero_vad_v6.onnx", {"input": (50, 576)}),
    "silero_vad_openvino": ("silero_vad", "data/silero_vad_openvino_16k.onnx", {}),
    "basic_pitch": (
        "basic_pitch", "saved_models/icassp_2022/nmp.onnx", {"serving_default_input_2:0": (1, 43844, 1)}
    ),
    **{
        f"{name}_features": (
            "onnx_asr", f"preprocessors/data/{file}.onnx", {"waveforms": (1, 32000), "waveforms_lens": (1,)}
        )
        for name, file in (("whisper", "whisper80"), ("nemo", "nemo80"), ("kaldi", "kaldi"))
    },
}  # fmt: skip
# Integers that are no indices.
_VALUES = {"waveforms_lens": 32000}

# Models of the suite by the exporter, its opset, and whether their batch is free.
_EXPORTS: dict[str, tuple[str, int, bool]] = {
    "squeezenet1_1": ("script", 11, False),
    "yolo": ("script", 11, True),
    "resnet18": ("script", 17, False),
    "resnet56": ("dynamo", 18, False),
    "efficientnet_b0": ("dynamo", 18, True),
    "mobilevit_s": ("dynamo", 20, True),
}


def _exported_name(name: str) -> str:
    exporter, opset, is_free = _EXPORTS[name]
    return f"{name}_{exporter}{opset}{'_free' if is_free else ''}"


def _export(name: str) -> Callable[[Path], Feeds]:
    exporter, opset, is_free = _EXPORTS[name]

    def write(path: Path) -> Feeds:
        model, (x,) = models.build(name, 2 if is_free else 1)
        how: dict[str, Any]
        if exporter == "script":
            how = {"dynamo": False, "dynamic_axes": {"input_0": {0: "size_0"}} if is_free else None}
        else:
            shapes = ({0: torch.export.Dim.DYNAMIC},) if is_free else None
            how = {"dynamo": True, "dynamic_shapes": shapes, "verbose": False, "external_data": False}
        with torch.no_grad():
            torch.onnx.export(model, (x,), str(path), opset_version=opset, input_names=["input_0"], **how)
        return {"input_0": x.numpy()}

    return write


def _folder_of(package: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    return Path(spec.origin).parent


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


FILES: dict[str, Callable[[Path], Feeds]] = {
    **{
        f"light_{name}": _copied(lambda name=name: _LIGHT / f"light_{name}.onnx", {}) for name in _LIGHT_NAMES
    },
    **{
        name: _copied(lambda package=package, file=file: _folder_of(package) / file, shapes)
        for name, (package, file, shapes) in _CARRIED.items()
    },
    **{_exported_name(name): _export(name) for name in _EXPORTS},
}
"""What writes each file to a path, and returns inputs for it; ModuleNotFoundError without its package."""


def made(name: str, folder: Path) -> Path:
    """The path of one of `FILES` in a folder; it is written if it is not there."""
    path = folder / f"{name}.onnx"
    if not path.with_suffix(".npz").is_file():
        feeds = FILES[name](path)
        np.savez(path.with_suffix(".npz"), **feeds)
    return path
