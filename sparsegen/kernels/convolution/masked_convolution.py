"""Base class of the families of masked convolutions: they pack nothing, and compute outputs in units, live ones
only.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TypeVar

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value
from sparsegen.kernels.layouts.loads import LOAD_BYTES, partial_stores_us, widest_vector
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.bits import words_for
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import MaskedConv2dProblem, MaskedConv2dWeightsProblem, MaskOf
from sparsegen.operators.convolution.masked_conv2d import UNIT
from sparsegen.system.integers import ceil_div

UNIT_OUTPUTS = UNIT * UNIT
LARGEST_COORDINATE = 1 << 31
MOST_SCRATCH = 1 << 30  # bytes of partial sums
C = TypeVar("C", bound=Config)


class MaskedConvolution(Family[MaskedConv2dProblem, C]):
    """A family whose kernel finds the live units of 8 × 8 outputs in a mask that comes with every call."""

    packed_names = ()

    def pack(self, problem: MaskedConv2dProblem, config: C, matrix: CsrMatrix) -> Packed[Array]:
        """No arrays, and those of the kernel's sizes that are no fields of the problem."""
        sizes = {name: size for name, size in mask_sizes(problem).items() if name in self.size_names}
        return Packed(arrays={}, sizes=sizes, nnz=matrix.nnz)


class MaskedConvolutionWeights(Family[MaskedConv2dWeightsProblem, C]):
    """A family of gradients by the weights, whose thread blocks share the live units and add up their sums."""

    size_names = (
        *("images", "height", "width", "channels", "filters"),
        *("out_height", "out_width", "mask_rows", "mask_columns"),
    )
    packed_names = ()

    @abstractmethod
    def scratch(self, problem: MaskedConv2dWeightsProblem, config: C) -> dict[str, int]:
        """Bytes of the counters of arrivals and of the ``partial_sums`` of whole tiles."""

    def pack(self, problem: MaskedConv2dWeightsProblem, config: C, matrix: CsrMatrix) -> Packed[Array]:
        """No arrays, the kernel's sizes that are no fields of the problem, and scratch memory."""
        sizes = {name: size for name, size in mask_sizes(problem.forward).items() if name in self.size_names}
        return Packed(arrays={}, sizes=sizes, nnz=matrix.nnz, scratch=self.scratch(problem, config))

    def scratch_fits(self, problem: MaskedConv2dWeightsProblem, config: C) -> Constraint:
        """The constraint that the parts of all sums take no more than `MOST_SCRATCH`."""
        partial = self.scratch(problem, config)["partial_sums"]
        return Constraint(
            partial <= MOST_SCRATCH, f"partial sums ({partial} bytes) take at most {MOST_SCRATCH} bytes"
        )


def mask_sizes(problem: MaskedConv2dProblem) -> dict[str, int]:
    """The sizes of images, results and masks that are no fields of the problem."""
    rows, columns = problem.mask_shape
    return {
        "images": problem.batch,
        "out_height": problem.out_height,
        "out_width": problem.out_width,
        "mask_rows": rows,
        "mask_columns": columns,
        "mask_words": rows * words_for(columns),
    }


def units_of_image(problem: MaskedConv2dProblem) -> int:
    """The number of units of one image, live or not."""
    return ceil_div(problem.out_height, UNIT) * ceil_div(problem.out_width, UNIT)


def units_of(problem: MaskedConv2dProblem) -> int:
    """The number of units of all images, live or not."""
    return problem.batch * units_of_image(problem)


def countable_outputs(problem: MaskedConv2dProblem) -> Constraint:
    """The constraint of kernels that count the outputs of all units in 31 bits."""
    return Constraint(
        units_of(problem) * UNIT_OUTPUTS < LARGEST_COORDINATE, "outputs are counted with 31 bits"
    )


def live_share(problem: MaskedConv2dProblem) -> float:
    """The expected share of units that are live: where any of their outputs is, or any pixel that they read with a mask
    of the input.
    """
    rows, columns = window_sides(problem) if problem.mask_of.is_of_input else (UNIT, UNIT)
    blocks = _blocks_met(rows, problem.mask_block.rows) * _blocks_met(columns, problem.mask_block.columns)
    return any_live(live_blocks_share(problem), blocks)


def live_blocks_share(problem: MaskedConv2dProblem) -> float:
    """The expected share of blocks that are live, where any is: a call whose masks are empty has nothing to hasten."""
    rows, columns = problem.mask_shape
    share = problem.density.share
    return min(1.0, share / any_live(share, problem.batch * rows * columns))


def _blocks_met(length: int, block: int) -> float:
    """The mean number of blocks that a length meets, one of those that lie side by side."""
    return 1.0 if length == UNIT and block % UNIT == 0 else 1 + (length - 1) / block


def parted_outputs_us(problem: MaskedConv2dProblem, share: float, device: Device) -> float:
    """Estimates microseconds of storing a share of all outputs by as many elements as divide the filters, where these
    are no whole vectors; a sector has two such parts.
    """
    vector = widest_vector(problem.filters, problem.dtype)
    if vector * problem.dtype.itemsize == LOAD_BYTES:
        return 0.0
    elements = share * math.prod(problem.result(0).shape)
    return partial_stores_us(elements / vector / 2, device)


def window_sides(problem: MaskedConv2dProblem) -> tuple[int, int]:
    """Rows and columns of the pixels that the outputs of a unit read, with those between them."""
    p, size = problem, problem.filter_size
    rows = (UNIT - 1) * p.stride.rows + (size.rows - 1) * p.dilation.rows + 1
    columns = (UNIT - 1) * p.stride.columns + (size.columns - 1) * p.dilation.columns + 1
    return rows, columns


def has_whole_units(problem: MaskedConv2dProblem) -> bool:
    """True if the mask's blocks are whole units."""
    return problem.mask_block.rows % UNIT == 0 and problem.mask_block.columns % UNIT == 0


def geometry_constants(problem: MaskedConv2dProblem) -> dict[str, Value]:
    """The constants of a template that takes any filter and any block of the mask."""
    p = problem
    return {
        "dtype": p.dtype.value,
        "r": p.filter_size.rows,
        "s": p.filter_size.columns,
        "stride_rows": p.stride.rows,
        "stride_columns": p.stride.columns,
        "padding_rows": p.padding.rows,
        "padding_columns": p.padding.columns,
        "dilation_rows": p.dilation.rows,
        "dilation_columns": p.dilation.columns,
        "groups": p.groups.count,
        "block_rows": p.mask_block.rows,
        "block_columns": p.mask_block.columns,
    }


def mask_constants(problem: MaskedConv2dProblem) -> dict[str, Value]:
    """The constants of a mask: whose it is. Where x is zero outside of it, the template need not know that."""
    over = MaskOf.INPUT if problem.mask_of.is_of_input else MaskOf.OUTPUT
    return {"mask_of": over.value, **({"zeroes": True} if problem.mask_of is MaskOf.ANY_INPUT else {})}


def result_constants(problem: MaskedConv2dProblem) -> dict[str, Value]:
    """The constants of every template: whose mask it is, what becomes of the other outputs, and the epilogue."""
    return {**mask_constants(problem), "rest": problem.rest.value, "epilogue": problem.epilogue.value}


def filter_tiles(problem: MaskedConv2dProblem, tile_n: int) -> int:
    """The number of tiles of at most ``tile_n`` filters; none holds filters of two groups."""
    groups = problem.groups.count
    return groups * ceil_div(problem.filters // groups, tile_n)
