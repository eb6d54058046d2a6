"""Kernel maps of points on a GPU, made where the coordinates lie, without a wait."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen import arguments
from sparsegen.errors import MatrixError, OperandError
from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.direct import DirectOperator
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, stream_of
from sparsegen.integrations.torch.calls.prepared import aligned
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.matrix.kernel_map import NONE, kernel_map, odd_sides, three_steps
from sparsegen.plan.kernel_maps import KernelMapShape, bind_kernel_map
from sparsegen.system.integers import round_up

LEAST_PLACES = 256
STEPS_OF_OCTAVE = 8  # numbers of places from one power of two to the next


@dataclass(frozen=True)
class KernelMap:
    """The points that the taps of a submanifold convolution read; layers with one filter size on the points share it.

    Attributes:
        points: rows of the features that it belongs to.
        filter_size: taps along z, y and x.
        words: int32, (1 + taps) × places, as `sparsegen.matrix.kernel_map` lays it out. There are more places than
            points (`places_for`), so that scenes of about equal size run one prepared operator; the rest reads nothing.
    """

    points: int
    filter_size: tuple[int, int, int]
    words: Tensor = field(repr=False)

    @classmethod
    def of(
        cls,
        coordinates: Tensor,
        filter_size: object = 3,
        dilation: object = 1,
        *,
        refuse_equal: bool | None = None,
    ) -> KernelMap:
        """The map of points, made on their device and stream.

        Args:
            coordinates: int32, points × 4, or none: batch, z, y and x. A row with a negative batch is no point.
            filter_size, dilation: taps, odd numbers, and steps between them along z, y and x; or one number for all.
            refuse_equal: make points with equal coordinates an error; else only the first of them is read. The default
                is True on the CPU, and False on a GPU, where to know it is a wait.

        Raises:
            OperandError: coordinates of another shape or type.
            MatrixError: sizes out of range, or equal points.
        """
        require_tensors(coordinates=coordinates)
        if coordinates.dtype != torch.int32 or coordinates.dim() != 2 or coordinates.shape[1] != 4:
            raise OperandError(
                f"coordinates: expected int32, points × 4 (batch, z, y, x), got {coordinates.dtype} of shape "
                f"{tuple(coordinates.shape)}"
            )
        size = odd_sides(filter_size, "filter_size")
        words: Tensor = _kernel_map(coordinates, size, three_steps(dilation))
        made = cls(coordinates.shape[0], size, words)
        if refuse_equal is None:
            refuses = not (coordinates.is_cuda or coordinates.is_meta or torch.compiler.is_compiling())
        else:
            refuses = arguments.flag(refuse_equal, "refuse_equal", OperandError)
        if refuses and (equal := made.repeated()).numel():
            first = int(equal[0])
            raise MatrixError(
                f"coordinates: {equal.numel()} points lie where an earlier one does, the first is point {first} at "
                f"{coordinates[first].tolist()}; merge them (torch.unique(coordinates, dim=0)), or take "
                "refuse_equal=False to read the first of each alone"
            )
        return made

    @property
    def places(self) -> int:
        """Rows that kernels compute."""
        return int(self.words.shape[1])

    def repeated(self) -> Tensor:
        """Numbers of the points whose coordinates an earlier point has, int64 in rising order; waits for the device."""
        order, middle = self.words[0], self.words[1 + (self.words.shape[0] - 1) // 2]
        return order[(middle >= 0) & (middle != order)].long().sort().values

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The points that have something to read at each tap, and what they read: PyTorch's own way waits."""
        order = self.words[0].long()
        return [(order[read >= 0], read[read >= 0].long()) for read in self.words[1:]]


def places_for(points: int) -> int:
    """Places of a map of ``points`` points: the next of `STEPS_OF_OCTAVE` numbers in an octave."""
    step = max(LEAST_PLACES, 1 << max(0, points.bit_length() - 1)) // STEPS_OF_OCTAVE
    return round_up(points, step)


_launches = PlainLaunches(bind_kernel_map)


def _map_of(coordinates: Tensor, filter_size: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    places = places_for(coordinates.shape[0])
    if not places:
        return _fake(coordinates, filter_size, dilation)
    padded = functional.pad(coordinates, (0, 0, 0, places - coordinates.shape[0]), value=NONE)
    size, steps = odd_sides(filter_size, "filter_size"), three_steps(dilation)
    device = kernel_device_of(coordinates.device)
    if device is None:
        made = kernel_map(padded.cpu().numpy(), size, steps)
        return torch.from_numpy(made).to(coordinates.device)
    shape = KernelMapShape(places, size, steps)
    cells = aligned(padded)
    scratch = torch.empty(shape.scratch_bytes, dtype=torch.uint8, device=cells.device)
    words = torch.empty((1 + shape.taps, places), dtype=torch.int32, device=cells.device)
    launch = _launches.of(device, shape)
    launch(stream_of(cells), cells.data_ptr(), scratch.data_ptr(), words.data_ptr())
    return words


def _fake(coordinates: Tensor, filter_size: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    taps = filter_size[0] * filter_size[1] * filter_size[2]
    return coordinates.new_empty((1 + taps, places_for(coordinates.shape[0])))


_kernel_map = DirectOperator(
    "kernel_map",
    "(Tensor coordinates, int[] filter_size, int[] dilation) -> Tensor",
    _map_of,
    fake=_fake,
    tensors=1,
)
