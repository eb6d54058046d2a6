"""Operators: what is computed, apart from how. One frozen problem class for each operator.

A problem is one instance of an operator: shapes, dtype, layouts, epilogue. It knows its operands, its
result, a float64 reference and its cost, so that families only say how to compute it.
"""

from __future__ import annotations

from sparsegen.errors import ConfigError
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.operators.dtype import Array, DType
from sparsegen.operators.problem import (
    LATER_FIELDS,
    Cost,
    LoneRow,
    Problem,
    TensorSpec,
    field_types,
    member,
)
from sparsegen.operators.reference import DeviceReference, Reference, terms_stride
from sparsegen.operators.sddmm import SddmmEpilogue, SddmmProblem
from sparsegen.operators.softmax import SoftmaxBackwardProblem, SoftmaxProblem
from sparsegen.operators.sparse_attention import SparseAttentionProblem
from sparsegen.operators.spmm import Epilogue, ItemValues, Layout, SpmmProblem

__all__ = [
    "LATER_FIELDS",
    "MAX_INDEX",
    "OPERATORS",
    "Array",
    "Cost",
    "DType",
    "DeviceReference",
    "Epilogue",
    "ItemValues",
    "Layout",
    "LoneRow",
    "Problem",
    "Reference",
    "SddmmEpilogue",
    "SddmmProblem",
    "SoftmaxBackwardProblem",
    "SoftmaxProblem",
    "SparseAttentionProblem",
    "SpmmProblem",
    "TensorSpec",
    "field_types",
    "member",
    "operator_named",
    "terms_stride",
]

OPERATORS: dict[str, type[Problem]] = {
    p.operator: p
    for p in (SpmmProblem, SddmmProblem, SoftmaxProblem, SoftmaxBackwardProblem, SparseAttentionProblem)
}


def operator_named(name: str) -> type[Problem]:
    """The problem class of an operator.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    try:
        return OPERATORS[name]
    except KeyError:
        raise ConfigError(f"no operator {name!r}; there are {', '.join(OPERATORS)}") from None
