"""A process of a data-parallel run with structured dropout, for `test_torch_dropout_parallel`."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from sparsegen.integrations.torch import DropoutLinear

TOKENS, IN, OUT, PROCESSES, STEPS = 32, 64, 40, 2, 3


def step(module: Any, seed: int) -> list[Any]:
    """The gradients of a step of the layer inside a module."""
    torch.manual_seed(seed)  # a seed of its own for each process: other blocks are dropped
    module.zero_grad()
    module(torch.ones(TOKENS, IN, dtype=torch.float16)).square().mean().backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


def train(rank: int, folder: str) -> None:
    """Steps of one process; what it computed alone and together goes to a file."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES
    )
    torch.manual_seed(rank)  # other weights, until all take the first process's
    layer = DropoutLinear(IN, OUT, 0.4, "16x16", dtype=torch.float16)
    together = torch.nn.parallel.DistributedDataParallel(layer)
    alone = copy.deepcopy(layer)
    found = []
    for number in range(STEPS):
        seed = 10 * number + rank
        found.append({"alone": step(alone, seed), "together": step(together, seed)})
    torch.save({"weight": layer.weight.detach(), "steps": found}, Path(folder) / f"{rank}.pt")
    distributed.barrier()
    os._exit(0)  # gloo, when it is taken down, may wait for a process that has gone, and for ever
