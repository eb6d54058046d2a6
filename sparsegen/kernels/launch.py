"""Launch geometry of a kernel, and the sources of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sparsegen.system.compared import Compared
from sparsegen.system.integers import ceil_div

PORTABLE_CLUSTER = 8  # blocks of a cluster that every device with clusters can launch


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Launch(Compared):
    """Grid and block dimensions (x, y, z) and dynamic shared memory in bytes of one kernel launch.

    Attributes:
        starts_early: the kernel may begin while the one before it on the stream still runs, and waits itself for what
            that one wrote (CUDA programming guide, programmatic dependent launch; sm_90 and later). It lets the next
            one begin behind its own wait, so that kernels overlap in twos, and some thread waits at any rate.
        persistent_cluster: blocks of a cluster, where clusters share all work among as many of them as there are: of
            the grid only those that are resident at once are launched, as others would do their share when these are
            done. Graphics processing clusters differ in multiprocessors, so that fewer may be resident than the
            number of multiprocessors says. 0: all of the grid.
        together: all blocks wait for one another, so that all are resident at once, or the launch fails (CUDA
            programming guide, cooperative launch).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory_bytes: int = 0
    starts_early: bool = False
    persistent_cluster: int = 0
    together: bool = False

    @classmethod
    def flat(cls, work: int, threads: int) -> Launch:
        """Blocks along x with a thread for each piece of work."""
        return cls((ceil_div(work, threads), 1, 1), (threads, 1, 1))

    @property
    def is_empty(self) -> bool:
        """True if a grid dimension is zero, as for an empty result: nothing is launched."""
        return 0 in self.grid


class ArgumentKind(StrEnum):
    """The source of a kernel parameter."""

    TENSOR_MAP = "tensor_map"  # a `TensorMap` of an operand or of the result, by value
    PACKED = "packed"  # pointer to an array that `Family.pack` made
    SCRATCH = "scratch"  # pointer to memory that the kernel may write; see `Packed.scratch`
    OPERAND = "operand"  # pointer to a dense input of the call
    RESULT = "result"  # pointer to the dense output
    SIZE = "size"  # a 32-bit signed integer: a field of the problem or a size of the packed matrix


class Argument(NamedTuple):
    """One kernel parameter, in the order of the CUDA signature.

    Attributes:
        name: name of the size or of the array; for a tensor map, of its array.
    """

    kind: ArgumentKind
    name: str
