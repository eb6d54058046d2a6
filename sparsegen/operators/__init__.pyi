"""What `sparsegen.operators` exports: one line a name, which type checkers and `__init__.py` both read."""

from sparsegen.matrix.csr import MAX_INDEX as MAX_INDEX
from sparsegen.operators.attention.block_attention import BlockAttentionOperator as BlockAttentionOperator
from sparsegen.operators.attention.block_attention import BlockAttentionProblem as BlockAttentionProblem
from sparsegen.operators.attention.block_attention_backward import (
    BlockAttentionBackwardOperator as BlockAttentionBackwardOperator,
)
from sparsegen.operators.attention.block_attention_backward import (
    BlockAttentionBackwardProblem as BlockAttentionBackwardProblem,
)
from sparsegen.operators.attention.paged_attention import PagedAttentionOperator as PagedAttentionOperator
from sparsegen.operators.attention.paged_attention import PagedAttentionProblem as PagedAttentionProblem
from sparsegen.operators.attention.paged_traits import Chosen as Chosen
from sparsegen.operators.attention.paged_traits import PageCount as PageCount
from sparsegen.operators.attention.paged_traits import PageSize as PageSize
from sparsegen.operators.attention.scores import Room as Room
from sparsegen.operators.attention.span import Band as Band
from sparsegen.operators.attention.span import Span as Span
from sparsegen.operators.attention.sparse_attention import SparseAttentionOperator as SparseAttentionOperator
from sparsegen.operators.attention.sparse_attention import SparseAttentionProblem as SparseAttentionProblem
from sparsegen.operators.attention.traits import MasksOf as MasksOf
from sparsegen.operators.attention.traits import ScoreChange as ScoreChange
from sparsegen.operators.attention.traits import SinkLogits as SinkLogits
from sparsegen.operators.attention.traits import TokenOrder as TokenOrder
from sparsegen.operators.base.cost import Cost as Cost
from sparsegen.operators.base.default_operator import DEFAULT_OPERATOR as DEFAULT_OPERATOR
from sparsegen.operators.base.dtype import DType as DType
from sparsegen.operators.base.dtype import WordType as WordType
from sparsegen.operators.base.epilogue import Epilogue as Epilogue
from sparsegen.operators.base.fields import Field as Field
from sparsegen.operators.base.fields import Parameter as Parameter
from sparsegen.operators.base.fields import fields_of as fields_of
from sparsegen.operators.base.fields import member as member
from sparsegen.operators.base.fields import parameter as parameter
from sparsegen.operators.base.fields import size as size
from sparsegen.operators.base.fields import trait as trait
from sparsegen.operators.base.float8 import FactorType as FactorType
from sparsegen.operators.base.float8 import Float8 as Float8
from sparsegen.operators.base.layout import Layout as Layout
from sparsegen.operators.base.operator import Launcher as Launcher
from sparsegen.operators.base.operator import Operator as Operator
from sparsegen.operators.base.problem import HasDense as HasDense
from sparsegen.operators.base.problem import LoneRow as LoneRow
from sparsegen.operators.base.problem import Problem as Problem
from sparsegen.operators.base.quantized import ScaleGroup as ScaleGroup
from sparsegen.operators.base.quantized import Symmetry as Symmetry
from sparsegen.operators.base.quantized import ValueType as ValueType
from sparsegen.operators.base.reference import DeviceReference as DeviceReference
from sparsegen.operators.base.reference import Reference as Reference
from sparsegen.operators.base.reference import terms_stride as terms_stride
from sparsegen.operators.base.rest import Rest as Rest
from sparsegen.operators.base.tensor_spec import TensorSpec as TensorSpec
from sparsegen.operators.convolution.conv_traits import ConvEpilogue as ConvEpilogue
from sparsegen.operators.convolution.conv_traits import Given as Given
from sparsegen.operators.convolution.conv_traits import ImageLayout as ImageLayout
from sparsegen.operators.convolution.conv_traits import MaskOf as MaskOf
from sparsegen.operators.convolution.masked_conv2d import MaskedConv2dOperator as MaskedConv2dOperator
from sparsegen.operators.convolution.masked_conv2d import MaskedConv2dProblem as MaskedConv2dProblem
from sparsegen.operators.convolution.masked_conv2d_weights import (
    MaskedConv2dWeightsOperator as MaskedConv2dWeightsOperator,
)
from sparsegen.operators.convolution.masked_conv2d_weights import (
    MaskedConv2dWeightsProblem as MaskedConv2dWeightsProblem,
)
from sparsegen.operators.convolution.submanifold_conv3d import PointsProblem as PointsProblem
from sparsegen.operators.convolution.submanifold_conv3d import (
    SubmanifoldConv3dOperator as SubmanifoldConv3dOperator,
)
from sparsegen.operators.convolution.submanifold_conv3d import (
    SubmanifoldConv3dProblem as SubmanifoldConv3dProblem,
)
from sparsegen.operators.convolution.submanifold_conv3d import (
    SubmanifoldConv3dWeightsOperator as SubmanifoldConv3dWeightsOperator,
)
from sparsegen.operators.convolution.submanifold_conv3d import (
    SubmanifoldConv3dWeightsProblem as SubmanifoldConv3dWeightsProblem,
)
from sparsegen.operators.convolution.window import Dilation as Dilation
from sparsegen.operators.convolution.window import FilterSize as FilterSize
from sparsegen.operators.convolution.window import FilterVolume as FilterVolume
from sparsegen.operators.convolution.window import Groups as Groups
from sparsegen.operators.convolution.window import MaskBlock as MaskBlock
from sparsegen.operators.convolution.window import Padding as Padding
from sparsegen.operators.convolution.window import Stride as Stride
from sparsegen.operators.discovery import OPERATORS as OPERATORS
from sparsegen.operators.discovery import operator_named as operator_named
from sparsegen.operators.masked.dsd import DsdOperator as DsdOperator
from sparsegen.operators.masked.dsd import DsdProblem as DsdProblem
from sparsegen.operators.masked.dsd import DsdTransposedOperator as DsdTransposedOperator
from sparsegen.operators.masked.dsd import DsdTransposedProblem as DsdTransposedProblem
from sparsegen.operators.masked.masked_problem import Block as Block
from sparsegen.operators.masked.masked_problem import Density as Density
from sparsegen.operators.masked.masked_problem import MaskedOperator as MaskedOperator
from sparsegen.operators.masked.masked_problem import MaskedProblem as MaskedProblem
from sparsegen.operators.masked.sdd import SddOperator as SddOperator
from sparsegen.operators.masked.sdd import SddProblem as SddProblem
from sparsegen.operators.quantized.quantization import quantize as quantize
from sparsegen.operators.quantized.quantization import quantized_as as quantized_as
from sparsegen.operators.quantized.quantized_files import load_quantized as load_quantized
from sparsegen.operators.quantized.quantized_matrix import Quantization as Quantization
from sparsegen.operators.quantized.quantized_matrix import QuantizedMatrix as QuantizedMatrix
from sparsegen.operators.quantized.quantized_matrix import opened as opened
from sparsegen.operators.quantized.quantized_spmm import QuantizedSparseOperator as QuantizedSparseOperator
from sparsegen.operators.quantized.quantized_spmm import QuantizedSpmmProblem as QuantizedSpmmProblem
from sparsegen.operators.sddmm import SddmmEpilogue as SddmmEpilogue
from sparsegen.operators.sddmm import SddmmOperator as SddmmOperator
from sparsegen.operators.sddmm import SddmmProblem as SddmmProblem
from sparsegen.operators.softmax import SoftmaxBackwardOperator as SoftmaxBackwardOperator
from sparsegen.operators.softmax import SoftmaxBackwardProblem as SoftmaxBackwardProblem
from sparsegen.operators.softmax import SoftmaxOperator as SoftmaxOperator
from sparsegen.operators.softmax import SoftmaxProblem as SoftmaxProblem
from sparsegen.operators.sparse_network import Activation as Activation
from sparsegen.operators.sparse_network import Readout as Readout
from sparsegen.operators.sparse_network import SparseNetworkOperator as SparseNetworkOperator
from sparsegen.operators.sparse_network import SparseNetworkProblem as SparseNetworkProblem
from sparsegen.operators.spmm import ItemValues as ItemValues
from sparsegen.operators.spmm import SparseOperator as SparseOperator
from sparsegen.operators.spmm import SpmmProblem as SpmmProblem
from sparsegen.system.numpy_types import Array as Array
