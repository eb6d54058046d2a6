"""Live blocks of the masks that races run on, drawn by another generator than PyTorch's own."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.operators import Density


def drawn_blocks(density: Density, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Returns bools where a generator is: as many as are expected are true, and at least one."""
    scores = torch.rand(shape, device=generator.device, generator=generator)
    live = max(1, round(density.share * scores.numel()))
    return scores <= scores.flatten().kthvalue(live).values


def seeded(device: torch.device) -> torch.Generator:
    """A generator of a race's operands."""
    generator = torch.Generator(device)
    generator.manual_seed(0)
    return generator
