"""Training by a schedule that is known beforehand: on a GPU each step is one replay of a CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 3  # steps before a graph is captured
RATE, DECAY = 2e-3, 1e-2  # of AdamW, at the beginning


def rates(epochs: Iterable[int], steps: int, whole: int) -> list[float]:
    """Learning rates of some of ``whole`` epochs: a cosine from the first step of all to the last one."""
    done = [(epoch + step / steps) / whole for epoch in epochs for step in range(steps)]
    return [RATE * (0.02 + 0.98 * (1 + math.cos(math.pi * one)) / 2) for one in done]


def drawn(most: int, batch: int, steps: int, seed: int) -> Tensor:
    """Numbers below ``most`` for each step: steps × batch, int64, drawn one step after the other on the host."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(most, (batch,), generator=generator) for _ in range(steps)])


def train(
    model: nn.Module,
    loss: Callable[[nn.Module, Tensor], Tensor],
    chosen: Tensor,
    schedule: list[float],
    held: Callable[[torch.optim.Optimizer], Any] | None = None,
) -> None:
    """Train by AdamW, one step for each row of ``chosen``.

    Args:
        loss: of the model and a row of ``chosen``, which lies where the model does.
        held: called with the optimizer before the first step.
    """
    place = next(model.parameters()).device
    is_captured = place.type == "cuda"
    rate: Any = torch.tensor(RATE, device=place) if is_captured else RATE
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, weight_decay=DECAY, capturable=is_captured, fused=is_captured
    )
    if held is not None:
        held(optimizer)
    for group in optimizer.param_groups:
        group["lr"] = rate
    model.train()

    def step(row: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model, row).backward()
        optimizer.step()

    if not is_captured:
        for row, value in zip(chosen, schedule, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = value
            step(row)
        return
    rows, values = chosen.to(place), torch.tensor(schedule, device=place)
    at = torch.zeros(1, dtype=torch.long, device=place)

    def next_step() -> None:
        rate.copy_(values.index_select(0, at)[0])
        step(rows.index_select(0, at)[0])
        at.add_(1)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(min(WARM_UP, len(schedule))):
            next_step()
    torch.cuda.current_stream().wait_stream(stream)
    if len(schedule) > WARM_UP:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            next_step()
        for _ in range(len(schedule) - WARM_UP):
            graph.replay()
    torch.cuda.synchronize()
