"""SBNet's way with kernels for its copies: live blocks with their halo are gathered, convolved by cuDNN, scattered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsegen.backends.executor import Executor
from sparsegen.bench.baselines._torch import import_torch, place
from sparsegen.bench.baselines._torch_blocks import other_masks, window_size
from sparsegen.bench.baselines._torch_conv import Given, TorchConvolution
from sparsegen.bench.results.results import Kind
from sparsegen.operators import MaskedConv2dProblem
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import Address

FILE = "tiles.cu"
WIDEST = 16  # bytes that a thread copies


def other_masks_or_planes(problem: MaskedConv2dProblem) -> str | None:
    """Refuses planes of channels too."""
    planes = "it copies pixels whose channels lie side by side" if problem.layout.has_planes else None
    return other_masks(problem) or planes


def gathered(given: Given) -> Callable[[], Any]:
    """Ren et al., SBNet, CVPR 2018: two kernels of ours around cuDNN, so that its copies take what they must.

    cuDNN wants to know how many blocks there are: their list is made beforehand, as for the others.
    """
    torch, p = import_torch(), given.problem
    image, row, column = given.live.nonzero(as_tuple=True)
    rows, columns = window_size(p)
    block, stride = p.mask_block, p.stride
    first = [image, row * block.rows, column * block.columns]
    reads = [
        image,
        first[1] * stride.rows - p.padding.rows,
        first[2] * stride.columns - p.padding.columns,
    ]
    pixels = given.images.permute(0, 2, 3, 1)
    blocks = len(image)
    tiles = torch.empty((blocks, rows, columns, p.channels), dtype=pixels.dtype, device=place())
    y = torch.zeros((p.batch, p.out_height, p.out_width, p.filters), dtype=pixels.dtype, device=place())
    gather = Copier(given.executor, "gather", reads, tiles, (p.height, p.width))
    results = torch.empty((blocks, block.rows, block.columns, p.filters), dtype=pixels.dtype, device=place())
    scatter = Copier(given.executor, "scatter", first, results, (p.out_height, p.out_width))
    sides = {name: side for name, side in given.sides.items() if name != "padding"}
    convolve, groups = torch.nn.functional.conv2d, p.groups.count

    def run() -> Any:
        if blocks:
            gather(pixels.data_ptr(), tiles.data_ptr())
            found = convolve(tiles.permute(0, 3, 1, 2), given.filters, given.bias, groups=groups, **sides)
            scatter(found.permute(0, 2, 3, 1).contiguous().data_ptr(), y.data_ptr())
        return y.permute(0, 3, 1, 2)

    return run


class Copier:
    """A launch of a kernel between tiles and images.

    Args:
        places: for each block the image, and row and column of its first pixel.
        tiles: blocks × rows × columns × channels.
        image: its rows and columns.
    """

    def __init__(
        self, executor: Executor, name: str, places: list[Any], tiles: Any, image: tuple[int, int]
    ) -> None:
        self._places = import_torch().stack(places, dim=1).int().contiguous()
        blocks, rows, columns, channels = tiles.shape
        nbytes = channels * tiles.element_size()
        each = WIDEST if nbytes % WIDEST == 0 else 2
        words = nbytes // each
        [kernel] = plain_launchers(executor, FILE, f"{name}_{each}")
        listed = Address(self._places.data_ptr(), self._places.nbytes)
        work = blocks * rows * columns * words
        self._bound = kernel.bind(work, blocks, rows, columns, *image, words, listed, None, None)

    def __call__(self, read: int, written: int) -> None:
        """Copies from one address to another."""
        self._bound(0, read, written)


BASELINES = (
    TorchConvolution(
        "kernel-gather-conv",
        Kind.SPARSE,
        "a gathering kernel, cuDNN's fastest, a scattering one; list of blocks for nothing",
        gathered,
        other_masks_or_planes,
    ),
)
