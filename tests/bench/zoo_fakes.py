"""Models for the zoo's test: one that can be measured, and two that cannot."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tiny:
    """Two linear layers."""

    name: str = "tiny"

    def made(self, size: object) -> Any:
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval()
        return model, {"input": torch.randn(4, 32)}


@dataclass(frozen=True)
class Zeros(Tiny):
    """A model whose result says nothing."""

    name: str = "zeros"

    def made(self, size: object) -> Any:
        model, inputs = super().made(size)
        for parameter in model.parameters():
            parameter.data.zero_()
        return model, inputs


@dataclass(frozen=True)
class Dying(Tiny):
    """A model whose process ends."""

    name: str = "dying"

    def made(self, size: object) -> Any:
        os._exit(3)
