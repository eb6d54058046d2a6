"""Arrays as TMA of sm_90 and later sees them (CUDA driver API, cuTensorMapEncodeTiled)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from sparsegen.operators import DType, Float8
from sparsegen.system.compared import Compared

MOST_DIMENSIONS = 5
LARGEST_BOX_SIDE = 256  # elements
LARGEST_STEP = 8
STRIDE_UNIT = 16  # bytes, of strides and of the array's address


class Swizzle(IntEnum):
    """Bytes of a box's rows within which 16-byte chunks are exchanged on the way to shared memory."""

    NONE = 0
    BYTES_32 = 32
    BYTES_64 = 64
    BYTES_128 = 128


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorMap(Compared):
    """Box-wise access of a kernel to an operand or the result; what lies outside the array reads as zero.

    Dimensions are in the order of the coordinates that the kernel gives: the innermost, contiguous one first.

    Attributes:
        array: the operand's or result's name.
        dtype: type of its elements.
        sizes: elements along each dimension.
        strides: bytes from one element to the next along each dimension but the innermost.
        box: elements along each dimension that one copy takes; times the step at most 256.
        swizzle: their arrangement in shared memory.
        steps: elements of the array from one of the box to the next, along each dimension, 1 in the innermost; empty if
            all are 1.
        l2_bytes: bytes that L2 fetches at a time, 128 or 256.

    Raises:
        ValueError: TMA has no such maps. Families' constraints keep configs and problems from it.
    """

    array: str
    dtype: DType | Float8
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    steps: tuple[int, ...] = ()
    l2_bytes: int = 256

    def __post_init__(self) -> None:
        rank = len(self.sizes)
        if not 1 <= rank <= MOST_DIMENSIONS or len(self.box) != rank or len(self.strides) != rank - 1:
            raise ValueError(f"{self}: one to {MOST_DIMENSIONS} dimensions with a side of the box each")
        if self.steps and (len(self.steps) != rank or not all(1 <= s <= LARGEST_STEP for s in self.steps)):
            raise ValueError(f"{self}: steps are 1 to {LARGEST_STEP}, one for each dimension")
        if self.element_steps[0] != 1:
            raise ValueError(f"{self}: the innermost dimension has no steps")
        if not all(1 <= size < 1 << 32 for size in self.sizes):
            raise ValueError(f"{self}: sizes are 1 to 2^32 - 1")
        if not all(1 <= extent <= LARGEST_BOX_SIDE for extent in self.extents):
            raise ValueError(f"{self}: a box reaches over 1 to {LARGEST_BOX_SIDE} elements a side")
        if self.l2_bytes not in (128, 256):
            raise ValueError(f"{self}: L2 fetches 128 or 256 bytes at a time")
        if any(stride % STRIDE_UNIT or not 0 < stride < 1 << 40 for stride in self.strides):
            raise ValueError(f"{self}: strides are multiples of {STRIDE_UNIT} bytes below 2^40")
        row_bytes = self.box[0] * self.dtype.itemsize
        if row_bytes % STRIDE_UNIT or (self.swizzle and row_bytes > self.swizzle):
            raise ValueError(f"{self}: rows of a box are multiples of 16 bytes, at most those of the swizzle")

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements of the array that a box reaches over along each dimension, those between its own included."""
        return tuple(side * step for side, step in zip(self.box, self.element_steps, strict=True))

    @property
    def element_steps(self) -> tuple[int, ...]:
        """`steps`, for every dimension."""
        return self.steps or (1,) * self.rank
