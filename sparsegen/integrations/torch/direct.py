"""Whether a call may run at once, beside PyTorch's dispatcher, which takes longer than a small product.

A custom operator is there for gradients, for `torch.compile`, and for whatever looks at or rewrites a program. Where
nobody does, its own function can be called.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

PLAIN = (Tensor, nn.Parameter)  # subclasses have a say in what is done with them


def may_run_at_once(*tensors: Tensor | None) -> bool:
    """Whether nothing but the result of a call with these tensors is asked for.

    That is no gradient, forward or backward, no trace, no compilation, no transform such as `torch.vmap`, no mode that
    sees every operator, and no profile, which is to name it.
    """
    if torch.compiler.is_compiling() or not _nobody_looks():
        return False
    wants_gradients = torch.is_grad_enabled()
    return all(
        tensor is None
        or (type(tensor) in PLAIN and not tensor.is_meta and not (wants_gradients and tensor.requires_grad))
        for tensor in tensors
    )


def _nobody_looks() -> bool:
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.maybe_current_level() is not None
        or forward_ad._current_level >= 0
        or torch.autograd._profiler_enabled()
    )
