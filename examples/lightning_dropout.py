"""Structured dropout in a training loop of Lightning's style: dropped blocks are not computed, forward and backward.

python examples/lightning_dropout.py

With Lightning installed the same module trains by `lightning.Trainer`; without, by the five lines at the end.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sparsegen.integrations.torch import DropoutLinear

try:
    from lightning import LightningModule, Trainer
except ImportError:
    LightningModule, Trainer = nn.Module, None


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        hidden = DropoutLinear(64, 128, p=0.25, block=32, activation="relu")
        self.layers = nn.Sequential(hidden, DropoutLinear(128, 4, p=0.25, block=32))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


model = Classifier()
labels = torch.arange(256) % 4
batch = (torch.randn(256, 64) + 2 * torch.eye(4, 64)[labels], labels)
if Trainer is not None:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_epochs=6, accelerator="cpu", **quiet).fit(
        model, DataLoader(TensorDataset(*batch), batch_size=256)
    )
else:
    optimizer = model.configure_optimizers()
    for number in range(6):
        optimizer.zero_grad()
        model.training_step(batch, number).backward()
        optimizer.step()
model.eval()
print(f"right: {(model.layers(batch[0]).argmax(1) == labels).float().mean():.0%}")
