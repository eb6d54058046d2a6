"""Base class of the families that gather rows by a kernel map and multiply them on warps' tensor cores."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, tunable
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.limits import SCHEDULERS, enough_registers, resident_blocks, shared_memory_fits
from sparsegen.kernels.layouts.loads import step_us
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores, sums_of, threads_of
from sparsegen.operators import DType, PointsProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

PITCH_BYTES = 16  # behind each row in shared memory, so that the rows of a fragment meet different banks
START_US = 3.0
REACHED = 0.3  # fraction of the tensor cores' rate with gathered rows: on an H200, 64 and 128 channels
# Fitted to drawn problems on an H200: microseconds until a row has come, mostly from L2, as blocks of other tiles read
# it too (of which further stages hide less than their share: those of 2, 3 and 4 are about as fast); and those of a
# warp's product of two fragments, which it loads for it.
ARRIVED_US, PRODUCT_US = 0.22, 0.006
FLOAT32_PRODUCTS = (
    6  # a product of float32 over one of TF32: three, beside splitting the factors in every warp
)
# Fraction of the shorter of a step's loads and products of float32 that the other hides in a block of as many warps:
# some begin loads while others split factors. Fitted to drawn problems on an H200, where fewer warps hid nothing.
HIDDEN, HIDING_WARPS = 0.5, 16


@dataclass(frozen=True)
class GatheredTilesConfig(Config):
    """One point of the tuning space of the `GatheredTiles` families."""

    tile_m: int = tunable(64, (32, 64, 128), "rows of the result per thread block")
    tile_n: int = tunable(64, (16, 32, 64, 128), "columns of the result per thread block")
    step: int = tunable(32, (16, 32, 64), "elements of the contraction per pipeline stage")
    warps_m: int = tunable(2, (1, 2, 4), "warps side by side along the rows")
    warps_n: int = tunable(2, (1, 2, 4), "warps side by side along the columns")
    stages: int = tunable(3, (2, 3, 4), "pipeline stages in shared memory")


P = TypeVar("P", bound=PointsProblem)
C = TypeVar("C", bound=GatheredTilesConfig)


class GatheredTiles(Family[P, C]):
    """Tiles of A and of B are gathered by cp.async into a ring of stages, which warps multiply by mma.sync.

    Float32 factors are multiplied as three products of TF32 numbers each.
    """

    source = (
        "Graham et al., Submanifold Sparse Convolutional Networks, CVPR 2018; implicit GEMM over a kernel map: Tang et "
        "al., TorchSparse++, MICRO 2023; mma.sync with cp.async stages: NVIDIA, PTX ISA"
    )
    size_names = ("points", "channels", "filters")
    packed_names = ()

    def scope(self, problem: P) -> Iterator[Constraint]:
        yield one_batch_element(problem)

    def constraints(self, problem: P, config: C, device: Device) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c = config
        yield from on_tensor_cores(c, device, "rows", "columns")
        threads = threads_of(c)
        yield Constraint(threads >= 2 * WARP, f"two warps at least ({threads} threads)")
        yield enough_registers(registers_of(problem.dtype, c), max(threads, 128), at_a_time=8)
        yield shared_memory_fits("stages and lists", self.shared_bytes(problem, c), device)

    def is_worth_trying(self, problem: P, config: C, device: Device) -> bool:
        """True unless a tile is twice as large as the result, or a thread has fewer than 8 or more than 64 sums. It
        rests on arithmetic: padding, loads for each product, and registers.
        """
        rows, columns = self.extent(problem)
        is_large = config.tile_n >= 2 * max(16, columns) or config.tile_m >= 2 * max(32, rows)
        return not is_large and 8 <= sums_of(config) <= 64

    @abstractmethod
    def extent(self, problem: P) -> tuple[int, int]:
        """Rows and columns of the result, as tiles see it."""

    def waves(self, problem: P, config: C, blocks: int, device: Device) -> tuple[float, int]:
        """Waves of as many blocks as the device holds at once, and blocks that a multiprocessor runs together. Blocks
        take unlike times, so that a last wave is not a whole one.
        """
        threads, registers = threads_of(config), registers_of(problem.dtype, config)
        held = resident_blocks(threads, registers, self.shared_bytes(problem, config), device)
        waves = blocks / (held * device.multiprocessors)
        return waves, min(held, ceil_div(blocks, device.multiprocessors))

    @staticmethod
    def step_us(problem: P, config: C, loads: Iterable[tuple[int, float]], together: float) -> float:
        """Estimates microseconds of a step: its loads, and then its products.

        Args:
            loads: see `layouts.loads.step_us`.
            together: blocks that a multiprocessor runs at once.
        """
        c, dtype, threads = config, problem.dtype, threads_of(config)
        products = (c.tile_m // c.warps_m // 16) * (c.tile_n // c.warps_n // 8) * c.step * dtype.itemsize / 32
        if dtype is DType.FLOAT32:
            products *= FLOAT32_PRODUCTS
        sharing = max(1.0, threads / WARP * together / SCHEDULERS)  # warps take turns on tensor cores
        arrived_us = ARRIVED_US / math.sqrt(c.stages - 1)
        loading = step_us(dtype, loads, threads, 2, together, arrived_us=arrived_us)
        multiplying = PRODUCT_US * products * sharing
        hides = dtype is DType.FLOAT32 and threads >= HIDING_WARPS * WARP
        return loading + multiplying - hides * HIDDEN * min(loading, multiplying)

    def with_smallest(self, problem: P, some: Iterable[C], device: Device) -> list[C]:
        """The valid ones of some configs, and the smallest one, which always is."""
        smallest = self.config_type(tile_m=32, tile_n=16, step=16, warps_n=1, stages=2)
        return [*(c for c in some if self.is_valid(problem, c, device)), smallest]

    @abstractmethod
    def shared_bytes(self, problem: P, config: C) -> int:
        """Bytes of the stages and of what lies behind them."""


def registers_of(dtype: DType, config: GatheredTilesConfig) -> int:
    """Registers that a thread needs, about: for its sums, and of float32 for the halves of the fragments."""
    return sums_of(config) + (96 if dtype is DType.FLOAT32 else 64)


def products_us(device: Device, dtype: DType, blocks: int, products: float) -> float:
    """Estimates microseconds of ``products`` multiply-adds that blocks share evenly."""
    idle = max(1.0, device.multiprocessors / max(1, blocks))  # factor if blocks do not fill the device
    rate = REACHED * device.expected_rates.tensor_products_per_us(dtype)
    return idle * products / rate
