"""Pruned weights that stay zero while a model trains with ordinary dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sparsegen import arguments
from sparsegen.errors import PruningError


def hold_zeros(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, exclude: Sequence[str] = ()
) -> RemovableHandle:
    """Have an optimizer leave the zeros of a pruned model's weights as they are: after each of its steps they are zero.

    Gradients, momentum and weight decay move pruned weights too; this puts them back. Held are the zeros that weights
    of two dimensions or more have now, at the cost of a pass over them a step.

    Args:
        model: pruned by `sparsegen.prune`, such as ``model.load_state_dict(sparsegen.prune(...).weights)``.
        optimizer: steps the model's parameters.
        exclude: globs of the names of parameters whose zeros may change.

    Returns:
        A handle whose ``remove()`` ends it, before the next round of pruning.

    Raises:
        PruningError: no model or optimizer, or no weight that has a zero.
    """
    arguments.instance(model, nn.Module, "model", PruningError)
    arguments.instance(optimizer, torch.optim.Optimizer, "optimizer", PruningError)
    globs = arguments.texts(exclude, "exclude", PruningError)
    held: list[tuple[Tensor, Tensor]] = []
    for name, parameter in model.named_parameters():
        is_held = parameter.dim() > 1 and not any(fnmatchcase(name, glob) for glob in globs)
        if is_held and bool((parameter == 0).any()):
            held.append((parameter, parameter.detach() == 0))
    if not held:
        raise PruningError("no weight of this model has a zero to hold: prune it first")

    @torch.no_grad()
    def restore(*_: object) -> None:
        for parameter, zeros in held:
            parameter.masked_fill_(zeros, 0)

    handle: RemovableHandle = optimizer.register_step_post_hook(restore)
    return handle
