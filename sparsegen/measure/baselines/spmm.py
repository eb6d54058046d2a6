"""Baselines of ``spmm``: dense cuBLAS and cuSPARSE."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baselines import Call, cublas, cusparse
from sparsegen.measure.baselines.libraries import LibraryUnavailableError
from sparsegen.measure.baselines.session import Session
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.verify.verifier import Verifier, verifier

logger = logging.getLogger(__name__)


class SpmmSession(Session):
    """See `Session`."""

    def __init__(self, matrix: CsrMatrix, problem: SpmmProblem, device: Device) -> None:
        """Open the device and draw B.

        Args:
            matrix: A; its values are rounded to the problem's dtype.
        """
        Session.__init__(self, problem, device)
        self.problem = problem
        self.stored = problem.random_operands(np.random.default_rng(0), matrix.nnz)["b"]
        self.matrix = matrix
        self._verifiers: dict[Layout, Verifier] = {}

    def calls(self) -> Iterator[Call]:
        """See `Session.calls`."""
        for module in (cublas, cusparse):
            try:
                yield from module.calls(self.executor, self.matrix, self.problem, self.stored)
            except LibraryUnavailableError as error:
                logger.warning("%s", error)

    def verifier_of(self, call: Call) -> Verifier:
        """The verifier of the bare product, with its result in the call's layout."""
        layout = Layout.COLUMN if call.columns else Layout.ROW
        if layout not in self._verifiers:
            p = self.problem
            plain = SpmmProblem(p.m, p.k, p.n, p.dtype, layout)
            b = self.stored if layout is p.layout else np.ascontiguousarray(self.stored.T)
            self._verifiers[layout] = verifier(plain, self.matrix, {"b": b}, self.executor)
        return self._verifiers[layout]
