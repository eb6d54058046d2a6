"""sparsegen: an autotuning code-generation compiler for sparse GPU kernels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsegen.api import load_operator, lookup, prepare, prune, save_operator, tune
    from sparsegen.attention import AttentionOperator, prepare_attention
    from sparsegen.attention_choice import Way
    from sparsegen.dispatch import Choice, How, OnMiss
    from sparsegen.errors import SparsegenError
    from sparsegen.formats import CsrMatrix, as_csr
    from sparsegen.fused_attention import FusedAttentionOperator
    from sparsegen.matrix_io import load_matrix
    from sparsegen.operator import SparseOperator
    from sparsegen.operators import (
        DType,
        Epilogue,
        ItemValues,
        Layout,
        SddmmEpilogue,
        SddmmProblem,
        SoftmaxBackwardProblem,
        SoftmaxProblem,
        SparseAttentionProblem,
        SpmmProblem,
    )
    from sparsegen.pattern_operators import (
        SddmmOperator,
        SoftmaxBackwardOperator,
        SoftmaxOperator,
        SparseAttentionOperator,
    )

__version__ = "0.1.0"

_HOME = {  # name -> module; imported on first use, so that `import sparsegen` and `--help` are instant
    "AttentionOperator": "attention",
    "Choice": "dispatch",
    "CsrMatrix": "formats",
    "DType": "operators",
    "Epilogue": "operators",
    "FusedAttentionOperator": "fused_attention",
    "How": "dispatch",
    "ItemValues": "operators",
    "Layout": "operators",
    "OnMiss": "dispatch",
    "SddmmEpilogue": "operators",
    "SddmmOperator": "pattern_operators",
    "SddmmProblem": "operators",
    "SoftmaxBackwardOperator": "pattern_operators",
    "SoftmaxBackwardProblem": "operators",
    "SoftmaxOperator": "pattern_operators",
    "SoftmaxProblem": "operators",
    "SparseAttentionOperator": "pattern_operators",
    "SparseAttentionProblem": "operators",
    "SparseOperator": "operator",
    "SparsegenError": "errors",
    "SpmmProblem": "operators",
    "Way": "attention_choice",
    "as_csr": "formats",
    "load_matrix": "matrix_io",
    "load_operator": "api",
    "lookup": "api",
    "prepare": "api",
    "prepare_attention": "attention",
    "prune": "api",
    "save_operator": "api",
    "tune": "api",
}

__all__ = [
    "AttentionOperator",
    "Choice",
    "CsrMatrix",
    "DType",
    "Epilogue",
    "FusedAttentionOperator",
    "How",
    "ItemValues",
    "Layout",
    "OnMiss",
    "SddmmEpilogue",
    "SddmmOperator",
    "SddmmProblem",
    "SoftmaxBackwardOperator",
    "SoftmaxBackwardProblem",
    "SoftmaxOperator",
    "SoftmaxProblem",
    "SparseAttentionOperator",
    "SparseAttentionProblem",
    "SparseOperator",
    "SparsegenError",
    "SpmmProblem",
    "Way",
    "__version__",
    "as_csr",
    "load_matrix",
    "load_operator",
    "lookup",
    "prepare",
    "prepare_attention",
    "prune",
    "save_operator",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sparsegen' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sparsegen.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
