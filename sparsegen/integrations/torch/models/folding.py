"""Batch norms that become part of the convolutions before them, for inference."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.layer_weights import has_own_hooks, is_made_of_others


def fold_batch_norms(model: nn.Module) -> tuple[str, ...]:
    """Fold batch norms into the convolutions before them, in place; the model computes the same, but for rounding.

    A ``torch.nn.BatchNorm2d`` in evaluation with running statistics, right behind a ``torch.nn.Conv2d`` in a
    ``torch.nn.Sequential``, scales the filters and moves their bias; ``torch.nn.Identity`` takes its place. Zeros of
    pruned filters stay zeros. Others stay as they are: shared ones, and those with hooks or a weight made of others.
    Call it before `convert`, which then sees ReLU modules right behind the convolutions.

    Returns:
        The names of the norms that were folded.

    Raises:
        OperandError: no module, or one that trains: batch statistics cannot be folded.
    """
    arguments.instance(model, nn.Module, "model", OperandError)
    if model.training:
        raise OperandError(
            "the model trains, and its batch norms take the batch's statistics: call model.eval() first"
        )
    owners: dict[int, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        owners[id(module)] = owners.get(id(module), 0) + 1
    folded = []
    for name, sequence in list(model.named_modules()):
        if type(sequence) is not nn.Sequential:
            continue
        for (_, conv), (at, norm) in pairwise(list(sequence.named_children())):
            if _is_foldable(conv, norm) and owners[id(conv)] == owners[id(norm)] == 1:
                assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
                _fold(conv, norm)
                setattr(sequence, at, nn.Identity())
                folded.append(f"{name}.{at}" if name else at)
    return tuple(folded)


def _is_foldable(conv: nn.Module, norm: nn.Module) -> bool:
    return (
        type(conv) is nn.Conv2d
        and type(norm) is nn.BatchNorm2d
        and not norm.training
        and norm.running_mean is not None
        and not has_own_hooks(conv)
        and not has_own_hooks(norm)
        and is_made_of_others(conv) is None
    )


@torch.no_grad()
def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    trains = conv.weight.requires_grad
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None
    weight, bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, mean, variance, norm.eps, norm.weight, norm.bias
    )
    conv.weight = nn.Parameter(weight, requires_grad=trains)
    conv.bias = nn.Parameter(bias, requires_grad=trains)
