"""The base files for mutation: exports of small models, and one with features that exporters rarely use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from tests.onnx.test_mutations import rich

_EXPORTED = Path(__file__).parent / "exported"


class _Images(nn.Module):
    """Convolutions with norms, a pool, a resize, a join."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.down, self.last = nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = torch.relu(self.norm(self.first(x)))
        low = nn.functional.interpolate(torch.relu(self.down(high)), scale_factor=2.0)
        return self.last(torch.cat([high, low], 1)).flatten(2).mean(2)


class _Words(nn.Module):
    """An embedding, attention, a norm, a free batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(16, 8), nn.LayerNorm(8)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        mixed = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 8**0.5, -1) @ self.v(x)
        return self.norm(x + nn.functional.gelu(self.out(mixed)))


def bases(folder: Path) -> dict[str, bytes]:
    """Files by name.

    Args:
        folder: where the external data of one of them lies from now on.
    """
    found = {path.stem: path.read_bytes() for path in sorted(_EXPORTED.glob("*.onnx"))}
    return {**found, "rich": rich(folder)}


def main() -> None:
    """Export the models anew: `python -m tests.fuzz.files.bases`, after a change of them."""
    torch.manual_seed(0)
    images, words = _Images().eval(), _Words().eval()
    image, ids = (torch.ones(1, 3, 8, 8),), (torch.arange(10).reshape(2, 5),)
    _export("images", images, image, dynamo=True)
    _export("words", words, ids, dynamo=True, dynamic_shapes=({0: "batch", 1: "length"},))
    _export("older", images, image, dynamo=False, opset_version=17)


def _export(name: str, model: nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> None:
    path = _EXPORTED / f"{name}.onnx"
    torch.onnx.export(model, inputs, path, verbose=False, external_data=False, **options)
    proto = onnx.load(path)
    for node in proto.graph.node:
        del node.metadata_props[:]  # stack traces, with the paths of a machine
    path.write_bytes(proto.SerializeToString())


if __name__ == "__main__":
    main()
