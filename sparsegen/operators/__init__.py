"""Operators: what is computed, apart from how. One module each, discovered by its ``PROBLEMS``.

A problem is one instance of an operator: shapes, dtype, layouts, epilogue. It knows its operands, its
result, a float64 reference and its cost, so that families only say how to compute it.
"""

from __future__ import annotations

import importlib
import pkgutil

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.operators.conv_traits import ConvEpilogue, Given, ImageLayout, MaskOf
from sparsegen.operators.cost import Cost
from sparsegen.operators.dsd import DsdOperator, DsdProblem, DsdTransposedOperator, DsdTransposedProblem
from sparsegen.operators.dtype import Array, DType, WordType
from sparsegen.operators.epilogue import Epilogue
from sparsegen.operators.fields import Field, Parameter, fields_of, member, parameter, size, trait
from sparsegen.operators.filter_volume import FilterVolume
from sparsegen.operators.float8 import FactorType, Float8
from sparsegen.operators.layout import Layout
from sparsegen.operators.masked import Block, Density, MaskedOperator, MaskedProblem
from sparsegen.operators.masked_conv2d import MaskedConv2dOperator, MaskedConv2dProblem
from sparsegen.operators.masked_conv2d_weights import (
    MaskedConv2dWeightsOperator,
    MaskedConv2dWeightsProblem,
)
from sparsegen.operators.operator import Launcher, Operator
from sparsegen.operators.problem import HasDense, LoneRow, Problem
from sparsegen.operators.reference import DeviceReference, Reference, terms_stride
from sparsegen.operators.rest import Rest
from sparsegen.operators.sdd import SddOperator, SddProblem
from sparsegen.operators.sddmm import SddmmEpilogue, SddmmOperator, SddmmProblem
from sparsegen.operators.softmax import (
    SoftmaxBackwardOperator,
    SoftmaxBackwardProblem,
    SoftmaxOperator,
    SoftmaxProblem,
)
from sparsegen.operators.sparse_attention import SparseAttentionOperator, SparseAttentionProblem
from sparsegen.operators.sparse_network import (
    Activation,
    Readout,
    SparseNetworkOperator,
    SparseNetworkProblem,
)
from sparsegen.operators.spmm import ItemValues, SparseOperator, SpmmProblem
from sparsegen.operators.submanifold_conv3d import (
    PointsProblem,
    SubmanifoldConv3dOperator,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsOperator,
    SubmanifoldConv3dWeightsProblem,
)
from sparsegen.operators.tensor_spec import TensorSpec
from sparsegen.operators.window import Dilation, FilterSize, Groups, MaskBlock, Padding, Stride

__all__ = [
    "DEFAULT_OPERATOR",
    "MAX_INDEX",
    "OPERATORS",
    "Activation",
    "Array",
    "Block",
    "ConvEpilogue",
    "Cost",
    "DType",
    "Density",
    "DeviceReference",
    "Dilation",
    "DsdOperator",
    "DsdProblem",
    "DsdTransposedOperator",
    "DsdTransposedProblem",
    "Epilogue",
    "FactorType",
    "Field",
    "FilterSize",
    "FilterVolume",
    "Float8",
    "Given",
    "Groups",
    "HasDense",
    "ImageLayout",
    "ItemValues",
    "Launcher",
    "Layout",
    "LoneRow",
    "MaskBlock",
    "MaskOf",
    "MaskedConv2dOperator",
    "MaskedConv2dProblem",
    "MaskedConv2dWeightsOperator",
    "MaskedConv2dWeightsProblem",
    "MaskedOperator",
    "MaskedProblem",
    "Operator",
    "Padding",
    "Parameter",
    "PointsProblem",
    "Problem",
    "Readout",
    "Reference",
    "Rest",
    "SddOperator",
    "SddProblem",
    "SddmmEpilogue",
    "SddmmOperator",
    "SddmmProblem",
    "SoftmaxBackwardOperator",
    "SoftmaxBackwardProblem",
    "SoftmaxOperator",
    "SoftmaxProblem",
    "SparseAttentionOperator",
    "SparseAttentionProblem",
    "SparseNetworkOperator",
    "SparseNetworkProblem",
    "SparseOperator",
    "SpmmProblem",
    "Stride",
    "SubmanifoldConv3dOperator",
    "SubmanifoldConv3dProblem",
    "SubmanifoldConv3dWeightsOperator",
    "SubmanifoldConv3dWeightsProblem",
    "TensorSpec",
    "WordType",
    "fields_of",
    "member",
    "operator_named",
    "parameter",
    "size",
    "terms_stride",
    "trait",
]

DEFAULT_OPERATOR = SpmmProblem.operator  # where none is named


def _discovered() -> dict[str, type[Problem]]:
    """The problem class of every operator by name: the default one, then the others in the order of their modules."""
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    found = [kind for module in modules for kind in getattr(module, "PROBLEMS", ())]
    return {kind.operator: kind for kind in sorted(found, key=lambda k: k.operator != DEFAULT_OPERATOR)}


OPERATORS = _discovered()


def operator_named(name: str) -> type[Problem]:
    """The problem class of an operator.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    try:
        return OPERATORS[arguments.text(name, "operator")]
    except KeyError:
        raise ConfigError(f"no operator {name!r}; there are {', '.join(OPERATORS)}") from None
