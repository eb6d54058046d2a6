"""PyTorch's Triton kernels of block compressed sparse rows for products with masks, a few of their parameters tried.

Putting the masked matrix into blocks is done beforehand, as a favour: every new mask takes it, and the host waits.
"""

from __future__ import annotations

from typing import Any

from sparsegen.bench.baselines._torch import import_torch, nbytes
from sparsegen.bench.baselines._torch_masks import Made, MaskedBlocks, MaskedResult, MaskedTensors
from sparsegen.bench.baselines.torch_bsr import GROUP_ROWS

METAS = ((128, 4, 3), (256, 8, 3), (64, 4, 3))  # columns of B per program, warps, stages


class TorchMaskedBsr(MaskedBlocks):
    name = "torch-masked-bsr"

    @staticmethod
    def products(given: MaskedTensors, result: MaskedResult) -> Made:
        """A in blocks times B."""
        from torch.sparse._triton_ops import bsr_dense_addmm

        matrix = in_blocks(given.a, given.blocks, given.block)
        kept, columns, out = nbytes(matrix.values(), matrix.col_indices()), given.b.shape[1], result.view
        for tile, warps, stages in METAS:
            if tile > columns or columns % tile:
                continue
            meta = {
                "SPLIT_N": columns // tile,
                "GROUP_SIZE_ROW": GROUP_ROWS,
                "num_warps": warps,
                "num_stages": stages,
            }

            def run(meta: dict[str, int] = meta) -> None:
                bsr_dense_addmm(out, matrix, given.b, beta=0, alpha=given.scale, out=out, meta=meta)

            yield f"tile {tile}, {warps} warps, {stages} stages", run, kept

    @staticmethod
    def sampled(given: MaskedTensors, result: MaskedResult) -> Made:
        """The blocks that the mask wants of A · B, then all as a dense matrix."""
        from torch.sparse._triton_ops import sampled_addmm

        torch = import_torch()
        pattern = in_blocks(torch.zeros_like(result.view), given.blocks, given.block)
        out = pattern.clone()
        rows, columns = given.blocks.nonzero(as_tuple=True)
        height, width = given.block
        tiles = result.view.view(-1, height, result.view.shape[1] // width, width)

        def run() -> None:
            sampled_addmm(pattern, given.a, given.b, beta=0.0, alpha=given.scale, out=out, skip_checks=True)
            result.view.zero_()
            tiles[rows, :, columns] = out.values()

        yield "sampled blocks, put to their places", run, nbytes(out.values(), out.col_indices())


def in_blocks(matrix: Any, live: Any, block: tuple[int, int]) -> Any:
    """The live blocks of a matrix as a tensor of block compressed sparse rows."""
    torch = import_torch()
    height, width = block
    tiles = matrix.reshape(live.shape[0], height, live.shape[1], width).permute(0, 2, 1, 3)
    counts = live.sum(1)
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int32, device=live.device)
    offsets[1:] = counts.cumsum(0)
    columns = live.nonzero()[:, 1].to(torch.int32)
    return torch.sparse_bsr_tensor(
        offsets, columns, tiles[live].contiguous(), size=tuple(matrix.shape), check_invariants=False
    )


BASELINES = (TorchMaskedBsr(),)
