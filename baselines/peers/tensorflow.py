"""TensorFlow, with and without its graph rewriter Grappler."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from baselines.peers.runtimes import ExportedPeer

if TYPE_CHECKING:
    import tensorflow as tf


class TensorFlowPeer(ExportedPeer):
    """The exported model in TensorFlow's operators, as one traced function with constant weights.

    The peer "tensorflow" uses Grappler's defaults: it folds constants, fuses convolutions and products with
    the operators that follow, and rewrites layouts and arithmetic. "tensorflow_plain" has all of that
    switched off.
    """

    package = "tensorflow"

    def _load(self) -> tuple[list[str], Callable[[dict[str, np.ndarray]], list[np.ndarray]]]:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf

        from baselines.peers.onnx_to_tensorflow import OnnxFunction

        tf.config.threading.set_intra_op_parallelism_threads(self._case.threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": self._case.peer == "tensorflow_plain"}
        )
        model = OnnxFunction(onnx.load(self._folder / "model.onnx"))
        with np.load(self._folder / "inputs.npz") as arrays:
            specs = [tf.TensorSpec(each.shape, each.dtype) for each in arrays.values()]
        function = tf.function(model).get_concrete_function(*specs)
        return model.inputs, lambda feed: _called(function, feed)


def _called(function: tf.types.experimental.ConcreteFunction, feed: dict[str, np.ndarray]) -> list[Any]:
    import tensorflow as tf

    return [each.numpy() for each in function(*map(tf.constant, feed.values()))]
