"""An ONNX model as a TensorFlow function, as a TensorFlow expert would write it.

TensorFlow's convolutions and pools on a CPU need channels last. Values stay in that layout between them, so
that no transposes are needed; operators that need the other layout get it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from onnx import numpy_helper

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class _Value:
    """A tensor in ONNX's layout, in channels last, or in both after both were requested."""

    def __init__(self, first: Any = None, last: Any = None) -> None:
        self._first, self._last = first, last

    @property
    def is_last(self) -> bool:
        """Whether it was created with channels last."""
        return self._first is None

    @property
    def first(self) -> Any:
        """In ONNX's layout."""
        return tf.transpose(self._last, _TO_FIRST) if self._first is None else self._first

    @property
    def last(self) -> Any:
        """With channels last; only for four axes."""
        if self._last is None:
            self._last = tf.transpose(self._first, _TO_LAST)
        return self._last


class OnnxFunction:
    """An ONNX model with TensorFlow's operators; traced by `tf.function`.

    Args:
        model: of float32, with static shapes.

    Raises:
        NotImplementedError: at a call, for an operator, or a use of it, that is not supported here.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        self.inputs = [each.name for each in model.graph.input if each.name not in self._constants]

    def __call__(self, *inputs: Any) -> list[Any]:
        """The outputs, in ONNX's layout."""
        values = {name: _Value(tensor) for name, tensor in zip(self.inputs, inputs, strict=True)}
        values |= {name: _Value(tf.constant(array)) for name, array in self._constants.items()}
        for node in self._graph.node:
            operands = [values.get(name) for name in node.input]
            attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            for name, value in zip(node.output, self._results(node, operands, attributes), strict=False):
                values[name] = value
        return [values[each.name].first for each in self._graph.output]

    def _results(
        self, node: onnx.NodeProto, operands: Sequence[_Value | None], attributes: Mapping[str, Any]
    ) -> list[_Value]:
        kind, given = node.op_type, [each for each in operands if each is not None]
        if kind == "Constant":
            array = numpy_helper.to_array(attributes["value"])
            self._constants[node.output[0]] = array
            return [_Value(tf.constant(array))]
        if kind in _ON_IMAGES:
            return [_ON_IMAGES[kind](given, attributes, [self._constants.get(name) for name in node.input])]
        if kind in _ELEMENTWISE:
            return [_elementwise(_ELEMENTWISE[kind], given)]
        if kind == "Concat" and attributes["axis"] in (1, -3) and any(each.is_last for each in given):
            return [_Value(last=tf.concat([each.last for each in given], 3))]
        if kind == "ReduceMean" and given[0].is_last:
            axes = self._constants[node.input[1]].tolist()
            if sorted(axis % 4 for axis in axes) == [2, 3] and attributes.get("keepdims", 1):
                return [_Value(last=tf.reduce_mean(given[0].last, [1, 2], keepdims=True))]
        if kind not in _PLAIN:
            raise NotImplementedError(f"the ONNX operator {kind} has no form in TensorFlow here")
        known = [self._constants.get(name) for name in node.input]
        found = _PLAIN[kind]([None if each is None else each.first for each in operands], attributes, known)
        return [_Value(each) for each in found] if isinstance(found, list) else [_Value(found)]


def _elementwise(function: Callable[..., Any], operands: Sequence[_Value]) -> _Value:
    """Apply it with channels last if an operand has that layout and the others can be converted to it."""
    if any(each.is_last for each in operands):
        if all(each.is_last or each.first.shape.rank == 4 for each in operands):
            return _Value(last=function(*(each.last for each in operands)))
        if all(each.is_last or each.first.shape.num_elements() == 1 for each in operands):
            return _Value(last=function(*(each.last if each.is_last else each.first for each in operands)))
    return _Value(function(*(each.first for each in operands)))


def _pads(attributes: Mapping[str, Any]) -> list[list[int]]:
    """Padding of a channels-last image, on each side of each axis."""
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise NotImplementedError("auto_pad is not written here")
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    return [[0, 0], [top, bottom], [left, right], [0, 0]]


def _conv(operands: Sequence[_Value], attributes: Mapping[str, Any], known: Sequence[Any]) -> _Value:
    image, weights, groups = operands[0].last, known[1], attributes.get("group", 1)
    if weights is None or weights.ndim != 4:
        raise NotImplementedError("a convolution that is not of images by constant weights")
    strides = list(attributes.get("strides", (1, 1)))
    dilations = list(attributes.get("dilations", (1, 1)))
    kernel = weights.transpose(2, 3, 1, 0)  # height, width, channels of a group, outputs
    if groups == 1:
        out = tf.nn.conv2d(image, kernel, strides, _pads(attributes), dilations=dilations)
    elif groups == image.shape[3] and weights.shape[1] == 1 and strides[0] == strides[1]:
        height, width, _, outputs = kernel.shape
        kernel = kernel.reshape(height, width, groups, outputs // groups)
        # Padded beforehand: with explicit padding Grappler's fused form aborts the process (2.21).
        padded = tf.pad(image, _pads(attributes))
        out = tf.nn.depthwise_conv2d(padded, kernel, [1, *strides, 1], "VALID", dilations=dilations)
    else:
        parts = zip(tf.split(image, groups, 3), np.split(kernel, groups, 3), strict=True)
        pads = _pads(attributes)
        out = tf.concat([tf.nn.conv2d(*each, strides, pads, dilations=dilations) for each in parts], 3)
    return _Value(last=out if len(operands) < 3 else tf.nn.bias_add(out, operands[2].first))


def _pool_pads(
    image: Any, attributes: Mapping[str, Any], window: Sequence[int], strides: Sequence[int]
) -> list[list[int]]:
    """Padding including what `ceil_mode` adds at the end, if a window still begins within the image."""
    pads = _pads(attributes)
    if attributes.get("ceil_mode", 0):
        for axis in (0, 1):
            before, after = pads[1 + axis]
            size = image.shape[1 + axis]
            count = math.ceil((size + before + after - window[axis]) / strides[axis]) + 1
            if (count - 1) * strides[axis] >= size + before:
                count -= 1
            pads[1 + axis][1] = max(after, (count - 1) * strides[axis] + window[axis] - size - before)
    return pads


def _max_pool(operands: Sequence[_Value], attributes: Mapping[str, Any], known: Sequence[Any]) -> _Value:
    image, window = operands[0].last, attributes["kernel_shape"]
    strides = attributes.get("strides", (1, 1))
    pads = _pool_pads(image, attributes, window, strides)
    padded = tf.pad(image, pads, constant_values=-math.inf) if np.any(pads) else image
    return _Value(last=tf.nn.max_pool2d(padded, window, strides, "VALID"))


def _average_pool(operands: Sequence[_Value], attributes: Mapping[str, Any], known: Sequence[Any]) -> _Value:
    image, window = operands[0].last, attributes["kernel_shape"]
    strides = attributes.get("strides", (1, 1))
    pads = _pool_pads(image, attributes, window, strides)
    if not np.any(pads):
        return _Value(last=tf.nn.avg_pool2d(image, window, strides, "VALID"))
    sums = tf.nn.avg_pool2d(tf.pad(image, pads), window, strides, "VALID")
    # The share of each window that counts: the image, and the explicit padding if that counts too.
    counts = np.ones((1, *image.shape[1:3], 1), np.float32)
    meant = _pads(attributes)
    counts = np.pad(counts, meant, constant_values=attributes.get("count_include_pad", 0))
    rest = [(before - own[0], after - own[1]) for (before, after), own in zip(pads, meant, strict=True)]
    share = tf.nn.avg_pool2d(np.pad(counts, rest), window, strides, "VALID")
    return _Value(last=sums / share)


def _gemm(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    a_across, b_across = (bool(attributes.get(name, 0)) for name in ("transA", "transB"))
    out = tf.matmul(x[0], x[1], transpose_a=a_across, transpose_b=b_across) * attributes.get("alpha", 1.0)
    return out + attributes.get("beta", 1.0) * x[2] if len(x) > 2 else out


def _layer_norm(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    axes = list(range(attributes.get("axis", -1) % x[0].shape.rank, x[0].shape.rank))
    mean, variance = tf.nn.moments(x[0], axes, keepdims=True)
    # Not `tf.nn.batch_normalization`: Grappler's version of it with oneDNN (2.21) is wrong by 3 %.
    normal = (x[0] - mean) * tf.math.rsqrt(variance + attributes.get("epsilon", 1e-5)) * x[1]
    return normal + x[2] if len(x) > 2 else normal


def _gather_elements(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    return tf.experimental.numpy.take_along_axis(x[0], x[1], attributes.get("axis", 0))


def _gelu(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    return tf.nn.gelu(x[0], approximate=attributes.get("approximate", b"none") == b"tanh")


def _reshape(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    sizes = [x[0].shape[axis] if size == 0 else int(size) for axis, size in enumerate(_of(known, 1))]
    return tf.reshape(x[0], sizes)


def _reduce_mean(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    return tf.reduce_mean(x[0], _of(known, 1), keepdims=bool(attributes.get("keepdims", 1)))


def _split(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> list[Any]:
    return list(tf.split(x[0], _of(known, 1), attributes.get("axis", 0)))


def _slice(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    starts, ends = _of(known, 1), _of(known, 2)
    axes = _of(known, 3) if len(x) > 3 else list(range(len(starts)))
    steps = _of(known, 4) if len(x) > 4 else [1] * len(starts)
    cuts = [slice(None)] * x[0].shape.rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cuts[axis] = slice(start, min(end, x[0].shape[axis]) if step > 0 else end, step)
    return x[0][tuple(cuts)]


def _squeeze(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    return tf.squeeze(x[0], _of(known, 1))


def _unsqueeze(x: Sequence[Any], attributes: Mapping[str, Any], known: Sequence[Any]) -> Any:
    rank = x[0].shape.rank + len(_of(known, 1))
    for axis in sorted(axis % rank for axis in _of(known, 1)):
        x = [tf.expand_dims(x[0], axis)]
    return x[0]


def _of(known: Sequence[Any], index: int) -> list[int]:
    """The value of an operand that must be constant."""
    if known[index] is None:
        raise NotImplementedError("sizes that are computed")
    return [int(each) for each in np.atleast_1d(known[index])]


_ON_IMAGES: Mapping[str, Callable[..., _Value]] = {
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
}
_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "Add": tf.add,
    "Sub": tf.subtract,
    "Mul": tf.multiply,
    "Div": tf.divide,
    "Pow": tf.pow,
    "Relu": tf.nn.relu,
    "Sigmoid": tf.sigmoid,
    "Tanh": tf.tanh,
    "Erf": tf.math.erf,
    "Sqrt": tf.sqrt,
    "HardSigmoid": lambda x: tf.clip_by_value(x / 6 + 0.5, 0, 1),
    "HardSwish": lambda x: x * tf.clip_by_value(x / 6 + 0.5, 0, 1),
    "Identity": tf.identity,
    "IsNaN": tf.math.is_nan,
    "Where": tf.where,
}
_PLAIN: Mapping[str, Callable[..., Any]] = {
    "Concat": lambda x, attributes, known: tf.concat(x, attributes["axis"]),
    "Gather": lambda x, attributes, known: tf.gather(x[0], x[1], axis=attributes.get("axis", 0)),
    "GatherElements": _gather_elements,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "MatMul": lambda x, attributes, known: tf.matmul(x[0], x[1]),
    "ReduceMean": _reduce_mean,
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": lambda x, attributes, known: tf.nn.softmax(x[0], attributes.get("axis", -1)),
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": lambda x, attributes, known: tf.transpose(x[0], attributes["perm"]),
    "Unsqueeze": _unsqueeze,
}
