"""A sparsity pattern that many calls share, with the operators that were prepared for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from sparsegen import api, arguments
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.calls.call_plans import MOST_PLANS, LaunchPlan, Plan, Plans, SampledPlan
from sparsegen.integrations.torch.calls.dense_products import DensePlan, DensePrepared, SharedWeight
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.handles import Handles
from sparsegen.integrations.torch.calls.prepared import Prepared
from sparsegen.integrations.torch.pattern.linear_steps import LinearStep
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.formats import as_mask
from sparsegen.operators import Epilogue
from sparsegen.system.bounded import Bounded

# Operators of one pattern: three for each number of tokens, dtype and device; of attention five for each head_dim.
MOST_PREPARED = 16


class Product(StrEnum):
    """Products on a pattern of out × in."""

    FORWARD = "forward"  # X · Wᵀ, tokens × out
    TRANSPOSED = "transposed"  # Y · W, tokens × in
    SAMPLED = "sampled"  # (Yᵀ · X) at the pattern
    SOFTMAX = "softmax"  # softmax of each row of values at the pattern
    SOFTMAX_BACKWARD = "softmax_backward"  # its gradient
    WEIGHTED = "weighted"  # W · X, out × features
    WEIGHTED_TRANSPOSED = "weighted_transposed"  # Wᵀ · Y, in × features
    ATTENTION = "attention"  # softmax(scale · Q · Kᵀ at the pattern) · V, by the fused kernel


class SparsePattern:
    """The places of the nonzeros of a weight of out × in features, or of a mask of queries × keys.

    Operators are prepared for it when a call first needs them: for each product, number of tokens, dtype and device.
    The latest `MOST_PREPARED` of them are kept, and all that a CUDA graph was captured with (capture after a first
    call). Copies and unpickled patterns have their own, prepared anew.

    Calls on one pattern with different values, or on different streams, must not overlap on the GPU: the values are
    gathered to where the kernels read them.

    Attributes:
        shape: (out, in), or (queries, keys).
        db: the tuning database that calls look into; None for the default.
        run_dense: permission of PyTorch's dense products in the place of kernels: if they take less time (timed on the
            spot if estimates do not tell), never, or always. All of one dtype share one full weight.
        plans: plans of calls like earlier ones.
        steps: training steps like earlier ones, and the `like_before.LATEST`.
        handle: names the pattern to the custom operators in this process, as long as the pattern lives.
    """

    def __init__(
        self, matrix: object, *, run_dense: Dense | str = Dense.AUTO, db: str | Path | None = None
    ) -> None:
        """Take the pattern of a matrix; its values play no part.

        Args:
            matrix: anything that `sparsegen.as_csr` takes; of a dense mask or weight, the places that are not zero.
            run_dense: see ``dense`` of `sparsegen.prepare`, for the products of a linear layer.
            db: see `sparsegen.prepare`.

        Raises:
            MatrixError: it is malformed.
            ConfigError: an unknown word, or a db that is none.
        """
        self.run_dense = Dense.parse(run_dense, "run_dense")
        self.db = None if db is None else arguments.location(db, "db")
        csr = as_mask(matrix)
        self.matrix = csr.with_values(np.ones(csr.nnz, dtype=np.float32))
        self.handle = pattern_of.name(self)
        self._prepared: OrderedDict[tuple[object, ...], Prepared | DensePrepared] = OrderedDict()
        self.plans = Plans()
        self.steps: dict[Hashable, LinearStep] = Bounded(MOST_PLANS)
        self._weights: WeakValueDictionary[tuple[torch.dtype, torch.device], SharedWeight] = (
            WeakValueDictionary()
        )
        self._places: dict[tuple[torch.device, bool], tuple[Tensor, Tensor, Tensor]] = {}
        self._index_tensors: tuple[Tensor, Tensor] | None = None
        self._lock = threading.Lock()

    @classmethod
    def of_csr(
        cls,
        shape: tuple[int, int],
        row_offsets: Tensor,
        column_indices: Tensor,
        *,
        run_dense: Dense | str = Dense.AUTO,
        db: str | Path | None = None,
    ) -> SparsePattern:
        """The pattern with these index arrays, which are checked.

        Raises:
            MatrixError: they are no pattern of that shape with sorted columns.
        """
        offsets, columns = (np.array(t.detach().cpu().numpy()) for t in (row_offsets, column_indices))
        matrix = CsrMatrix(shape, offsets, columns, np.ones(columns.shape, dtype=np.float32))
        return cls(matrix, run_dense=run_dense, db=db)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def nnz(self) -> int:
        return self.matrix.nnz

    @property
    def sparsity(self) -> float:
        """Zeros over weights; 0 where there are none."""
        size = self.shape[0] * self.shape[1]
        return 1 - self.nnz / size if size else 0.0

    def __repr__(self) -> str:
        return f"SparsePattern({self.shape[0]} × {self.shape[1]}, {self.nnz} nonzeros)"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SparsePattern, run_dense=str(self.run_dense), db=self.db), (self.matrix,)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparsePattern:
        return SparsePattern(self.matrix, run_dense=self.run_dense, db=self.db)

    @property
    def dense_bytes(self) -> int:
        """Bytes of the full weights that dense products multiply by; 0 where sparse ones run."""
        return sum(weight.nbytes for weight in list(self._weights.values()))

    def index_tensors(self) -> tuple[Tensor, Tensor]:
        """Row offsets and column indices, int32 on the CPU, which are not to be written."""
        if self._index_tensors is None:
            arrays = (self.matrix.row_offsets, self.matrix.column_indices)
            offsets, columns = (torch.from_numpy(np.array(a)) for a in arrays)
            self._index_tensors = offsets, columns
        return self._index_tensors

    def places(self, device: torch.device, *, transposed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and the numbers of the nonzeros (int64, on the device), in CSR order of W or of Wᵀ."""
        key = (device, transposed)
        if key not in self._places:
            offsets, columns = self.matrix.row_offsets, self.matrix.column_indices
            numbers = np.arange(self.nnz)
            if transposed:
                turned = self.matrix.transposition()
                offsets, columns, numbers = turned.row_offsets, turned.column_indices, turned.source
            rows = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
            found = [torch.from_numpy(a.astype(np.int64)).to(device) for a in (rows, columns, numbers)]
            self._places[key] = (found[0], found[1], found[2])
        return self._places[key]

    def prepared(
        self,
        product: Product,
        tokens: int,
        like: Tensor,
        *,
        epilogue: Epilogue = Epilogue.NONE,
        scale: float = 1.0,
        batch: int = 1,
    ) -> Prepared | DensePrepared | None:
        """Returns the operator for a product with ``tokens`` tokens (for weighted ones: features) of tensors like this
        one.

        The softmaxes take no tokens, attention head_dim instead, and these alone a scale; `FORWARD` alone has an
        epilogue. The elements of a batch of weighted products have values of their own. None if PyTorch's own product
        is to run: see `kernel_device`.
        """
        where = kernel_device(like)
        if where is None:
            return None
        key = (product, tokens, like.dtype, where.backend, where.index, epilogue, scale, batch)
        with self._lock:
            if key not in self._prepared:
                self._prepared[key] = self._prepare(product, tokens, like, where, epilogue, scale, batch)
                self._drop_oldest(key)
            self._prepared.move_to_end(key)
            return self._prepared[key]

    def _prepare(
        self,
        product: Product,
        tokens: int,
        like: Tensor,
        where: Device,
        epilogue: Epilogue,
        scale: float,
        batch: int,
    ) -> Prepared | DensePrepared:
        shared: dict[str, Any] = {
            "dtype": DTYPES[like.dtype],
            "device": where,
            "batch": batch,
            "db": self.db,
        }
        match product:
            case Product.SAMPLED:
                return Prepared(api.prepare(self.matrix, operator="sddmm", k=tokens, **shared))
            case Product.SOFTMAX:
                return Prepared(api.prepare(self.matrix, operator="sparse_softmax", scale=scale, **shared))
            case Product.ATTENTION:
                return Prepared(
                    api.prepare(self.matrix, operator="sparse_attention", k=tokens, scale=scale, **shared)
                )
            case Product.SOFTMAX_BACKWARD:
                return Prepared(
                    api.prepare(self.matrix, operator="sparse_softmax_backward", scale=scale, **shared)
                )
        is_linear = product in (Product.FORWARD, Product.TRANSPOSED)
        transposed = product in (Product.TRANSPOSED, Product.WEIGHTED_TRANSPOSED)
        operator = api.prepare(
            self.matrix,
            n=tokens,
            layout="column" if is_linear else "row",
            epilogue=epilogue,
            transpose=transposed,
            item_values="own" if batch > 1 else None,
            dense=self.run_dense if is_linear else Dense.NEVER,
            **shared,
        )
        choice = operator.choice
        if operator.variant is not None:
            return Prepared(operator)
        del operator  # frees its full weight
        assert isinstance(choice, Choice)
        return DensePrepared(self._weight(like, where), choice, transposed=transposed)

    def _weight(self, like: Tensor, where: Device) -> SharedWeight:
        """The full weight for products with such tensors, which all of them share."""
        key = (like.dtype, like.device)
        found = self._weights.get(key)
        if found is None:
            found = self._weights[key] = SharedWeight(self.matrix, like.dtype, like.device, where)
        return found

    def plan(
        self,
        prepared: Prepared | DensePrepared,
        like: Tensor,
        shape: Sequence[int],
        bias: Tensor | None = None,
    ) -> Plan | None:
        """Returns the plan of calling a product again with tensors like these; None if each call takes the long route.

        Args:
            shape: the result's shape.
        """
        if isinstance(prepared, DensePrepared):
            return DensePlan(prepared, like, bias) if prepared.is_product else None
        launcher = prepared.launcher
        return None if launcher is None else LaunchPlan(prepared, launcher, torch.Size(shape), like, bias)

    def sampled_plan(self, prepared: Prepared | DensePrepared, y: Tensor, x: Tensor) -> Plan | None:
        """The same of a sampled product of two tensors."""
        if isinstance(prepared, DensePrepared) or prepared.launcher is None:
            return None
        return SampledPlan(prepared, prepared.launcher, torch.Size((self.nnz,)), y, x)

    def forget(self) -> None:
        """Free all that was prepared, which no captured graph may use any more; later calls prepare anew."""
        with self._lock:
            self._prepared.clear()
            self.plans.clear()
            self.steps.clear()

    def _drop_oldest(self, newest: tuple[object, ...]) -> None:
        excess = len(self._prepared) - MOST_PREPARED
        if excess <= 0:
            return
        used = self.plans.were_used()
        for key in [key for key, prepared in self._prepared.items() if id(prepared) in used]:
            self._prepared.move_to_end(key)
        self._prepared.move_to_end(newest)
        free = [key for key, prepared in self._prepared.items() if not prepared.was_captured]
        for key in free[:excess]:
            self.plans.drop(self._prepared.pop(key))
        self.steps.clear()  # any may call what is gone


pattern_of: Handles[SparsePattern] = Handles(
    "there is no sparsity pattern {}: keep the SparsePattern as long as it is multiplied with"
)
