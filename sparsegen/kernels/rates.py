"""Rates of a device, per microsecond: measured once, or estimated from its driver's description.

Predicted times (`Family.predicted_us`) are made of these. The tables hold the architectures' published throughputs
(NVIDIA's CUDA programming guide, section "Arithmetic Instructions", and the white papers of each architecture).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from sparsegen.operators import DType, Float8
from sparsegen.system.compared import Compared

REACHED = 0.75  # fraction of the peak of floating-point arithmetic, by large dense products
COPIED = 0.85  # fraction of the memory's peak, by a large copy
L2_BYTES_PER_CYCLE = 19.0  # bytes that a multiprocessor gets from L2, as measured on an H100
LAUNCH_US = 3.6  # time of an empty kernel, between two events
# The rate of products of 8-bit numbers with sums in float32 over that of float16, on every GPU with tensor cores for
# them: the white papers of Ada, Hopper and Blackwell.
FLOAT8_GAIN = 2.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rates(Compared):
    """Throughputs of a device, and the time of a launch.

    Attributes:
        copy_bytes_per_us: bytes read and bytes written by a large copy in the device's memory.
        float32_flop_per_us, tf32_flop_per_us, float16_flop_per_us, bfloat16_flop_per_us: rates of large dense products,
            a multiply-add counted as two; the last three on tensor cores.
        launch_us: time of an empty kernel, as CUDA events see it.
        clock_mhz: clock of the multiprocessors under load: their cycles in a microsecond.
    """

    copy_bytes_per_us: float
    float32_flop_per_us: float
    tf32_flop_per_us: float
    float16_flop_per_us: float
    bfloat16_flop_per_us: float
    launch_us: float
    clock_mhz: float

    @property
    def float8_flop_per_us(self) -> float:
        """FLOP per µs of large dense products of 8-bit numbers: an estimate from those of 16 bits, as none is
        measured.
        """
        return FLOAT8_GAIN * self.float16_flop_per_us

    def least_us(self, flop: int, nbytes: int, factors: DType | Float8) -> float:
        """Returns the least microseconds for ``flop`` operations on numbers of a type and ``nbytes`` bytes of
        memory.
        """
        of_float32 = max(self.float32_flop_per_us, self.tf32_flop_per_us)
        return max(flop / self._flop_per_us(factors, of_float32), nbytes / self.copy_bytes_per_us)

    def tensor_products_per_us(self, factors: DType | Float8) -> float:
        """Multiply-adds on tensor cores; of float32 as three of two TF32 numbers each."""
        return self._flop_per_us(factors, self.tf32_flop_per_us / 3) / 2

    def _flop_per_us(self, factors: DType | Float8, of_float32: float) -> float:
        if isinstance(factors, Float8):
            return self.float8_flop_per_us
        return {
            DType.FLOAT32: of_float32,
            DType.FLOAT16: self.float16_flop_per_us,
            DType.BFLOAT16: self.bfloat16_flop_per_us,
        }[factors]


class Architecture(NamedTuple):
    """Properties of the multiprocessors of a compute capability.

    Attributes:
        lanes: multiply-adds of float32 that a multiprocessor begins in a cycle.
        tensor_flop: FLOP of float16 or bfloat16 that its tensor cores do in a cycle, dense, with sums in float32.
        clock_mhz: typical; and ``memory_bytes``, a typical memory's bytes in a microsecond for each multiprocessor.
            They stand in for what a description does not say.
        resident_warps, resident_blocks: limits of a multiprocessor (programming guide, "Technical Specifications per
            Compute Capability").
    """

    lanes: int
    tensor_flop: int
    clock_mhz: float
    memory_bytes: float
    resident_warps: int
    resident_blocks: int


ARCHITECTURES = {
    (7, 0): Architecture(64, 1024, 1530, 11_000, 64, 32),
    (7, 5): Architecture(64, 1024, 1590, 8_000, 32, 16),
    (8, 0): Architecture(64, 2048, 1410, 18_000, 64, 32),
    (8, 6): Architecture(128, 1024, 1700, 9_000, 48, 16),
    (8, 9): Architecture(128, 1024, 2500, 6_500, 48, 24),
    (9, 0): Architecture(128, 4096, 1980, 25_400, 64, 32),
    (10, 0): Architecture(128, 8192, 1850, 54_000, 64, 32),
    (12, 0): Architecture(128, 1024, 2400, 10_000, 48, 24),
}
FIRST_WITH_TF32 = (8, 0)


def architecture(compute_capability: tuple[int, int]) -> Architecture:
    """Returns the architecture of the compute capability, or of the last known one before it."""
    older = [known for known in ARCHITECTURES if known <= compute_capability]
    return ARCHITECTURES[max(older, default=min(ARCHITECTURES))]


@cache
def estimated(
    compute_capability: tuple[int, int],
    multiprocessors: int,
    clock_mhz: float | None = None,
    memory_bytes_per_us: float | None = None,
) -> Rates:
    """Rates of a device on which nothing was measured.

    Args:
        clock_mhz, memory_bytes_per_us: the highest clock of its multiprocessors and the peak of its memory; None
            for what is usual with the compute capability.
    """
    usual = architecture(compute_capability)
    clock = clock_mhz or usual.clock_mhz
    memory = memory_bytes_per_us or usual.memory_bytes * multiprocessors
    cycles = multiprocessors * clock
    float32 = REACHED * 2 * usual.lanes * cycles
    tensor = REACHED * usual.tensor_flop * cycles
    return Rates(
        copy_bytes_per_us=COPIED * memory,
        float32_flop_per_us=float32,
        tf32_flop_per_us=tensor / 2 if compute_capability >= FIRST_WITH_TF32 else float32,
        float16_flop_per_us=tensor,
        bfloat16_flop_per_us=tensor,
        launch_us=LAUNCH_US,
        clock_mhz=clock,
    )


def overlapped(norm: float, *times: float) -> float:
    """Returns the time of works that hide each other but for a little: the ``norm``-norm of their times.

    Norm 1 is their sum (nothing is hidden); the larger the norm, the nearer to the longest of them.
    """
    return float(sum(time**norm for time in times) ** (1 / norm))
