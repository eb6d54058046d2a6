"""Sparse products as on a GPU, on the CPU: their launches get addresses, and compute what lies there with NumPy."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from sparsegen import backends
from sparsegen.integrations.torch.calls import call_plans, column_sums, devices
from sparsegen.integrations.torch.calls import prepared as prepared_module
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.prepared import Prepared
from sparsegen.integrations.torch.pattern.pattern import Product, SparsePattern
from sparsegen.operators import Epilogue
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.variant_launcher import VariantLauncher

STREAM = 0
NUMPY = {torch.float32: np.float32, torch.float16: np.float16}


def at(address: int, shape: tuple[int, ...], kind: Any) -> Any:
    """The array at an address."""
    count = int(np.prod(shape))
    raw = (ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address)
    return np.frombuffer(raw, kind, count).reshape(shape)


@dataclass
class Launches:
    """Record of launches and their stream: one that a CUDA graph captures, or the default one.

    Attributes:
        seen: the products of launches, in order.
        sent, gathered: number of times that `update_values` sent values, and that they were gathered from trained ones.
        is_idle: compute nothing, so that only the steps before are counted.
    """

    seen: list[Product] = field(default_factory=list)
    sent: int = 0
    gathered: int = 0
    stream: int = STREAM
    captures: bool = False
    is_idle: bool = False


class Operator:
    """Stand-in for the result of `sparsegen.prepare`, for one product of a pattern."""

    def __init__(
        self,
        launches: Launches,
        pattern: SparsePattern,
        product: Product,
        tokens: int,
        kind: Any,
        epilogue: Any,
    ) -> None:
        self._launches, self._pattern, self._product = launches, pattern, product
        self._tokens, self._kind, self._epilogue = tokens, NUMPY[kind], epilogue
        self._dtype = kind
        self._weight = np.zeros(pattern.shape, self._kind)
        self.device = SimpleNamespace(backend="cuda", index=-1)
        self.launcher = object.__new__(VariantLauncher)
        self.launcher.prepared = SimpleNamespace(
            bound=lambda: self._launch,
            launching=threading.Lock(),
            gather_from=self._gather,
            packed=SimpleNamespace(nnz=pattern.nnz),
            executor=shared_executor(backends.emulator_device()),
        )

    def update_values(self, values: torch.Tensor) -> None:
        self._launches.sent += 1
        self._have(values.detach().to(self._dtype).numpy())

    def _gather(self, address: int, stream: int) -> None:
        if self._launches.is_idle:
            return
        self._launches.gathered += 1
        self._have(at(address, (self._pattern.nnz,), self._kind))

    def _have(self, values: Any) -> None:
        rows, columns, _ = self._pattern.places(torch.device("cpu"))
        self._weight[rows.numpy(), columns.numpy()] = values

    def __call__(self, *operands: torch.Tensor, out: Any = None, bias: Any = None) -> torch.Tensor:
        given = [*operands] if bias is None else [*operands, bias]
        rows, columns = self._pattern.shape
        shape = {
            Product.FORWARD: (self._tokens, rows),
            Product.TRANSPOSED: (self._tokens, columns),
            Product.SAMPLED: (self._pattern.nnz,),
        }[self._product]
        out = operands[0].new_empty(shape)
        self._launch(self._launches.stream, *(t.data_ptr() for t in (*given, out)))
        return out

    def _launch(self, stream: int, *addresses: int) -> None:
        if self._launches.is_idle:
            return
        assert stream == self._launches.stream
        self._launches.seen.append(self._product)
        kind, (rows, columns), n = self._kind, self._pattern.shape, self._tokens
        *given, out = addresses
        if self._product is Product.SAMPLED:
            y, x = at(given[0], (rows, n), kind), at(given[1], (columns, n), kind)
            i, j, _ = self._pattern.places(torch.device("cpu"))
            at(out, (self._pattern.nnz,), kind)[:] = (y @ x.T)[i.numpy(), j.numpy()]
            return
        forward = self._product is Product.FORWARD
        x = at(given[0], (n, columns if forward else rows), kind)
        y = x @ (self._weight.T if forward else self._weight)
        if self._epilogue is not Epilogue.NONE:
            y = y + at(given[1], (rows,), kind)
        if self._epilogue is Epilogue.BIAS_RELU:
            y = np.maximum(y, 0)
        at(out, y.shape, kind)[:] = y


def launched_on_cpu(monkeypatch: Any) -> Launches:
    """Have the products of all patterns launched so."""
    launches = Launches()

    def prepare(
        self: SparsePattern, product: Product, tokens: int, like: Any, where: Any, epilogue: Any, *_: Any
    ) -> Prepared:
        return Prepared(Operator(launches, self, product, tokens, like.dtype, epilogue))

    def may_be_idle(module: Any, bind: str) -> None:
        made = getattr(module, bind)

        def bound(*what: Any) -> Any:
            launch = made(*what)
            return lambda *given: None if launches.is_idle else launch(*given)

        monkeypatch.setattr(module, bind, bound)

    may_be_idle(call_plans, "bind_transposes")
    may_be_idle(column_sums, "bind_column_sums")
    monkeypatch.setattr(calls, "known", {})
    device = backends.emulator_device()
    monkeypatch.setattr(SparsePattern, "_prepare", prepare)
    monkeypatch.setitem(devices._gpus, torch.device("cpu"), device)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: launches.stream, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: launches.captures)
    for module in (prepared_module, call_plans):
        monkeypatch.setattr(module, "is_capturing", lambda tensor: launches.captures)
    return launches
