"""Operators that compute nothing, on the CPU as on a GPU: what is left of a call is what it costs the host."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from sparsegen import api, backends
from sparsegen.integrations.torch.calls import devices
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.prepared import Prepared
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.integrations.torch.pattern.pattern import SparsePattern


class Idle:
    """Stand-in for the result of `sparsegen.prepare`: returns ones of the result's shape, or leaves ``out`` as it
    is.
    """

    device = SimpleNamespace(backend="cuda", index=-1)
    launcher = None

    def __init__(self, problem: Any = None) -> None:
        self._result = None if problem is None else np.ones(problem.result(0).shape, np.float32)

    def __call__(self, *operands: Any, out: Any = None, **_: Any) -> Any:
        return self._result if out is None else out

    def update_values(self, values: Any) -> None:
        """Does nothing: no product uses them."""


def idle_operators(monkeypatch: Any) -> None:
    """Have all operators on the CPU prepared so."""
    device = backends.find_device("emulator")
    monkeypatch.setattr(operators, "found", OrderedDict())
    monkeypatch.setattr(calls, "known", {})
    monkeypatch.setitem(devices._gpus, torch.device("cpu"), device)
    monkeypatch.setattr(api, "prepare", lambda problem, device, **_: Idle(problem))
    monkeypatch.setattr(SparsePattern, "_prepare", lambda *_: Prepared(Idle()))
