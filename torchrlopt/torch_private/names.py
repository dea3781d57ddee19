"""The private names: the versions tried, and what happens in a PyTorch that lacks a name.

`tests/package/test_torch_private.py` checks the table against the names that the other modules here use.
"""

from __future__ import annotations

TRIED = ("2.11.0", "2.13.0", "2.14.1")
"""Releases of PyTorch in which every name below was found and the tests of models ran. With 2.11.0, that was
before threads, varying sizes and saved models used some of them: those were found, but not run. 2.14.1 was
its CUDA build, on a CPU."""

WHERE_MISSING = {
    "importing torchrlopt, or what its first use imports, raises ImportError or AttributeError": """
        torch._C._autograd._profiler_enabled torch._C._DisablePythonDispatcher
        torch._C._dynamo.eval_frame torch._C._dynamo.eval_frame.reset_code
        torch._C._EnableTorchFunction torch._C._is_any_autocast_enabled torch._C._nn
        torch._C._set_grad_enabled torch._C.DisableTorchFunction torch._C.DispatchKey.Autograd
        torch._C.DispatchKey.CompositeImplicitAutograd torch._C.FunctionSchema
        torch._dispatch.python.enable_python_dispatcher torch._dynamo.backends.common.aot_autograd
        torch._dynamo.convert_frame.CatchErrorsWrapper torch._dynamo.convert_frame.compile_lock
        torch._dynamo.eval_frame.cached_backends torch._dynamo.exc.BackendCompilerFailed
        torch._dynamo.exc.RestartAnalysis torch._dynamo.exc.SkipFrame
        torch._dynamo.exc.TorchDynamoException torch._dynamo.guards.GuardBuilder
        torch._dynamo.guards.install_guard torch._dynamo.OptimizedModule
        torch._dynamo.source.ConstantSource torch._dynamo.source.is_constant_source
        torch._dynamo.symbolic_convert.InstructionTranslator torch._dynamo.types.ConvertFrameReturn
        torch._dynamo.variables.base.AttributeMutationNew
        torch._dynamo.variables.base.ValueMutationNew torch._guards.tracing
        torch._guards.TracingContext torch._logging._internal.trace_structured torch._ops.OpOverload
        torch._ops.OpOverloadPacket torch._prims_common.clone_preserve_strides
        torch._prims_common.is_contiguous_or_false
        torch._subclasses.fake_tensor.DataDependentOutputException
        torch._subclasses.fake_tensor.DynamicOutputShapeException
        torch._subclasses.fake_tensor.FakeTensor torch._subclasses.fake_tensor.FakeTensorMode
        torch.fx._lazy_graph_module._LazyGraphModule torch.fx._symbolic_trace.is_fx_symbolic_tracing
        torch.nn.modules.module._has_any_global_hook torch.overrides._pop_mode_temporarily
        torch.utils._python_dispatch._disable_current_modes torch.utils._pytree.tree_flatten
        torch.utils._pytree.tree_leaves torch.utils._pytree.tree_map
        torch.utils._pytree.tree_map_only torch.utils._pytree.tree_unflatten
    """,
    "a graph that is compiled fails where it is asked for: the original runs, and a warning says why": """
        ._base ._cdata ._dispatch_cache ._has_symbolic_sizes_strides ._overloadname ._schema
        ._version torch._C._dispatch_has_kernel_for_dispatch_key
    """,
    "no operator has a name: what goes by names finds none, and such calls stay opaque": "._opname",
    "release_weights=True fails, as any stage: the original runs": "torch._C._storage_Use_Count",
    "saved models have the sizes of their example inputs only": "._dynamo_dynamic_indices",
    "calls by CUDA graphs fail: the original runs": "torch._C._cuda_getCurrentRawStream",
    "every call of an optimised module raises AttributeError": """
        ._current_level ._make_closure_patcher torch._C._functorch.peek_interpreter_stack
        torch._C._is_tracing
    """,
    "calls during a compilation or an export raise AttributeError": "torch._C._len_torch_dispatch_stack",
    "importing what runs a saved model raises AttributeError": """
        ._FrameAction ._FrameExecStrategy
    """,
    "torch.compile of a model with a loaded one in it warns": "._torchdynamo_disable",
    "the reason for which such a graph ends is not shown": "._torchdynamo_disable_msg",
    "load() warns, and what it returns runs without our kernels": "._buffers",
    "optimise() raises AttributeError": "._compiled_call_impl",
    "the first call of an optimised module raises AttributeError": """
        ._forward_hooks ._forward_pre_hooks ._torchdynamo_orig_backend torch._dynamo.optimize
    """,
    "with weights='frozen' the first call raises AttributeError": "torch._dynamo.config.patch",
    "the report of an optimised module raises AttributeError": "torch._dynamo.config.recompile_limit",
    "weights count as unknown: with weights='frozen' they are checked all the same": "._dynamo_source",
    "the executor 'inductor' cannot be imported; the others work": """
        torch._inductor torch._inductor.codecache.PyCodeCache torch._inductor.exc.InvalidCxxCompiler
    """,
    "a graph cannot be lowered by 'inductor': the original runs": "torch._inductor.compile",
    "operators without a translation of ours stay opaque": "torch.onnx._internal.exporter",
}
"""Names by the consequence if one is missing; a leading dot marks an attribute of an object."""
