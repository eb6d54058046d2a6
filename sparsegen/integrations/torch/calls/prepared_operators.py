"""Operators of problems whose sparsity comes with every call, prepared when a call first needs them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsegen import api
from sparsegen.integrations.torch.calls.prepared import aligned, array_of
from sparsegen.kernels.base import Device
from sparsegen.operators import Problem

MOST_PREPARED = 128  # operators of this process, besides those that a graph was captured with


@dataclass(slots=True)
class _Prepared:
    operator: Any
    was_captured: bool = False


class Operators:
    """The latest operators, `MOST_PREPARED` of them and all that a CUDA graph was captured with.

    Attributes:
        found: operators by the arguments that they were prepared for.
    """

    def __init__(self) -> None:
        self.found: OrderedDict[tuple[Any, ...], _Prepared] = OrderedDict()
        self._captured: list[object] = []
        self._lock = threading.Lock()

    def keep(self, launch: object) -> None:
        """Have what a CUDA graph was captured with live as long as the process."""
        with self._lock:
            self._captured.append(launch)

    def get(self, problem: Problem, device: Device, captures: bool = False, **kept: Any) -> Any:
        """The operator of a problem that runs a variant, prepared unless it is there.

        Args:
            captures: a CUDA graph captures the call; `keep` says so later.
            kept: further arguments of `sparsegen.prepare`.
        """
        key = problem, device.backend, device.index, *kept.items()
        with self._lock:
            if key not in self.found:
                operator = api.prepare(problem=problem, device=device, dense="never", **kept)
                self.found[key] = _Prepared(operator)
                free = [old for old, prepared in self.found.items() if not prepared.was_captured]
                for old in free[: max(0, len(self.found) - MOST_PREPARED)]:
                    del self.found[old]
            found = self.found[key]
            found.was_captured |= captures
            self.found.move_to_end(key)
            return found.operator


operators = Operators()


def called(
    operator: Any, given: Sequence[Tensor], words: Tensor, out: Tensor | None = None, **added: Tensor
) -> Tensor:
    """Calls an operator on tensors and on the words that name live places; writes to ``out`` if it is given."""
    tensors = [aligned(tensor) for tensor in given]
    more = {name: tensor.contiguous() for name, tensor in added.items()}
    result: Tensor
    if words.is_cuda:
        result = operator(*tensors, words, out=out, **more)
        return result
    added_arrays = {name: array_of(tensor) for name, tensor in more.items()}
    into = None if out is None else array_of(out)
    found = operator(*map(array_of, tensors), words.numpy(), out=into, **added_arrays)
    result = torch.from_numpy(found).to(given[0].dtype)
    return result if out is None else out.copy_(result)
