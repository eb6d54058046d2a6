"""Products with masks in Triton, as PyTorch's users write them (`_triton_blocks`), a few tiles tried.

The lists of live blocks, which every new mask takes, are made beforehand, as a favour.
"""

from __future__ import annotations

from sparsegen.bench.baselines._torch import import_torch, nbytes
from sparsegen.bench.baselines._torch_masks import Made, MaskedBlocks, MaskedResult, MaskedTensors
from sparsegen.matrix.features import Features
from sparsegen.operators import MaskedProblem, Problem
from sparsegen.operators.masked.masked_problem import BLOCK_SIDES

TILES = ((256, 8, 3), (128, 8, 3), (64, 4, 4))  # columns of the result, warps, stages
SAMPLED = ((8, 3), (4, 4))  # warps, stages
STEP = 64  # elements of the contraction at a time, or a block where that is less
GROUP = 8  # rows of tiles that run side by side
LARGEST = 128  # rows and columns of a tile of the mask


class TritonBlocks(MaskedBlocks):
    name = "triton-blocks"

    def why_not(self, problem: Problem, features: Features) -> str | None:
        reason = super().why_not(problem, features)
        if reason is not None:
            return reason
        assert isinstance(problem, MaskedProblem)
        sides = problem.block.rows, problem.block.columns
        if max(sides) > LARGEST or problem.n % STEP:
            return f"blocks up to {BLOCK_SIDES[-2]} × {BLOCK_SIDES[-2]}, and n of whole {STEP}"
        return None

    @staticmethod
    def products(given: MaskedTensors, result: MaskedResult) -> Made:
        from sparsegen.bench.baselines._triton_blocks import product

        torch, (height, inner) = import_torch(), given.block
        counts = given.blocks.sum(1, dtype=torch.int32)
        longest = int(counts.max())
        # Live blocks first, in their order.
        order = torch.argsort(given.blocks.int(), dim=1, descending=True, stable=True)
        indices = order[:, :longest].to(torch.int32).contiguous()
        rows, columns = given.blocks.shape[0], given.b.shape[1]
        strides = (*given.a.stride(), *given.b.stride(), *result.view.stride())
        for tile, warps, stages in TILES:
            if columns % tile:
                continue
            tiles = columns // tile

            def run(tile: int = tile, warps: int = warps, stages: int = stages, tiles: int = tiles) -> None:
                product[(rows * tiles,)](
                    given.a, given.b, result.view, counts, indices, given.scale, rows, tiles, longest, *strides,
                    HEIGHT=height, INNER=inner, TILE=tile, STEP=min(STEP, inner), GROUP=GROUP,
                    num_warps=warps, num_stages=stages,
                )  # fmt: skip

            yield f"tile {tile}, {warps} warps, {stages} stages", run, nbytes(counts, indices)

    @staticmethod
    def sampled(given: MaskedTensors, result: MaskedResult) -> Made:
        from sparsegen.bench.baselines._triton_blocks import sampled

        torch, (height, width) = import_torch(), given.block
        rows, columns = (found.to(torch.int32) for found in given.blocks.nonzero(as_tuple=True))
        strides = (*given.a.stride(), *given.b.stride(), *result.view.stride())
        for warps, stages in SAMPLED:

            def run(warps: int = warps, stages: int = stages) -> None:
                result.view.zero_()
                sampled[(len(rows),)](
                    given.a, given.b, result.view, rows, columns, given.scale, given.a.shape[1], *strides,
                    HEIGHT=height, WIDTH=width, STEP=STEP, num_warps=warps, num_stages=stages,
                )  # fmt: skip

            yield f"{warps} warps, {stages} stages", run, nbytes(rows, columns)


BASELINES = (TritonBlocks(),)
