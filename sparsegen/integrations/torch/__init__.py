"""Sparse layers for PyTorch: differentiable products, a linear layer, attention, and the conversion of whole models.

    from sparsegen.integrations.torch import SparseLinear, convert

    layer = SparseLinear.from_dense(linear, sparsity=0.9)
    report = convert(model, "unstructured", 0.9)

Tensors on a GPU run through sparsegen's kernels. Tensors on the CPU, and those of float64, run through PyTorch's own
sparse product; with SPARSEGEN_DEVICE=emulator the kernels run for CPU tensors too, in the emulator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import torch  # noqa: F401
except ImportError as error:
    from sparsegen.errors import PackageMissingError
    from sparsegen.system.extras import install_command

    raise PackageMissingError(
        f"sparsegen.integrations.torch needs PyTorch: {install_command('torch')}"
    ) from error

from sparsegen.integrations.torch.attention import masks
from sparsegen.integrations.torch.attention.attention import SparseAttention, sparse_attention
from sparsegen.integrations.torch.attention.block_attention import block_attention
from sparsegen.integrations.torch.attention.flex_attention import flex_attention
from sparsegen.integrations.torch.attention.hugging_face import hugging_face_attention
from sparsegen.integrations.torch.attention.paged_attention import paged_attention
from sparsegen.integrations.torch.attention.varlen import varlen_block_attention
from sparsegen.integrations.torch.blocks.block_mask_formats import (
    flex_elements,
    from_counts,
    from_flex,
    from_torch_bsr,
    partial_blocks_from_flex,
    to_counts,
    to_flex,
    to_torch_bsr,
)
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, draw_block_mask
from sparsegen.integrations.torch.blocks.dropout import DropoutLinear, block_dropout
from sparsegen.integrations.torch.blocks.masked_products import dsd, dsd_transposed, sdd, sdd_into
from sparsegen.integrations.torch.blocks.partial_blocks import PartialBlocks
from sparsegen.integrations.torch.blocks.scaled_products import scaled_dsd, scaled_sdd
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.convolution.depthwise import DepthwiseConv2d
from sparsegen.integrations.torch.convolution.drop_block import DropBlockConv2d
from sparsegen.integrations.torch.convolution.masked_conv import MaskedConv2d, masked_conv2d
from sparsegen.integrations.torch.convolution.masked_conversion import (
    ConvolutionReport,
    MaskSource,
    SourcedConv2d,
    convert_convolutions,
)
from sparsegen.integrations.torch.convolution.masked_sequential import (
    MaskedSequential,
    masked_batch_norm,
    masked_sequential,
)
from sparsegen.integrations.torch.models.conversion import convert
from sparsegen.integrations.torch.models.conversion_report import ConversionReport, ConvertedLayer, DenseLayer
from sparsegen.integrations.torch.models.folding import fold_batch_norms
from sparsegen.integrations.torch.models.held_zeros import hold_zeros
from sparsegen.integrations.torch.models.loading import load
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.pattern.pointwise import PointwiseConv2d
from sparsegen.integrations.torch.pattern.prepared_linear import PreparedLinear
from sparsegen.integrations.torch.pattern.products import linear, sampled_product, transposed_product
from sparsegen.integrations.torch.pattern.quantized_linear import QuantizedLinear
from sparsegen.integrations.torch.pattern.sparse_conv import SparseConv2d
from sparsegen.integrations.torch.points.kernel_maps import KernelMap
from sparsegen.integrations.torch.points.submanifold import SubmanifoldConv3d, submanifold_conv3d
from sparsegen.integrations.torch.shipping.kernels_folder import ship_operators
from sparsegen.integrations.torch.shipping.ship import Shipped, ship
from sparsegen.plan.shipping.program import ProgramKind

if TYPE_CHECKING:
    from sparsegen.integrations.torch.models.model_tuning import InSituTuning, tune_model

# What loads SQLAlchemy, or PyTorch's compiler: imported when it is first asked for.
_LATER = {
    "InSituTuning": "models.model_tuning",
    "tune_model": "models.model_tuning",
    "inductor": "shipping.inductor",
}

__all__ = [
    "Activation",
    "BlockMaskTensor",
    "ConversionReport",
    "ConvertedLayer",
    "ConvolutionReport",
    "DenseLayer",
    "DepthwiseConv2d",
    "DropBlockConv2d",
    "DropoutLinear",
    "InSituTuning",
    "KernelMap",
    "MaskSource",
    "MaskedConv2d",
    "MaskedSequential",
    "PartialBlocks",
    "PointwiseConv2d",
    "PreparedLinear",
    "ProgramKind",
    "QuantizedLinear",
    "Shipped",
    "SourcedConv2d",
    "SparseAttention",
    "SparseConv2d",
    "SparseLinear",
    "SparsePattern",
    "SubmanifoldConv3d",
    "block_attention",
    "block_dropout",
    "convert",
    "convert_convolutions",
    "draw_block_mask",
    "dsd",
    "dsd_transposed",
    "flex_attention",
    "flex_elements",
    "fold_batch_norms",
    "from_counts",
    "from_flex",
    "from_torch_bsr",
    "hold_zeros",
    "hugging_face_attention",
    "linear",
    "load",
    "masked_batch_norm",
    "masked_conv2d",
    "masked_sequential",
    "masks",
    "paged_attention",
    "partial_blocks_from_flex",
    "sampled_product",
    "scaled_dsd",
    "scaled_sdd",
    "sdd",
    "sdd_into",
    "ship",
    "ship_operators",
    "sparse_attention",
    "submanifold_conv3d",
    "to_counts",
    "to_flex",
    "to_torch_bsr",
    "transposed_product",
    "tune_model",
    "varlen_block_attention",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_LATER[name]}")
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
