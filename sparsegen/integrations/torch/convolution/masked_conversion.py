"""Whole CNNs whose convolutions compute the live blocks of one mask, which the caller sets before each call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparsegen import arguments
from sparsegen.errors import ConfigError, OperandError
from sparsegen.integrations.torch.calls.layer_weights import is_made_of_others
from sparsegen.integrations.torch.calls.reach import padding_in_numbers, reach_of
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.integrations.torch.convolution.masked_conv import MaskedConv2d
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.matrix.spatial_mask import both, require_blocks

MOST_SIDE = 7  # largest side of a filter that masked convolutions take


class MaskSource:
    """The mask of the images that a network works on, and what it is in the pixels of each of its layers.

    Layers of one resolution share a mask, which is made when the first of them asks for it. Set it inside of what a
    CUDA graph captures, from a tensor that the graph reads.

    Attributes:
        block: pixels of a block of the mask, and of the layers' blocks in their own pixels.
        margin: pixels of the image that a live block reaches further on each side.
    """

    def __init__(self, block: object = 16, margin: int = 0) -> None:
        """Make one without a mask: layers are dense until it is set."""
        self.block = both(block, "block", 1)
        self.margin = arguments.whole(margin, "margin", least=0, most=MAX_INDEX)
        self._mask: Tensor | None = None
        self._size = (0, 0)
        self._made: dict[tuple[int, int], PackedMask] = {}

    def __repr__(self) -> str:
        return f"MaskSource(block={self.block[0]}x{self.block[1]}, margin={self.margin})"

    def set(self, mask: Tensor | None, size: tuple[int, int] | None = None) -> None:
        """Take the mask of the next calls, or none.

        Args:
            mask: bools, images × rows × columns of blocks (`sparsegen.masks`).
            size: rows and columns of the images' pixels.

        Raises:
            OperandError: a mask of another kind, or without a size; the mask before stays.
            MatrixError: a mask of other blocks than images of that size have.
        """
        if mask is not None:
            require_tensors(mask=mask)
            if size is None or mask.dtype != torch.bool or mask.dim() != 3:
                raise OperandError(
                    "mask: expected bools, images × rows × columns of blocks, and the size of the images in pixels "
                    f"with them, got {mask.dtype} of shape {tuple(mask.shape)} and size={size}"
                )
            rows, columns = arguments.pair(size, "size", OperandError)
            if min(rows, columns) < 1:
                raise OperandError(f"size = {rows} × {columns} pixels is below 1 × 1")
            require_blocks(mask, (rows, columns), self.block)
            self._size = rows, columns
        self._made.clear()
        self._mask = mask

    def at(self, size: tuple[int, int]) -> Tensor | None:
        """The mask over a layer of ``size`` rows and columns; None if none is set."""
        packed = self.packed_at(size)
        return None if packed is None else packed.blocks

    def packed_at(self, size: tuple[int, int]) -> PackedMask | None:
        """The same with its words, which all layers of that size take."""
        if self._mask is None:
            return None
        if size not in self._made:
            self._made[size] = PackedMask.resized(self._mask, self._size, self.block, size, self.margin)
        return self._made[size]

    def __deepcopy__(self, memo: object) -> MaskSource:
        """Copies of a network follow the same source."""
        return self


class SourcedConv2d(MaskedConv2d):
    """A `MaskedConv2d` whose mask comes from a source, so that it takes the place of a dense layer as it is.

    Attributes:
        source: the network's.
    """

    source: MaskSource

    def forward(self, x: Tensor, mask: Tensor | PackedMask | None = None) -> Tensor:
        """The convolution at the live blocks of the source's mask; the dense one where there is none."""
        require_tensors(x=x)
        if mask is None and x.dim() > 2:
            mask = self.source.packed_at(reach_of(self).output_size((int(x.shape[-2]), int(x.shape[-1]))))
        return super().forward(x, mask)


@dataclass(frozen=True, slots=True)
class ConvolutionReport:
    """Result of `convert_convolutions`.

    Attributes:
        converted: names of the layers that follow the source.
        dense: names of those that do not, with the reasons.
    """

    converted: tuple[str, ...]
    dense: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{len(self.converted)} convolutions follow the mask, {len(self.dense)} are dense"]
        return "\n".join([*lines, *(f"  {name}: {reason}" for name, reason in self.dense.items())])


def convert_convolutions(
    model: nn.Module,
    source: MaskSource,
    *,
    density: float = 0.5,
    include: Callable[[str, nn.Conv2d], bool] | None = None,
) -> ConvolutionReport:
    """Replace the convolutions of a network by masked ones with the same weights, in place.

    Each computes the blocks of its output that the source's mask names in the layer's pixels; the others are zero
    (SBNet's semantics), and what lies between convolutions runs as before.

    Args:
        source: set its mask before each call.
        density: the expected share of live blocks.
        include: takes a layer's name and itself; only those for which it is true are converted.

    Returns:
        which layers were converted, and why others were not.

    Raises:
        ConfigError: the model is a convolution itself, or none could be converted.
        OperandError: no module, no `MaskSource`, or ``include`` is no function.
    """
    arguments.instance(model, nn.Module, "model", OperandError)
    arguments.instance(source, MaskSource, "source", OperandError)
    if include is not None and not callable(include):
        raise OperandError(f"include = {include!r} is no function of a layer's name and the layer")
    if isinstance(model, nn.Conv2d):
        raise ConfigError("the model is a convolution itself: use MaskedConv2d.from_dense")
    converted, dense = [], {}
    replaced: dict[int, nn.Module] = {}  # a layer that a model has under several names is one afterwards too
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(layer, nn.Conv2d):
            continue
        if id(layer) in replaced:
            model.set_submodule(name, replaced[id(layer)])
            converted.append(name)
            continue
        if (why := is_made_of_others(layer)) is not None:
            dense[name] = why
        elif isinstance(layer, MaskedConv2d) or type(layer) is not nn.Conv2d:
            dense[name] = f"it is a {type(layer).__name__}"
        elif layer.padding_mode != "zeros" or _is_uneven(layer):
            dense[name] = "it is not padded by a number of zeros"
        elif max(both(layer.kernel_size, "kernel_size", 1)) > MOST_SIDE:
            dense[name] = f"its filter is larger than {MOST_SIDE} × {MOST_SIDE}"
        elif include is not None and not include(name, layer):
            dense[name] = "it was not included"
        else:
            made = SourcedConv2d.from_dense(layer, mask_block=source.block, density=density)
            assert isinstance(made, SourcedConv2d)
            made.source = source
            made.train(layer.training)
            model.set_submodule(name, made)
            replaced[id(layer)] = made
            converted.append(name)
    if not converted:
        raise ConfigError(f"no convolution of the model can follow a mask: {dense or 'it has none'}")
    return ConvolutionReport(tuple(converted), dense)


def _is_uneven(layer: nn.Conv2d) -> bool:
    """True if its padding is wider on one side than on the other."""
    try:
        padding_in_numbers(layer.padding, layer.kernel_size, layer.dilation)
    except ConfigError:
        return True
    return False
