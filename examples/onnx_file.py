"""Read an ONNX file, rewrite it, write it, and run it in ONNX Runtime.

    python examples/onnx_file.py

The result contains only standard operators, so any runtime can load it. `torchrlopt optimise-onnx` does the
same from a shell.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import torchrlopt


class Heads(nn.Module):
    """Attention with a separate projection for each head, as in papers."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.projections = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width // heads) for _ in range(3)) for _ in range(heads)
        )
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, width) to (tokens, width)."""
        heads = []
        for query, key, value in self.projections:
            scores = query(x) @ key(x).T / query.out_features**0.5
            heads.append(scores.softmax(dim=-1) @ value(x))
        return self.out(torch.cat(heads, dim=-1))


if __name__ == "__main__":
    torch.manual_seed(0)
    model, x = Heads().eval(), torch.randn(32, 128)
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        torch.onnx.export(model, (x,), before, dynamo=True, verbose=False)
        print(torchrlopt.optimise_onnx(before, after))
        try:
            import onnxruntime
        except ImportError:
            print("pip install 'torchrlopt[onnxruntime]' to run the file here")
        else:
            session = onnxruntime.InferenceSession(after)
            (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
            torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-3, atol=1e-4)
            print("ONNX Runtime gives what the model gives")
