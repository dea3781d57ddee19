"""Prediction with the lightning package: the trainer calls an optimised model.

    python examples/lightning_predict.py

The module optimises itself when prediction begins, when its weights are loaded and it is on its device.
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchrlopt


class Classifier(lightning.LightningModule):
    """A small image classifier."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in (3, 32, 64):
            layers += [
                nn.Conv2d(width, max(32, 2 * width), 3, padding=1),
                nn.BatchNorm2d(max(32, 2 * width)),
                nn.ReLU(),
            ]
        self.network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def on_predict_start(self) -> None:
        """Called by the trainer before the first batch, in eval mode and without gradients."""
        self.network = torchrlopt.optimise(self.network)

    def predict_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Class scores of a batch of images."""
        return self.network(batch[0])


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Classifier().eval()
    images = torch.randn(20, 3, 32, 32)
    with torch.no_grad():
        expected = model.network(images)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    scores = torch.cat(trainer.predict(model, DataLoader(TensorDataset(images), batch_size=4)))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
    print(model.network.report)
    print(f"{len(scores)} predictions, all as by the model")
