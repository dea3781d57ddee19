"""Names of the models with trained weights."""

from __future__ import annotations

import importlib
import importlib.util

from baselines.trained.task import Trained

#: Names of the models, in the order of reports: functions of `baselines.trained.fitted`.
NAMES = ("digits_vit", "digits_cnn", "docstrings_decoder")


def missing(name: str) -> str:
    """The command that installs what a model needs, if that is missing."""
    has_digits = importlib.util.find_spec("sklearn") is not None
    return "" if has_digits or not name.startswith("digits") else "pip install scikit-learn"


def trained(name: str) -> Trained:
    """A model, inputs, inputs that were held out, and how good its answers to these are.

    Models are trained in the first call, which takes minutes, and kept in the cache of the user.

    Args:
        name: one of `NAMES`.

    Raises:
        ValueError: there is no such model, or its package is missing.
    """
    if name not in NAMES:
        raise ValueError(f"no trained model named {name!r}; choose one of: {', '.join(NAMES)}")
    if todo := missing(name):
        raise ValueError(f"{name} needs a package: {todo}")
    made: Trained = getattr(importlib.import_module("baselines.trained.fitted"), name)()
    return made
