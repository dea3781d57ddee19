"""Compiles a small function on import, which loads everything that a first compilation imports.

For the server process from which the cases are forked; it uses one thread, because a fork would lose the
others.
"""

from __future__ import annotations

import torch

import baselines.collection.processes  # noqa: F401  # the same for the collection

torch.set_num_threads(1)
with torch.no_grad():
    options = {"cache": False, "measure": False}
    torch.compile(torch.nn.Linear(4, 4).eval(), backend="rlopt", options=options)(torch.ones(2, 4))
torch._dynamo.reset()
