"""TVM: compiled with its own schedules, or with tuned ones if the user allows trials."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import onnx

from baselines.peers.runtimes import ExportedPeer

#: Environment variable: number of trials that the tuner may measure per kernel of the model; none by default.
TRIALS = "TVM_TRIALS"


class TvmPeer(ExportedPeer):
    """TVM for this processor. Without trials its kernels are plain loops, which it is not made for."""

    package = "tvm"

    def _load(self) -> tuple[list[str], Callable[[dict[str, np.ndarray]], list[np.ndarray]]]:
        os.environ["TVM_NUM_THREADS"] = str(self._case.threads)
        import tvm
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx

        model = onnx.load(self._folder / "model.onnx")
        names = [each.name for each in model.graph.input]
        module = from_onnx(model, keep_params_in_input=False)
        mcpu = tvm.target.Target.from_device("cpu").attrs["mcpu"]
        target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": self._case.threads})
        trials = int(os.environ.get(TRIALS, "0"))
        if trials:
            tuned = relax.get_pipeline(
                "static_shape_tuning",
                total_trials=trials * _NUM_KERNELS,
                max_trials_per_task=trials,
                target=target,
                work_dir=str(self._folder / "tuning"),
            )
            module = tuned(module)
        machine = relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
        main = machine["main"]

        def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            found = main(*(tvm.runtime.tensor(feed[name]) for name in names))
            outputs = [found] if isinstance(found, tvm.runtime.Tensor) else list(found)
            return [each.numpy() for each in outputs]

        return names, run


_NUM_KERNELS = 1_000  # more than any model has; trials are limited per kernel
