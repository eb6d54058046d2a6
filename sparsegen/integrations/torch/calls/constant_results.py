"""Functions whose results `torch.compile` takes for constants; PyTorch's own mark imports Dynamo, a second's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def constant_result(function: F) -> F:
    """Mark a function as `torch.compiler.assume_constant_result` does."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
