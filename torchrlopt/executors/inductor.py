"""The inductor executor: compiles the rewritten graph with PyTorch's own compiler.

Inductor gets the results of the weight prologue as frozen parameters, which it folds and packs. A compiled
graph belongs to one set of weights: if one of them changes, the graph is recompiled. With live weights
nothing is frozen.
"""

from __future__ import annotations

import collections
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

import onnx_ir
import torch
from torch import fx

from torchrlopt.capture.sharing import is_apart
from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.executors.cuda_graphs import GraphedCall, is_on_cuda
from torchrlopt.executors.eager.kernels.alignment import align_products
from torchrlopt.executors.lowering.as_is import hide, show
from torchrlopt.executors.lowering.fx_values import static_stride, tensor_of
from torchrlopt.executors.lowering.lazy_code import forward_of
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.lowering.strides import restride
from torchrlopt.executors.registry import Lowered, Refusals
from torchrlopt.executors.weights.half_precision import compute_half_in_float32
from torchrlopt.executors.weights.overflow import refuse_overflows
from torchrlopt.executors.weights.prologue_cache import PrologueCache
from torchrlopt.executors.weights.split_fx import split_prologue
from torchrlopt.executors.weights.static_part import static_inputs, static_nodes
from torchrlopt.executors.weights.widening import compute_in_float64
from torchrlopt.generated_code import checked
from torchrlopt.options import LoweringOptions
from torchrlopt.torch_private.dynamo import compile_lock
from torchrlopt.torch_private.inductor import PyCodeCache, compile_module, lacks_compiler
from torchrlopt.torch_private.modes import tracing, without_dispatch_modes
from torchrlopt.torch_private.tensors import storage_key

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured


class InductorExecutor:
    """Compiles a model with Inductor."""

    name = "inductor"

    def refusals(self, model: onnx_ir.Model, captured: Captured, options: LoweringOptions) -> Refusals:
        """See `Executor.refusals`. None: operators without an ONNX equivalent run as in the original."""
        return {}

    def lower(self, model: onnx_ir.Model, captured: Captured | None, options: LoweringOptions) -> Lowered:
        """Build the callable; see `Executor.lower`. Inductor itself runs in the first call.

        Raises:
            LoweringError: a node has no ATen equivalent.
            UnsupportedError: the model was read from a file.
        """
        if captured is None:
            raise UnsupportedError("the inductor executor runs captured graphs", got="an ONNX file")
        with without_dispatch_modes():
            module = lower_captured(model, captured)
            static = static_inputs(captured, options)
            hide(module.graph)
            if options.numerics == "real":
                compute_half_in_float32(module, static)
                compute_in_float64(module, static)
            align_products(module.graph, static_nodes(module.graph, static))
            show(module.graph)
            return InductorCallable(module, static, options)


class InductorCallable:
    """A lowered graph that Inductor compiles in the first call with a set of weights.

    Args:
        module: an ATen graph with `meta["val"]`.
        static: names of the placeholders that are weights.
        options: the user's options.

    Attributes:
        num_compilations: how often Inductor has been called.
    """

    def __init__(self, module: fx.GraphModule, static: frozenset[str], options: LoweringOptions) -> None:
        split = split_prologue(module, static)
        if options.numerics == "real":  # otherwise no weights were folded
            refuse_overflows(split.prologue)
        self._main = split.main
        self._prologue = forward_of(split.prologue)
        self._num_prologue_weights = len(split.weights)
        placeholders = list(split.main.graph.find_nodes(op="placeholder"))
        num_arguments = len(split.inputs)
        is_weight = [str(node.target) in static for node in placeholders[:num_arguments]]
        self._is_frozen = is_weight + [True] * (len(placeholders) - num_arguments)
        direct = [at for at, frozen in zip(split.inputs, is_weight, strict=True) if frozen]
        self._weights = [*split.weights, *direct]
        self._inputs = [at for at, frozen in zip(split.inputs, is_weight, strict=True) if not frozen]
        # Inductor needs the sizes and strides of its inputs; symbolic ones stay symbols.
        self._examples = [
            node.meta["val"] for node, frozen in zip(placeholders, self._is_frozen, strict=True) if not frozen
        ]
        (outputs,) = split.main.graph.output_node().args
        self._strides = [_stride_of(each) for each in cast(Sequence[Any], outputs)]
        on_cuda = any(map(is_on_cuda, placeholders))
        for node in split.main.graph.nodes:
            node.meta = {}
        self._settings: dict[str, Any] = {"freezing": bool(static)}
        # We record CUDA graphs ourselves: our replay has less Python overhead than Inductor's.
        self._is_recorded = options.records("cuda" if on_cuda else "cpu")
        self._settings |= options.executor_options or {}
        self._cache = PrologueCache(self._compile, options.weights)
        self.num_compilations = 0

    @property
    def num_evaluations(self) -> int:
        """See `registry.Lowered`."""
        return self._cache.num_evaluations

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        run: Callable[..., tuple[Any, ...]]
        (run,) = self._cache.get([args[at] for at in self._weights])
        return run(*[args[at] for at in self._inputs])

    def _compile(self, *weights: torch.Tensor) -> tuple[Callable[..., tuple[Any, ...]]]:
        """Compile the graph for these weights."""
        values = list(self._prologue(*weights[: self._num_prologue_weights]))
        frozen = iter([*weights[self._num_prologue_weights :], *values])
        module = self._with_parameters(frozen)
        self.num_compilations += 1
        with compile_lock:  # modules compiled by other threads must not be taken for ours below
            loaded = {id(code) for code in PyCodeCache.modules}
            try:
                # This may run inside a compilation of the user's, which Inductor must not see.
                with without_dispatch_modes(), torch.no_grad(), tracing(None):
                    compiled = compile_module(module, self._examples, self._settings)
                    run = _OwnedOutputs(compiled, weights, self._strides)
                    num_inputs = len(self._inputs)
                    return (GraphedCall(run, [False] * num_inputs) if self._is_recorded else run,)
            except Exception as error:  # Inductor's errors have no common base class
                if lacks_compiler(error):
                    raise UnsupportedError(
                        "inductor found no C++ compiler", todo="apt install g++, or executor='eager'"
                    ) from error
                raise LoweringError(
                    "inductor fails on the rewritten graph", got=repr(error), is_bug=False
                ) from error
            finally:
                _forget_code(loaded)

    def _with_parameters(self, frozen: Any) -> fx.GraphModule:
        """The main part with parameters in place of the frozen placeholders."""
        graph = fx.Graph()
        root = torch.nn.Module()
        flags = iter(self._is_frozen)
        inside: dict[fx.Node, fx.Node] = {}
        for node in self._main.graph.nodes:
            if node.op == "placeholder" and next(flags):
                name = f"frozen_{len(inside)}"
                tensor = next(frozen)
                root.register_parameter(name, torch.nn.Parameter(tensor.detach(), requires_grad=False))
                inside[node] = graph.get_attr(name)
            else:
                inside[node] = graph.node_copy(node, inside.__getitem__)
                if node.op == "get_attr":
                    setattr(root, str(node.target), getattr(self._main, str(node.target)))
        module = fx.GraphModule(root, checked(graph))
        module.graph.lint()
        return module


class _OwnedOutputs:
    """Calls a compiled graph so that the caller owns the outputs, with the strides of the original graph.

    With frozen weights, Inductor precomputes outputs that are the same in every call and returns the same
    tensor each time. It also loses the strides of views of values whose layout it changes. The first call
    detects which outputs are affected.

    Args:
        compiled: by Inductor.
        weights: the weights it was compiled for. Memory shared with one of them belongs to the caller.
        strides: of the graph's outputs; None to keep Inductor's.
    """

    def __init__(
        self,
        compiled: Callable[..., Sequence[Any]],
        weights: Sequence[torch.Tensor],
        strides: Sequence[tuple[int, ...] | None],
    ) -> None:
        self._compiled = compiled
        self._weights = weights
        self._strides = strides
        self._kept: tuple[int, ...] | None = None
        self._moved: dict[int, tuple[int, ...]] | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run on the inputs of the compiled graph."""
        outputs = self._owned(inputs)
        if self._moved is None:
            known = enumerate(zip(outputs, self._strides, strict=True))
            self._moved = {at: stride for at, (x, stride) in known if stride and x.stride() != stride}
        if not self._moved:
            return outputs
        found = list(outputs)
        for at, stride in self._moved.items():
            found[at] = restride(found[at], stride)
        return tuple(found)

    def _owned(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        outputs, weights = tuple(self._compiled(*inputs)), self._weights
        if self._kept is None:
            memory = Memory(outputs, (*inputs, *weights))
            copies = with_copies(outputs, memory.kept())  # copies all: we still hold them
            del outputs
            self._kept = memory.kept()
            self._weights = ()
            return copies
        return with_copies(outputs, self._kept) if self._kept else outputs


def _stride_of(output: Any) -> tuple[int, ...] | None:
    """The stride for `restride` to restore; None if it depends on sizes or elements overlap."""
    stride, value = static_stride(output), tensor_of(output)
    return stride if value is not None and stride is not None and is_apart(value) else None


def _forget_code(loaded: Collection[int]) -> None:
    """Remove newly loaded modules from Inductor's list, so that they can be freed.

    Inductor never removes a module from its list, and a module holds its packed weights. Modules without
    weights stay: Inductor loads them once and reuses them.

    Args:
        loaded: ids of the modules that were in the list before.
    """
    reused = {id(code) for code in PyCodeCache.modules_no_attr.values()}
    for code in [code for code in PyCodeCache.modules if id(code) not in reused and id(code) not in loaded]:
        PyCodeCache.modules.remove(code)
        if sys.modules.get(code.__name__) is code:
            del sys.modules[code.__name__]


class Memory:
    """Tracks the memory of outputs without keeping it alive.

    Args:
        outputs: of a call.
        arguments: of the call. Memory shared with one of them belongs to the caller.
    """

    def __init__(self, outputs: Sequence[Any], arguments: Sequence[Any]) -> None:
        given = {storage_key(storage) for storage in map(_storage, arguments) if storage is not None}
        self._storages = [
            weakref.ref(storage)
            if (storage := _storage(output)) is not None and storage_key(storage) not in given
            else None
            for output in outputs
        ]

    def kept(self) -> tuple[int, ...]:
        """Positions of the outputs whose memory is still alive, once nobody else should hold it."""
        return tuple(
            at for at, storage in enumerate(self._storages) if storage is not None and storage() is not None
        )


def with_copies(outputs: Sequence[Any], kept: Collection[int]) -> tuple[Any, ...]:
    """The outputs, some of them replaced by copies.

    Copies have the strides of the originals and share memory if the originals do.

    Args:
        outputs: tensors and other values.
        kept: positions of the outputs to copy, which are tensors.
    """
    storages = {at: outputs[at].untyped_storage() for at in kept}
    users = collections.Counter(storage_key(storage) for storage in storages.values())
    memory: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, torch.Tensor] = {}  # an output that is returned twice is one tensor
    owned = list(outputs)
    for at, storage in storages.items():
        output = outputs[at]
        if id(output) not in copies:
            if users[storage_key(storage)] == 1 and torch.ops.aten.is_non_overlapping_and_dense.default(
                output
            ):
                copies[id(output)] = output.clone()
            else:
                own = memory.get(storage_key(storage))
                own = memory[storage_key(storage)] = storage.clone() if own is None else own
                place = output.storage_offset(), output.shape, output.stride()
                copies[id(output)] = output.new_empty(0).set_(own, *place)
        owned[at] = copies[id(output)]
    return tuple(owned)


def _storage(value: Any) -> torch.UntypedStorage | None:
    """The storage of a tensor; None if the value is not a tensor or has no single storage."""
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value.untyped_storage() if is_strided else None


EXECUTOR = InductorExecutor()
