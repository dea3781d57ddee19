"""An evaluation loop with the accelerate package: the prepared model is optimised.

    python examples/accelerate_loop.py

`Accelerator.prepare` comes first, since it places the model and may wrap its forward function.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchrlopt

if __name__ == "__main__":
    torch.manual_seed(0)
    width = 1024
    layers = [nn.Linear(64, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    plain = nn.Sequential(*layers, nn.Linear(width, 5))
    rows = torch.randn(50, 64)
    accelerator = Accelerator(cpu=True)
    model, loader = accelerator.prepare(plain.eval(), DataLoader(TensorDataset(rows), batch_size=10))
    model = torchrlopt.optimise(model)
    with torch.inference_mode():
        scores = torch.cat([accelerator.gather_for_metrics(model(batch)) for (batch,) in loader])
        torch.testing.assert_close(scores, plain(rows), rtol=1e-4, atol=1e-4)
    print(model.report)
    print(f"{len(scores)} rows evaluated, all as by the model")
