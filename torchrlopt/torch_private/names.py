"""The private names: the versions tried, and what happens in a PyTorch that lacks a name.

`tests/package/test_torch_private.py` checks the table against the names that the other modules here use.
"""

from __future__ import annotations

TRIED = ("2.11.0", "2.13.0", "2.14.1")
"""Releases of PyTorch in which every name below was found and the tests of models ran. With 2.11.0, that was
before threads, varying sizes and saved models used some of them: those were found, but not run. 2.14.1 was
its CUDA build, on a CPU."""

_IMPORT = "importing torchrlopt, or what its first use imports, raises ImportError or AttributeError"
_COMPILE = "a graph that is compiled fails where it is asked for: the original runs, and a warning says why"
_CALL = "every call of an optimised module raises AttributeError"

WHERE_MISSING = {
    # operators.py
    "torch._C.DispatchKey.Autograd": _IMPORT,
    "torch._C.DispatchKey.CompositeImplicitAutograd": _IMPORT,
    "torch._C.FunctionSchema": _IMPORT,
    "torch._C._dispatch_has_kernel_for_dispatch_key": _COMPILE,
    "torch._C._nn": _IMPORT,
    "torch._C._set_grad_enabled": _IMPORT,
    "torch._ops.OpOverload": _IMPORT,
    "torch._ops.OpOverloadPacket": _IMPORT,
    "._dispatch_cache": _COMPILE,
    "._opname": "no operator has a name: what goes by names finds none, and such calls stay opaque",
    "._overloadname": _COMPILE,
    "._schema": _COMPILE,
    # tensors.py
    "torch._C._storage_Use_Count": "release_weights=True fails, as any stage: the original runs",
    "torch._prims_common.clone_preserve_strides": _IMPORT,
    "torch._prims_common.is_contiguous_or_false": _IMPORT,
    "torch._subclasses.fake_tensor.DataDependentOutputException": _IMPORT,
    "torch._subclasses.fake_tensor.DynamicOutputShapeException": _IMPORT,
    "torch._subclasses.fake_tensor.FakeTensor": _IMPORT,
    "torch._subclasses.fake_tensor.FakeTensorMode": _IMPORT,
    "._base": _COMPILE,
    "._cdata": _COMPILE,
    "._dynamo_dynamic_indices": "saved models have the sizes of their example inputs only",
    "._has_symbolic_sizes_strides": _COMPILE,
    "._version": _COMPILE,
    # pytree.py
    "torch.utils._pytree.tree_flatten": _IMPORT,
    "torch.utils._pytree.tree_leaves": _IMPORT,
    "torch.utils._pytree.tree_map": _IMPORT,
    "torch.utils._pytree.tree_map_only": _IMPORT,
    "torch.utils._pytree.tree_unflatten": _IMPORT,
    # modes.py
    "torch._C.DisableTorchFunction": _IMPORT,
    "torch._C._DisablePythonDispatcher": _IMPORT,
    "torch._C._EnableTorchFunction": _IMPORT,
    "torch._C._autograd._profiler_enabled": _IMPORT,
    "torch._C._cuda_getCurrentRawStream": "calls by CUDA graphs fail: the original runs",
    "torch._C._functorch.peek_interpreter_stack": _CALL,
    "torch._C._is_any_autocast_enabled": _IMPORT,
    "torch._C._is_tracing": _CALL,
    "torch._C._len_torch_dispatch_stack": "calls during a compilation or an export raise AttributeError",
    "torch._C._dynamo.eval_frame": _IMPORT,
    "torch._dispatch.python.enable_python_dispatcher": _IMPORT,
    "torch._guards.TracingContext": _IMPORT,
    "torch._guards.tracing": _IMPORT,
    "torch._logging._internal.trace_structured": _IMPORT,
    "torch.fx._symbolic_trace.is_fx_symbolic_tracing": _IMPORT,
    "torch.overrides._pop_mode_temporarily": _IMPORT,
    "torch.utils._python_dispatch._disable_current_modes": _IMPORT,
    "._FrameAction": "importing what runs a saved model raises AttributeError",
    "._FrameExecStrategy": "importing what runs a saved model raises AttributeError",
    "._current_level": _CALL,
    "._torchdynamo_disable": "torch.compile of a model with a loaded one in it warns",
    "._torchdynamo_disable_msg": "the reason for which such a graph ends is not shown",
    # modules.py
    "torch.fx._lazy_graph_module._LazyGraphModule": _IMPORT,
    "torch.nn.modules.module._has_any_global_hook": _IMPORT,
    "._buffers": "load() warns, and what it returns runs without our kernels",
    "._compiled_call_impl": "optimise() raises AttributeError",
    "._forward_hooks": "the first call of an optimised module raises AttributeError",
    "._forward_pre_hooks": "the first call of an optimised module raises AttributeError",
    # dynamo.py
    "torch._C._dynamo.eval_frame.reset_code": _IMPORT,
    "torch._dynamo.OptimizedModule": _IMPORT,
    "torch._dynamo.backends.common.aot_autograd": _IMPORT,
    "torch._dynamo.config.patch": "with weights='frozen' the first call raises AttributeError",
    "torch._dynamo.config.recompile_limit": "the report of an optimised module raises AttributeError",
    "torch._dynamo.convert_frame.CatchErrorsWrapper": _IMPORT,
    "torch._dynamo.convert_frame.compile_lock": _IMPORT,
    "torch._dynamo.eval_frame.cached_backends": _IMPORT,
    "torch._dynamo.exc.BackendCompilerFailed": _IMPORT,
    "torch._dynamo.exc.RestartAnalysis": _IMPORT,
    "torch._dynamo.exc.SkipFrame": _IMPORT,
    "torch._dynamo.exc.TorchDynamoException": _IMPORT,
    "torch._dynamo.guards.GuardBuilder": _IMPORT,
    "torch._dynamo.guards.install_guard": _IMPORT,
    "torch._dynamo.optimize": "the first call of an optimised module raises AttributeError",
    "torch._dynamo.source.ConstantSource": _IMPORT,
    "torch._dynamo.source.is_constant_source": _IMPORT,
    "torch._dynamo.symbolic_convert.InstructionTranslator": _IMPORT,
    "torch._dynamo.types.ConvertFrameReturn": _IMPORT,
    "torch._dynamo.variables.base.AttributeMutationNew": _IMPORT,
    "torch._dynamo.variables.base.ValueMutationNew": _IMPORT,
    "._torchdynamo_orig_backend": "the first call of an optimised module raises AttributeError",
    "._dynamo_source": "weights count as unknown: with weights='frozen' they are checked all the same",
    "._make_closure_patcher": _CALL,
    # inductor.py
    "torch._inductor": "the executor 'inductor' cannot be imported; the others work",
    "torch._inductor.codecache.PyCodeCache": "the executor 'inductor' cannot be imported; the others work",
    "torch._inductor.exc.InvalidCxxCompiler": "the executor 'inductor' cannot be imported; the others work",
    "torch._inductor.compile": "a graph cannot be lowered by 'inductor': the original runs",
    # exporter.py
    "torch.onnx._internal.exporter": "operators without a translation of ours stay opaque",
}
"""Consequence of a missing name, by dotted name; a leading dot marks an attribute of an object."""
