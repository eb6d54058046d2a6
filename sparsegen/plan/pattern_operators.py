"""The operator objects of a sparsity pattern: SDDMM, sparse softmax and its gradient, sparse attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegen.backends.executor import Executor, Toolchain
from sparsegen.dispatch.choice import Choice
from sparsegen.errors import OperandError
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import SddmmProblem, SoftmaxBackwardProblem, SoftmaxProblem, SparseAttentionProblem
from sparsegen.plan.operator import PreparedOperator


class SddmmOperator(PreparedOperator):
    """D = epilogue((A · Bᵀ) at the nonzeros of one pattern); D has a value for each nonzero, in CSR order."""

    problem: SddmmProblem

    def __init__(
        self, choice: Choice, matrix: CsrMatrix, *, executor: Executor, toolchain: Toolchain
    ) -> None:
        """See `PreparedOperator`."""
        PreparedOperator.__init__(self, choice, matrix, executor=executor, toolchain=toolchain, fixed={})

    def __call__(self, a: Any, b: Any, out: Any = None, stream: Any = None) -> Any:
        """Multiply and sample; see `PreparedOperator` for ``out``, ``stream``, the result and the errors.

        Args:
            a, b: m × k and n × k, contiguous, of the problem's dtype; D has nnz values. With a batch all three have so
                many of these.
        """
        return self._run((a, b), out, stream)


class _ScaledOperator(PreparedOperator):
    """An operator with a number that is fixed when it is prepared, as a softmax has it."""

    def __init__(
        self,
        choice: Choice,
        matrix: CsrMatrix,
        *,
        executor: Executor,
        toolchain: Toolchain,
        scale: float = 1.0,
    ) -> None:
        """See `PreparedOperator`.

        Args:
            scale: what values are multiplied with before the exponential of the softmax.
        """
        fixed = {"scale": np.array([scale], dtype=np.float32)}
        PreparedOperator.__init__(self, choice, matrix, executor=executor, toolchain=toolchain, fixed=fixed)


class SoftmaxOperator(_ScaledOperator):
    """The softmax of each row of one pattern, over values in CSR order; a row without nonzeros gives nothing."""

    problem: SoftmaxProblem

    def __call__(self, values: Any, out: Any = None, stream: Any = None) -> Any:
        """Normalise; see `PreparedOperator` for ``out``, ``stream``, the result and the errors.

        Args:
            values: nnz of them in CSR order (with a batch, batch × nnz), of the problem's dtype; ``out`` may be the
                same array.
        """
        return self._run((values, None), out, stream)


class SoftmaxBackwardOperator(_ScaledOperator):
    """The gradient of a `SoftmaxOperator` with respect to its values, for the same pattern and scale."""

    problem: SoftmaxBackwardProblem

    def __call__(self, y: Any, dy: Any, out: Any = None, stream: Any = None) -> Any:
        """Differentiate; see `PreparedOperator` for ``out``, ``stream``, the result and the errors.

        Args:
            y, dy: what the softmax gave, and the gradient with respect to it: nnz values each in CSR order (with a
                batch, batch × nnz), of the problem's dtype; ``out`` may be either array.
        """
        return self._run((y, dy, None), out, stream)


class SparseAttentionOperator(_ScaledOperator):
    """softmax(scale · Q · Kᵀ at one mask) · V in one launch; a query that sees no key gets zeros."""

    problem: SparseAttentionProblem

    def __call__(self, q: Any, k: Any, v: Any, out: Any = None, stream: Any = None) -> Any:
        """Attend; see `PreparedOperator` for ``out``, ``stream``, the result and the errors.

        Args:
            q, k, v: m × k, n × k and n × k, contiguous, of the problem's dtype, with a batch so many of each. Keys and
                values must be finite also where no query sees them: a weight of 0 times infinity is NaN. ``out`` may be
                q, but share no memory with the others.
        """
        if out is not None and (out is k or out is v):
            raise OperandError(
                "out: expected another array than k and v, which are read while out is written"
            )
        return self._run((q, k, v, None), out, stream)
