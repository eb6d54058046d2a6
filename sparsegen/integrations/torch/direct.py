"""Whether a call may run at once, or as a function of autograd's alone.

PyTorch's dispatcher of custom operators takes longer than a small product.

A custom operator is there for gradients, for `torch.compile`, and for whatever looks at or rewrites a program. Where
nobody does, its own function can be called.
"""

from __future__ import annotations

from enum import Enum, auto

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

# Looked up once: each step to a name is one more that a call takes.
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_trace, _transform = torch._C._get_tracing_state, torch._C._functorch.maybe_current_level
_profiles = torch.autograd._profiler_enabled
PLAIN = (Tensor, nn.Parameter)  # subclasses have a say in what is done with them


class Asked(Enum):
    """What is asked of a call beside its result."""

    NOTHING = auto()
    GRADIENT = auto()  # backward, and nothing else
    MORE = auto()


def asked(*tensors: Tensor | None) -> Asked:
    """What is asked of a call with these tensors.

    More than a gradient is a forward one, a trace, a compilation, a transform such as `torch.vmap`, a mode that sees
    every operator, and a profile, which is to name it.
    """
    if (
        is_dynamo_compiling()  # first: all else is constant to it
        or _dispatch_modes()
        or _function_modes()
        or _trace() is not None
        or _transform() is not None
        or forward_ad._current_level >= 0
        or _profiles()
    ):
        return Asked.MORE
    wants_gradients, found = torch.is_grad_enabled(), Asked.NOTHING
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in PLAIN or tensor.is_meta:
            return Asked.MORE
        if wants_gradients and tensor.requires_grad:
            found = Asked.GRADIENT
    return found


def may_run_at_once(*tensors: Tensor | None) -> bool:
    """Whether nothing but the result of a call with these tensors is asked for."""
    return asked(*tensors) is Asked.NOTHING
