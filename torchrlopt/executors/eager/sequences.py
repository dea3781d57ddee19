"""Groups consecutive calls of our kernels into one call.

In a network of small convolutions, each call costs microseconds: in Python, for allocating a tensor, for
waking up threads. `csrc/kernels/sequence.h` runs many calls in one parallel region, on memory planned in
advance. A sequence also includes operations between the kernels if they are pointwise on images or rows,
slices, or views with other sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.capture.footprint import cpu_bytes_of_calls
from torchrlopt.executors.eager.grouping import LEAST_KERNELS, SPLITS, incomplete, scheduled
from torchrlopt.executors.eager.kernels import indirect, packing
from torchrlopt.executors.eager.kernels.conversions import is_conversion
from torchrlopt.executors.eager.kernels.epilogues import NONE, Epilogue
from torchrlopt.executors.eager.kernels.library import direct_form
from torchrlopt.executors.eager.kernels.operators import KERNELS, LINEAR, ROOM, WRITERS, place_of
from torchrlopt.executors.eager.kernels.sequence import SEQUENCE, SEQUENCE_INTO, Instruction, Program
from torchrlopt.executors.lowering.fx_values import (
    arguments,
    is_contiguous,
    is_mutable,
    shape_key,
    tensor_of,
)
from torchrlopt.executors.lowering.lazy_code import lazy_module
from torchrlopt.ops.traits import RESHAPES

aten = torch.ops.aten

_ROOMS = WRITERS | {ROOM, indirect.joined}

_PACKED = frozenset({packing.CONVOLUTION, packing.CONVOLUTION_ADD})
_MAKE_IMAGES = (KERNELS | _PACKED | {indirect.joined}) - {LINEAR}
"""Their results are in channels_last."""

_SMALL_BYTES = 16 << 20
"""If values take less memory than this at a time, it does not matter when a sequence starts."""

_RANKS_OF_ROWS = (2, 3)
"""Must match `is_of_rows` in csrc/kernels/shapes.h."""


class _Pointwise(NamedTuple):
    """A pointwise operation, by its name in `_C.POINTWISE_OPERATIONS`, and the activation that follows it.

    `dtype` is the result's if it differs from the image's.
    """

    name: str
    image: fx.Node
    other: fx.Node | None
    epilogue: Epilogue
    dtype: torch.dtype | None = None

    @property
    def numbers(self) -> tuple[float, ...]:
        kind = _C.POINTWISE_OPERATIONS.index(self.name)
        return (kind, *indirect.numbers_of(self.epilogue), indirect.element_of(self.dtype))


def with_sequences(module: fx.GraphModule) -> fx.GraphModule | None:
    """A copy of a graph with kernel calls grouped into sequences; None if there are none to group.

    Args:
        module: the part of a graph that runs in every call, with `meta["val"]` and ATen overloads.
    """
    graph = module.graph
    num_kernels = sum(node.target in KERNELS for node in graph.nodes)
    taken = {
        node for node in graph.nodes if node.target in KERNELS | _ROOMS and indirect.are_for(tensor_of(node))
    }
    if num_kernels < LEAST_KERNELS or any(
        is_mutable(node) and node.target not in WRITERS for node in graph.nodes
    ):
        return None
    between = _between(graph)
    taken |= between.keys()
    # Many large values may be live before a long sequence. If so, start sequences as early as possible.
    most = max(cpu_bytes_of_calls(graph), _SMALL_BYTES)
    made = _gathered(module, set(taken), between, is_early=False)
    if made is not None and cpu_bytes_of_calls(made) > most:
        made = _gathered(module, set(taken), between, is_early=True)
    return None if made is None else lazy_module(module, made)


def _gathered(
    module: fx.GraphModule,
    taken: set[fx.Node],
    between: Mapping[fx.Node, _Pointwise | None],
    is_early: bool,
) -> fx.Graph | None:
    while True:
        groups = scheduled(module.graph, taken, is_early)
        wrong = incomplete([each for each in groups if each[0] in taken])
        if not wrong:
            break
        taken -= wrong
    if not any(node in taken for group in groups for node in group):
        return None
    made = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for group in groups:
        if group[0] in taken:
            _gather(group, between, made, new)
        else:
            new[group[0]] = made.node_copy(group[0], new.__getitem__)
    made.lint()
    return made


class _Found:
    """The values that our kernels compute and read, up to the current node of the graph.

    Attributes:
        images: values in channels_last.
        rows: values with 2 or 3 axes laid out as contiguous rows.
        made: both of these, and single pixels and contiguous values with any number of axes.
        between: pointwise operations on images and rows; maps views and splits of kernel results to None.
    """

    def __init__(self, graph: fx.Graph) -> None:
        ours = [node for node in graph.nodes if indirect.are_for(tensor_of(node))]
        products = {node for node in ours if node.target is LINEAR}
        self.images = {
            node for node in ours if node.target in _MAKE_IMAGES and len(shape_key(node) or ()) == 4
        }
        self.rows = {node for node in products if len(shape_key(node) or ()) in _RANKS_OF_ROWS}
        self.made = self.images | products
        self.between: dict[fx.Node, _Pointwise | None] = {}

    def can_be_other(self, node: Any, image: fx.Node) -> bool:
        """Whether a value can be the second operand, with the same sizes and dtype.

        Rows computed by other operators must be contiguous and must not be inputs of the graph, because
        kernels do not accept parameters.
        """
        if shape_key(node) != shape_key(image) or not indirect.are_for(tensor_of(node), _dtype_of(image)):
            return False
        if image in self.images or node in self.made:
            return node in (self.images if image in self.images else self.rows)
        return bool(node.op == "call_function" and is_contiguous(node))

    def lying_as(self, node: fx.Node) -> set[fx.Node] | None:
        """The set of values with the same layout as this node's result."""
        return next((each for each in (self.images, self.rows) if node in each), None)

    def add(self, node: fx.Node, given: _Pointwise | None, lying: set[fx.Node] | None = None) -> None:
        self.between[node] = given
        self.made.add(node)
        if lying is not None:
            lying.add(node)


def _dtype_of(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _between(graph: fx.Graph) -> dict[fx.Node, _Pointwise | None]:
    """Pointwise operations on kernel results; maps views and splits of them to None."""
    found = _Found(graph)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in RESHAPES and node.args[0] in found.made and _can_view(node, found):
            found.add(node, None, found.rows if len(_sizes(node) or ()) in _RANKS_OF_ROWS else None)
            continue
        lying = found.lying_as(node.args[0]) if node.args else None
        if node.target in SPLITS and lying is not None and _is_by_channels(node):
            for each in (node, *node.users):
                found.add(each, None, lying)
            continue
        pointwise = _pointwise(node, found) if indirect.are_for(tensor_of(node)) else None
        if pointwise is not None:
            found.add(node, pointwise, found.lying_as(pointwise.image))
    return found.between


def _can_view(view: fx.Node, found: _Found) -> bool:
    """Whether a view is of a tensor without gaps, with axes in memory order."""
    base = cast("fx.Node", view.args[0])
    sizes = _sizes(view)
    is_plain = base.target is not operator.getitem  # a slice has gaps
    is_pixel = (shape_key(base) or ())[2:] == (1, 1)
    return (
        sizes is not None
        and len(sizes) <= _C.MOST_KERNEL_AXES
        and is_plain
        and (base not in found.images or is_pixel)
    )


def _sizes(view: fx.Node) -> tuple[int, ...] | None:
    sizes = view.args[1]
    is_plain = isinstance(sizes, list | tuple) and all(isinstance(size, int) for size in sizes)
    return tuple(sizes) if is_plain else None  # type: ignore[arg-type]


def _channel_axis(image: Any) -> int:
    """The channel axis; for rows, the last axis."""
    rank = len(shape_key(image) or ())
    return 1 if rank == 4 else rank - 1


def _is_by_channels(split: fx.Node) -> bool:
    """Whether a split of an image or of rows is along the channels, with fixed sizes."""
    axis = _channel_axis(split.args[0])
    rank = len(shape_key(split.args[0]) or ())
    is_plain = arguments(split)["dim"] in (axis, axis - rank)
    is_plain = is_plain and all(isinstance(size, int) for size in _widths(split))
    return is_plain and all(each.target is operator.getitem for each in split.users)


def _widths(split: fx.Node) -> list[Any]:
    """Number of channels of each part."""
    axis = _channel_axis(split.args[0])
    return [part.shape[axis] for part in split.meta["val"]]


def _pointwise(node: fx.Node, found: _Found) -> _Pointwise | None:
    """The pointwise operation at a node; None for anything else."""
    shape = shape_key(node)
    if shape is None:
        return None
    if node.target in (aten.add.Tensor, aten.mul.Tensor):
        left, right = cast("tuple[Any, Any]", node.args[:2])
        is_sum = node.target is aten.add.Tensor
        if is_sum and arguments(node)["alpha"] != 1:
            return None
        for image, other in ((left, right), (right, left)):
            if found.lying_as(image) is None or shape_key(image) != shape:
                continue
            if found.can_be_other(other, image):
                return _Pointwise("add" if is_sum else "multiply", image, other, NONE)
            is_scale = (
                image in found.images
                and other in found.made
                and shape_key(other) == (*shape[:2], 1, 1)
                and _dtype_of(other) is _dtype_of(image)
            )
            if is_scale and not is_sum:
                return _Pointwise("scale", image, other, NONE)
        return None
    image = node.args[0] if node.args else None
    if not isinstance(image, fx.Node) or found.lying_as(image) is None:
        return None
    if is_conversion(node):
        return _Pointwise("activate", image, None, NONE, _dtype_of(node))
    epilogue = indirect.activation_at(node)
    return None if epilogue is None else _Pointwise("activate", image, None, epilogue)


def _room(node: fx.Node) -> fx.Node | None:
    """The concat buffer that a node writes into, or that others have filled; None if there is none."""
    if node.target is indirect.joined:
        return node.all_input_nodes[0]
    place = place_of(node)
    return None if place is None else place[0]


def _reads(node: fx.Node) -> list[fx.Node]:
    """The values a node reads; for a completed concat buffer only the buffer, which others have written."""
    return node.all_input_nodes[:1] if node.target is indirect.joined else node.all_input_nodes


def _gather(
    group: Sequence[fx.Node],
    between: Mapping[fx.Node, _Pointwise | None],
    made: fx.Graph,
    new: dict[fx.Node, fx.Node],
) -> None:
    """Add a sequence call for a group to the new graph."""
    members = set(group)
    read = list(dict.fromkeys(x for node in group for x in _reads(node) if x not in members))
    written = dict.fromkeys(place[0] for node in group if (place := place_of(node)) is not None)
    rooms = [room for room in written if room not in members]
    operands = [x for x in read if x not in rooms]
    inputs = [*operands, *rooms]
    given = {node for node in group if _room(node) in inputs}  # write into a concat buffer, or complete one
    outputs = [node for node in group if node not in given and not members.issuperset(node.users)]
    number = {node: at for at, node in enumerate((*inputs, *group))}
    program = Program(
        len(inputs),
        tuple(_instruction(node, number, between.get(node)) for node in group),
        tuple(number[node] for node in outputs),
    )
    args: list[Any] = [[new[x] for x in operands], program.text()]
    if rooms:
        args.insert(1, [new[room] for room in rooms])
    call = made.call_function(SEQUENCE_INTO if rooms else SEQUENCE, tuple(args))
    call.meta["val"] = [node.meta["val"] for node in outputs]
    for node in given:
        new[node] = call
        if node.target is indirect.joined and not members.issuperset(node.users):
            new[node] = made.call_function(indirect.joined, (new[node.args[0]], call))  # type: ignore[index]
            new[node].meta.update(node.meta)
    for at, node in enumerate(outputs):
        new[node] = made.call_function(operator.getitem, (call, at))
        new[node].meta.update(node.meta)


def _instruction(node: fx.Node, number: Mapping[fx.Node, int], pointwise: _Pointwise | None) -> Instruction:
    function, args = direct_form(node)
    room, channel = place_of(node) or (None, 0)
    given = Instruction(-1, room=-1 if room is None else number[room], first_channel=channel)
    name, x = "", args[0]
    if function is indirect.convolve:
        name, other = "convolve", -1 if args[2] is None else number[args[2]]
        given = given._replace(packed=number[args[1]], other=other, numbers=args[3])
    elif function is indirect.pool:
        name, given = "pool", given._replace(numbers=args[1])
    elif function is indirect.linear:
        name, given = "linear", given._replace(packed=number[args[1]], numbers=args[2])
    elif function is indirect.shuffle:
        name, given = "shuffle", given._replace(numbers=args[1:])
    elif function is indirect.room_for:
        name, x, given = "room", None, given._replace(numbers=(indirect.element_of(args[1]), *args[0]))
    elif function is indirect.joined or node.target in SPLITS:
        name = "same"
    elif function is operator.getitem:
        widths, which = _widths(x), args[1]
        name, given = "slice", given._replace(first_channel=sum(widths[:which]), numbers=(widths[which],))
    elif node.target in RESHAPES:
        name, given = "view", given._replace(numbers=_sizes(node) or ())
    else:
        done = _Pointwise("activate", x, None, NONE) if function is indirect.fill else pointwise
        assert done is not None  # nothing else is in `taken`
        other = -1 if done.other is None else number[done.other]
        name, x, given = "pointwise", done.image, given._replace(other=other, numbers=done.numbers)
    operation = _C.KERNEL_OPERATIONS.index(name)
    return given._replace(operation=operation, x=-1 if x is None else number[x])
