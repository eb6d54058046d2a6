"""What families share that list the live units of 8 × 8 outputs of a masked convolution and bring their windows."""

from __future__ import annotations

from sparsegen.kernels.base import Constraint
from sparsegen.kernels.config import Value
from sparsegen.kernels.layouts.loads import LOAD_BYTES
from sparsegen.operators import MaskedConv2dProblem, MaskOf

WARP = 32
UNIT = 8  # rows and columns of a unit
PIXELS = UNIT * UNIT
LISTED_UNITS, SHEET_WORDS = 128, 1024  # that a thread block lists and counts at a time
LARGEST_COORDINATE = 1 << 31


def units_of(problem: MaskedConv2dProblem) -> int:
    """The number of units of all images, live or not."""
    return problem.batch * -(-problem.out_height // UNIT) * -(-problem.out_width // UNIT)


def outputs_are_counted(problem: MaskedConv2dProblem) -> Constraint:
    """Outputs have numbers of 31 bits."""
    return Constraint(units_of(problem) * PIXELS < LARGEST_COORDINATE, "outputs are counted with 31 bits")


def window_pixels(problem: MaskedConv2dProblem) -> int:
    """Pixels that the outputs of a unit read, with those between them."""
    p, size = problem, problem.filter_size
    rows = (UNIT - 1) * p.stride.rows + (size.rows - 1) * p.dilation.rows + 1
    columns = (UNIT - 1) * p.stride.columns + (size.columns - 1) * p.dilation.columns + 1
    return rows * columns


def active_share(problem: MaskedConv2dProblem) -> float:
    """The share of units that are expected to be active: with a mask of the input, those near a live block are too."""
    share = problem.density.share
    if not problem.mask_of.is_of_input:
        return share
    block = problem.mask_block
    reach = (1 + UNIT / block.rows) * (1 + UNIT / block.columns)
    return 1.0 - float((1.0 - share) ** reach)


def mask_constants(problem: MaskedConv2dProblem) -> dict[str, Value]:
    """What sources are specialised on of a mask; where x is zero outside of it, nothing says so."""
    over = MaskOf.INPUT if problem.mask_of.is_of_input else MaskOf.OUTPUT
    return {"mask_of": over.value, **({"zeroes": True} if problem.mask_of is MaskOf.ANY_INPUT else {})}


def sides(problem: MaskedConv2dProblem) -> dict[str, Value]:
    """What sources are specialised on: filters, strides, paddings, dilations, groups and blocks."""
    p = problem
    return {
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
        "whole_units": p.mask_block.rows % UNIT == 0 and p.mask_block.columns % UNIT == 0,
    }


def mask_sizes(problem: MaskedConv2dProblem) -> dict[str, int]:
    """The sizes of images, results and masks that kernels take beside a problem's own."""
    rows, columns = problem.mask_shape
    return {
        "images": problem.batch,
        "out_height": problem.out_height,
        "out_width": problem.out_width,
        "mask_rows": rows,
        "mask_columns": columns,
    }


def list_bytes(problem: MaskedConv2dProblem, threads: int, behind: int = 0) -> int:
    """Bytes of shared memory for the list of units, the counts of a sheet, and of what lies behind them."""
    units = LISTED_UNITS * (12 if problem.mask_of is MaskOf.OUTPUT else 20)
    taken = units + 8 * SHEET_WORDS + 4 * (threads // WARP) + behind
    return -(-taken // LOAD_BYTES) * LOAD_BYTES
