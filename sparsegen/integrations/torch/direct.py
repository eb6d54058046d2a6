"""Whether a call may run at once, or as a function of autograd's alone.

PyTorch's dispatcher of custom operators takes longer than a small product.

A custom operator is there for gradients, for `torch.compile`, and for whatever looks at or rewrites a program. Where
nobody does, its own function can be called.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

# Looked up once: each step to a name is one more that a call takes.
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_trace, _transform = torch._C._get_tracing_state, torch._C._functorch.maybe_current_level
_profiles = torch._C._autograd._profiler_enabled
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


class DirectOperator:
    """A custom operator that is called past PyTorch's dispatcher where nothing but a result or a gradient is asked for.

    The dispatcher and what Python adds to it take some 50 µs of a call that runs at once, 100 of one with a gradient,
    and more in the thread that runs backward (measured on the host of an H100).
    """

    def __init__(
        self,
        name: str,
        schema: str,
        function: Callable[..., Any],
        *,
        fake: Callable[..., Any],
        tensors: int,
        backward: Callable[..., Any],
        remember: Callable[..., None],
    ) -> None:
        """Define ``torch.ops.sparsegen.NAME``.

        Args:
            schema: of its arguments and its result, as `torch.library` writes it. It writes none of its arguments.
            function: what it computes, of arguments by position.
            fake: its result for tensors without data.
            tensors: how many of the arguments, the first ones, are tensors.
            backward, remember: its gradient, as `torch.library.register_autograd` takes them.
        """
        self._function, self._tensors = function, tensors
        custom = torch.library.custom_op(f"sparsegen::{name}", function, mutates_args=(), schema=schema)
        custom.register_fake(fake)
        custom.register_autograd(backward, setup_context=remember)
        self._operator: Callable[..., Any] = getattr(torch.ops.sparsegen, name)

        # With `setup_context`, PyTorch looks up the signature of `forward` in every call, which takes tens of µs.
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = function(*inputs)
            remember(ctx, inputs, output)
            return output

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        made: Any = type(name, (torch.autograd.Function,), members)
        self._apply: Callable[..., Any] = made.apply

    def __call__(self, *inputs: Any) -> Any:
        """The operator's result; all inputs by position."""
        what = asked(*inputs[: self._tensors])
        if what is Asked.NOTHING:
            return self._function(*inputs)
        return self._apply(*inputs) if what is Asked.GRADIENT else self._operator(*inputs)
