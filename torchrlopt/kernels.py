"""The kernels of this package as operators of PyTorch: importing this defines `torch.ops.torchrlopt`.

docs/kernels.md says what each computes. What was exported with them needs this import before it is loaded.
"""

from __future__ import annotations

import torch

from torchrlopt.executors.eager.kernels import cublas, cudnn, operators, pixels, sequence

__all__ = ["cublas", "cudnn", "operators", "ops", "pixels", "sequence"]

ops = torch.ops.torchrlopt
