"""The kernels of this package as PyTorch operators: importing this module defines `torch.ops.torchrlopt`.

docs/kernels.md describes them. Import this module before loading a program that was exported with them.
"""

from __future__ import annotations

import torch

from torchrlopt.executors.eager.kernels import cublas, cudnn, operators, pixels, sequence

__all__ = ["cublas", "cudnn", "operators", "ops", "pixels", "sequence"]

ops = torch.ops.torchrlopt
