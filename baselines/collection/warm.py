"""Compiles something small when it is imported: what a first compilation imports and loads is there then.

For the process that those of the cases are forked from; one thread is none that a fork could lose.
"""

from __future__ import annotations

import torch

import baselines.collection.processes  # noqa: F401  # the same for the collection

torch.set_num_threads(1)
with torch.no_grad():
    options = {"cache": False, "measure": False}
    torch.compile(torch.nn.Linear(4, 4).eval(), backend="rlopt", options=options)(torch.ones(2, 4))
torch._dynamo.reset()
