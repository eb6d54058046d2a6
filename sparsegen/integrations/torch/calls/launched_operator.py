"""Custom operators whose launches are made once for each kind of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparsegen.integrations.torch.calls.direct import Asked, DirectOperator, Function, is_watched
from sparsegen.integrations.torch.calls.launches import Launch, calls


class LaunchedOperator(DirectOperator):
    """A custom operator that tells by one function of C that a call is like the one before, and then launches."""

    def __init__(
        self,
        name: str,
        schema: str,
        make: Callable[..., Launch],
        *,
        fake: Function,
        tensors: int,
        backward: Function | None = None,
        remember: Callable[..., None] | None = None,
    ) -> None:
        """Define ``torch.ops.sparsegen.NAME``; see `DirectOperator`.

        Args:
            make: takes all arguments, checks them, and gives what computes the result for tensors like these; the very
                first one may not be left out.
        """
        super().__init__(
            name,
            schema,
            calls.of(tensors, make),
            fake=fake,
            tensors=tensors,
            backward=backward,
            remember=remember,
        )
        self._make = make

    def __call__(self, *inputs: Any) -> Any:
        """The operator's result; all inputs by position."""
        if not is_watched():
            tensors = self._tensors
            given = inputs[:tensors]
            latest = calls.latest((self._make, inputs[tensors:]), given)
            if latest is not None and latest.asked is not Asked.MORE:
                if latest.asked is Asked.NOTHING or not torch.is_grad_enabled():
                    return latest.target(*given)
                if self.has_gradient:
                    return self._apply_by(*inputs, latest.target)
        return super().__call__(*inputs)
