"""The baseline of products with masks: cuBLAS's product of the same dense matrices, nothing of it masked.

Making the mask and applying it is not in its time, as it is not in ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sparsegen.kernels.base import Device
from sparsegen.kernels.masked.masked_tiles import Side
from sparsegen.matrix.block_mask import BlockMask
from sparsegen.measure.baselines import Call, cublas
from sparsegen.measure.baselines.session import Session
from sparsegen.operators import DsdProblem, DType, Epilogue, MaskedProblem
from sparsegen.verify.verifier import Verifier, verifier


class MaskedSession(Session):
    """See `Session`."""

    def __init__(self, problem: MaskedProblem, device: Device) -> None:
        """Open the device and draw the operands; every block of the mask is live."""
        plain = replace(problem, epilogue=Epilogue.NONE) if isinstance(problem, DsdProblem) else problem
        Session.__init__(self, plain, device)
        self._side = Side.of(plain)
        layout, block = plain.mask_layout, (plain.block.rows, plain.block.columns)
        live = BlockMask.from_blocks(
            np.ones((layout.rows, layout.columns), np.bool_), block, plain.matrix_shape
        )
        drawn = plain.random_operands(np.random.default_rng(0), 0)
        self._operands = drawn | {"mask": live.words, "scale": np.ones(1, np.float32)}
        self._names = [spec.name for spec in plain.dense_operands()]
        self._dtype = plain.dtype
        self._written = plain.result(0)
        self._verifier = verifier(plain, plain.without_pattern, self._operands, self.executor)

    def calls(self) -> Iterator[Call]:
        """The dense product by cublasGemmEx, of float32 in TF32 as ours."""
        handle = cublas.open_handle()
        left, right = (self.executor.upload(self._operands[name]) for name in self._names)
        result = self.executor.allocate(self._written.nbytes)
        compute = cublas.Compute.TF32 if self._dtype is DType.FLOAT32 else cublas.Compute.FLOAT32
        whole = cublas.ByColumns.of(self._side, left, right, result)
        run = cublas.product_of(handle, self._dtype, whole, compute)
        detail = f"dense {self._dtype}, nothing masked"
        yield Call("cublas", f"cuBLAS {cublas.version(handle)}", detail, run, result, self._side.by_columns)

    def verifier_of(self, call: Call) -> Verifier:
        """The verifier of the product with every block live."""
        return self._verifier
