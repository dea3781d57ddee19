"""OpenVINO calls that run in the program, and before that in a separate process.

That process loads this file by path, so it imports only numpy and OpenVINO.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

_MOST_LETTERS = 2000  # of an objection, which may list many operators
_CALLS = 2  # the second uses other code: what was built for these sizes is cached


def new_core() -> Any:
    """A separate core for each graph, so that the threads it starts end with the graph.

    A core gives the thread in which it loads its plugin a stack for signal handlers, and removes it when the
    core is destroyed, in whatever thread that is. The next signal (a child exits, Ctrl-C) would then kill the
    program. So the core is created in a thread that ends immediately.
    """
    import openvino

    def make() -> Any:
        core = openvino.Core()
        core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin
        return core

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def compiled_of(proto: bytes, held: Mapping[str, Any], properties: Mapping[str, Any]) -> Any:
    """Compile a model.

    Args:
        proto: the model.
        held: OpenVINO tensors for inputs that become constants, by name.
        properties: of the CPU device.
    """
    from openvino import op

    core = new_core()
    network = core.read_model(proto)
    for parameter in network.get_parameters():
        (name,) = parameter.output(0).get_names()
        if name in held:
            parameter.output(0).replace(op.Constant(held[name]).output(0))
            network.remove_parameter(parameter)
    network.validate_nodes_and_infer_types()
    return core.compile_model(network, "CPU", dict(properties))


def tensor_of(array: NDArray[Any], is_bfloat16: bool) -> Any:
    """An OpenVINO tensor that shares memory; bfloat16, which numpy lacks, comes as integers."""
    import openvino

    if is_bfloat16:
        return openvino.Tensor(array, array.shape, openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)


def probe(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Why OpenVINO rejects a model, as a task; see `operator_probe.Probe`."""
    import openvino  # noqa: F401  # outside the try: a broken installation says nothing about operators

    try:
        core = new_core()
        network = core.read_model(arrays["model"].tobytes())
        taken = core.query_model(network, "CPU")
    except MemoryError:  # unrelated to the operators
        raise
    except Exception as error:  # noqa: BLE001  # OpenVINO's errors have no common base
        reason = str(error).strip().rpartition("Summary:")[2].partition("To facilitate")[0]
        return {"refusal": reason[:_MOST_LETTERS]}
    refused = {each.get_type_name() for each in network.get_ops() if each.get_friendly_name() not in taken}
    reason = f"the CPU has no {', '.join(sorted(refused))}"[:_MOST_LETTERS]
    return {"refusal": reason if refused else None}


def run(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Compile a model and call it, as a task.

    Args:
        header: "settings", the properties; dtypes of the arrays under "held" and "feeds", by name.
        arrays: "model", and a "held NAME" or "feeds NAME" for each.
    """
    tensors = {
        kind: {
            name: tensor_of(arrays[f"{kind} {name}"], dtype == "torch.bfloat16")
            for name, dtype in header[kind].items()
        }
        for kind in ("held", "feeds")
    }
    compiled = compiled_of(arrays["model"].tobytes(), tensors["held"], header["settings"])
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        (tensor,) = (tensors["feeds"][name] for name in port.get_names() if name in tensors["feeds"])
        request.set_tensor(port, tensor)
    for _ in range(_CALLS):
        request.infer(share_outputs=True)
    return {}
