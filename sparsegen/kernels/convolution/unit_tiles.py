"""Base class of the masked convolutions whose warps multiply tiles of live units by filters (sm_80 and later)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.convolution.masked_convolution import (
    UNIT_OUTPUTS,
    MaskedConvolution,
    filter_tiles,
    has_whole_units,
    live_share,
    units_of,
)
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import SCHEDULERS
from sparsegen.kernels.layouts.loads import SECTOR, partial_stores_us, widest_vector
from sparsegen.kernels.layouts.warp_tiles import threads_of
from sparsegen.matrix.features import Features
from sparsegen.operators import MaskedConv2dProblem, MaskOf, Rest
from sparsegen.operators.convolution.masked_conv2d import UNIT
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

# Time of filling units that are not live over a copy of as many bytes, for blocks that do it between their products:
# from four times of `window_conv` on an H100, images of 32 to 128 channels with 5 and 20 % live.
FILLING = 1.6
# Instructions of a store that fills, by its SASS, and cycles to a warp's next one. Of 35 instructions, as before, it
# took 65 cycles on an H200 (one warp filled 17 units in 40 µs); the shorter one has not been measured.
STORE_INSTRUCTIONS, STORE_CYCLES = 12, 22
# Units of a word, and microseconds in which a warp looks at the blocks of all of them: 15 images of 24 words, H200.
WORD_UNITS, LISTED_US = 32, 0.69
FRAGMENT = 16  # filters, and places of the contraction, of the tensor cores' smallest tile


class UnitTilesConfig(Config):
    """A config of these families; each declares these tunables with choices of its own, and more."""

    tile_m: int  # outputs per thread block, in units of 8 x 8
    tile_n: int  # filters per thread block
    warps_m: int
    warps_n: int
    resident: int  # thread blocks per multiprocessor


C = TypeVar("C", bound=UnitTilesConfig)


class UnitTiles(MaskedConvolution[C]):
    """A persistent kernel: thread blocks find the live units of 8 × 8 outputs in the mask, and share them evenly.

    A block has one tile of filters, and computes ``tile_m`` outputs of its units at a time: a round.
    """

    source = (
        "Ren et al., SBNet, CVPR 2018 (active blocks alone are computed); Shah and Nair, Block Sparse Convolution; "
        "implicit GEMM: Chetlur et al., cuDNN, 2014; mma.sync with cp.async stages: NVIDIA, PTX ISA; float32 from "
        "three TF32 products: Ootomo and Yokota, IJHPCA 2022"
    )
    size_names = (
        *("images", "height", "width", "channels", "filters"),
        *("out_height", "out_width", "mask_rows", "mask_columns"),
    )
    shapes: tuple[C, ...]  # candidates of heuristics, from large tiles to small ones
    smallest: C  # the shape that has enough registers and shared memory for every problem

    @abstractmethod
    def fitted(self, problem: MaskedConv2dProblem, config: C) -> C:
        """The shape with the part of the contraction that suits a problem's channels."""

    @abstractmethod
    def shared_bytes(self, problem: MaskedConv2dProblem, config: C) -> int:
        """The bytes of shared memory that a thread block takes."""

    def launch(
        self, problem: MaskedConv2dProblem, config: C, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        """The launch has as many thread blocks as the device holds, the same number for each tile of filters."""
        blocks = self._parts(problem, config, device) * filter_tiles(problem, config.tile_n)
        return Launch(
            grid=(blocks, 1, 1),
            block=(threads_of(config), 1, 1),
            shared_memory_bytes=self.shared_bytes(problem, config),
        )

    def filling_us(self, problem: MaskedConv2dProblem, config: C, device: Device, vector: int) -> float:
        """Microseconds of filling the units that are not live, which warps do one by one between their products.

        Args:
            vector: outputs that a store writes.
        """
        if problem.rest is not Rest.FILLED:
            return 0.0
        rates, dead, warps = device.expected_rates, 1.0 - live_share(problem), threads_of(config) // WARP
        of_warp = math.ceil(dead * units_of(problem) / (self._parts(problem, config, device) * warps))
        stores = of_warp * ceil_div(UNIT_OUTPUTS * config.tile_n, WARP * vector)
        issued = STORE_INSTRUCTIONS * warps * config.resident / SCHEDULERS
        waiting = stores * max(STORE_CYCLES, issued) / rates.clock_mhz
        return max(FILLING * dead * problem.result(0).nbytes / rates.copy_bytes_per_us, waiting)

    @staticmethod
    def listing_us(problem: MaskedConv2dProblem, config: C) -> float:
        """Microseconds in which each thread block counts the live units, a warp those of a word; few where blocks of a
        mask of outputs are whole units, as a thread then finds a word's from one of the mask.
        """
        p = problem
        if p.mask_of is MaskOf.OUTPUT and has_whole_units(p):
            return 0.0
        words = p.batch * ceil_div(p.out_height, UNIT) * ceil_div(ceil_div(p.out_width, UNIT), WORD_UNITS)
        return LISTED_US * words * WARP / threads_of(config)

    @staticmethod
    def storing_us(problem: MaskedConv2dProblem, config: C, device: Device) -> float:
        """Microseconds of storing to parts of sectors: a unit's piece of a row, or a tile's of a pixel, fills none or
        begins within one.
        """
        p, size = problem, problem.dtype.itemsize
        if p.layout.has_planes:
            piece, row = UNIT * size, p.out_width * size
        else:
            piece, row = min(config.tile_n, p.filters // p.groups.count) * size, p.filters * size
        if piece % SECTOR == row % SECTOR == 0:
            return 0.0
        stored = p.result(0).nbytes * (1.0 if p.rest is Rest.FILLED else live_share(p))
        return partial_stores_us(stored / piece * (piece / SECTOR + (row % SECTOR != 0)), device)

    def together(self, problem: MaskedConv2dProblem, config: C, device: Device) -> float:
        """Expected thread blocks that a multiprocessor runs at once, of those that have a round."""
        return min(config.resident, max(1.0, self._rounds(problem, config) / device.multiprocessors))

    def rounds_of_block(self, problem: MaskedConv2dProblem, config: C, device: Device) -> int:
        """Expected rounds of the thread block with most."""
        outputs = live_share(problem) * units_of(problem) * UNIT_OUTPUTS
        return max(1, math.ceil(outputs / (config.tile_m * self._parts(problem, config, device))))

    def rounds(self, problem: MaskedConv2dProblem, config: C, device: Device) -> float:
        """Expected rounds of all multiprocessors, if each had as many as the one with most."""
        of_most = self.rounds_of_block(problem, config, device) * device.multiprocessors
        return max(self._rounds(problem, config), of_most)

    @staticmethod
    def _rounds(problem: MaskedConv2dProblem, config: C) -> float:
        outputs = live_share(problem) * units_of(problem) * UNIT_OUTPUTS
        return max(1, ceil_div(outputs, config.tile_m)) * filter_tiles(problem, config.tile_n)

    def heuristic(self, problem: MaskedConv2dProblem, features: Features, device: Device) -> C:
        """Returns the shape with the least expected time; none is twice as wide as a group's filters."""
        p = problem
        smallest = self._with_room(p, self.fitted(p, self.smallest), device)
        some = (self.fitted(p, shape) for shape in self.shapes)
        valid = (c for c in some if self.fits_filters(p, c) and self.is_valid(p, c, device))
        return self.fastest(p, features, (*valid, smallest), device)

    @staticmethod
    def fits_filters(problem: MaskedConv2dProblem, config: C) -> bool:
        """True unless a tile is twice as large as its group's filters: mostly padding."""
        return fits(config.tile_n, problem.filters // problem.groups.count)

    def _with_room(self, problem: MaskedConv2dProblem, config: C, device: Device) -> C:
        """The config with as many blocks on a multiprocessor as there is room for, at most as many as it has."""
        while config.resident > 1 and self.broken_constraints(problem, config, device):
            config = self.config(**(config.to_dict() | {"resident": config.resident - 1}))
        return config

    def alternatives(self, problem: MaskedConv2dProblem, features: Features, device: Device) -> tuple[C, ...]:
        """The other tiles: live units may come together or apart."""
        return tuple(
            c
            for c in dict.fromkeys(self.fitted(problem, shape) for shape in self.shapes)
            if self.is_worth_trying(problem, c, device) and self.is_valid(problem, c, device)
        )

    @staticmethod
    def _parts(problem: MaskedConv2dProblem, config: C, device: Device) -> int:
        """The thread blocks of each tile of filters, which share the units."""
        tiles = filter_tiles(problem, config.tile_n)
        return max(1, device.multiprocessors * config.resident // tiles)


def fits(side: int, whole: int) -> bool:
    """True unless a tile's side is twice as large as what it is of, or as a fragment's."""
    return side < 2 * max(FRAGMENT, whole)


def stored_along_rows(problem: MaskedConv2dProblem) -> int:
    """Outputs of a plane that are stored together, of a row: the mask asks for all of them, or for none."""
    together = problem.mask_of.is_of_input or has_whole_units(problem)
    return widest_vector(problem.out_width, problem.dtype) if together else 1
