"""Times of drawn convolutions and masked products where operands lie, on copies, and dense.

    python -m benchmarks.copied --seed 7 --rows 10          # some two minutes
    python -m benchmarks.copied --device emulator --tiny    # a check without times

Rows are problems of 16 bits that ``sparsegen bench --suite drawn`` draws, those alone that copies may serve: images in
planes or of channels that no vector divides, and matrices of such rows. All three ways are called as users of PyTorch
call them and captured in CUDA graphs; results are held against float64's first. Times are medians, with the L2
overwritten. Raw output: ``copied.json.xz``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import click
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.mask_times import captured
from benchmarks.study import WrongResultError, times_in_turn, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.bench.drawn import drawn_cases
from sparsegen.dispatch.chosen import Choice
from sparsegen.integrations.torch import BlockMaskTensor, dsd, dsd_transposed, masked_conv2d, sdd
from sparsegen.integrations.torch.blocks.padded_products import padded
from sparsegen.integrations.torch.calls import copied_operands
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.convolution.channels_last import with_channels_last
from sparsegen.integrations.torch.convolution.conv_problem import pixels_of, sides_of
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.kernels.base import Device
from sparsegen.measure.l2 import L2
from sparsegen.operators import (
    Block,
    ConvEpilogue,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    ImageLayout,
    Layout,
    MaskedConv2dProblem,
    MaskOf,
    Problem,
    Rest,
    SddProblem,
)

OPERATORS = ("masked_conv2d", "dsd", "sdd", "dsd_transposed")
VECTOR = 8  # elements of 16 bits
WRONG = 0.02  # of the largest element
DRAWN = 40  # problems that are looked through for each operator
ROUNDS = 15
Call = Callable[[str], Tensor]  # by the word for ``dense``
TINY: tuple[Problem, ...] = (
    MaskedConv2dProblem.of(
        (20, 27), channels=5, filters=8, dtype="float16", padding=1, layout=ImageLayout.NCHW
    ),
    SddProblem(40, 57, 24, DType.FLOAT16, Block(16, 16), Density(0.5)),
)


def is_whole(problem: Problem) -> bool:
    """True if kernels read whole vectors of the operands."""
    if isinstance(problem, MaskedConv2dProblem):
        return not problem.layout.has_planes and problem.channels % VECTOR == 0
    assert isinstance(problem, DsdProblem | SddProblem | DsdTransposedProblem)
    return problem.k % VECTOR == 0 and problem.n % VECTOR == 0


def as_called(problem: Problem) -> Problem:
    """The problem of the functions' usual calls: a filled result, a contiguous weight, no bias."""
    if isinstance(problem, MaskedConv2dProblem):
        return replace(problem, rest=Rest.FILLED, epilogue=ConvEpilogue.NONE)
    if isinstance(problem, DsdTransposedProblem):
        return replace(problem, y_layout=Layout.COLUMN)
    if isinstance(problem, SddProblem):
        return replace(problem, w_layout=Layout.COLUMN, rest=Rest.FILLED)
    assert isinstance(problem, DsdProblem)
    return replace(problem, w_layout=Layout.COLUMN, epilogue=Epilogue.NONE)


def problems(operator: str, seed: int, rows: int) -> Iterator[Problem]:
    """The first drawn problems that copies may serve."""
    found = 0
    for case in drawn_cases(operator, seed, DRAWN):
        for problem in (case.in_dtype(dtype) for dtype in case.dtypes):
            groups = problem.groups.count if isinstance(problem, MaskedConv2dProblem) else 1
            if found < rows and problem.dtype is not DType.FLOAT32 and groups == 1 and not is_whole(problem):
                found += 1
                yield as_called(problem)


def call_of(problem: Problem, place: torch.device) -> tuple[Call, Tensor]:
    """The call, and its result in float64; without a bias."""
    generator = torch.Generator(place).manual_seed(0)
    dtype = getattr(torch, problem.dtype.value)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=place).to(dtype)

    def live(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=place) < p.density.share

    if isinstance(problem, MaskedConv2dProblem):
        p = problem
        stride, padding, dilation, block = sides_of(p)
        order = torch.contiguous_format if p.layout.has_planes else torch.channels_last
        x = drawn(p.batch, p.channels, p.height, p.width).to(memory_format=order)
        weight = drawn(p.filters, p.channels, p.filter_size.rows, p.filter_size.columns)
        blocks = live(p.batch, *p.mask_shape)
        if p.mask_of is MaskOf.INPUT:
            x = torch.where(pixels_of(blocks, block, x), x, 0).contiguous(memory_format=order)
        mask = PackedMask.of(blocks)
        options: dict[str, Any] = {"block": block, "mask_of": p.mask_of, "density": p.density.share}
        sides = {"stride": stride, "padding": padding, "dilation": dilation}
        seen = torch.where(pixels_of(blocks, block, x), x, 0) if p.mask_of.is_of_input else x
        exact = functional.conv2d(seen.double(), weight.double(), **sides)
        if not p.mask_of.is_of_input:
            exact = torch.where(pixels_of(blocks, block, exact), exact, 0)
        return lambda dense: masked_conv2d(x, weight, mask, dense=dense, **sides, **options), exact
    assert isinstance(problem, DsdProblem | SddProblem | DsdTransposedProblem)
    p = problem
    sides = p.block.rows, p.block.columns
    x, d, w = drawn(p.m, p.k), drawn(p.m, p.n), drawn(p.n, p.k)
    blocks = live(math.ceil(p.m / sides[0]), math.ceil(p.k / sides[1]))
    words = BlockMaskTensor.from_blocks(blocks, sides, (p.m, p.k), density=p.density.share)
    of, wide = torch.where(words.expand(), x, 0).double(), (d.double(), w.double())
    if isinstance(p, DsdProblem):
        return lambda dense: dsd(x, w, words, dense=dense), of @ wide[1].t()
    if isinstance(p, SddProblem):
        return lambda dense: sdd(d, w, words, dense=dense), torch.where(words.expand(), wide[0] @ wide[1], 0)
    return lambda dense: dsd_transposed(x, d, words, dense=dense), wide[0].t() @ of


def is_copied(problem: Problem, device: Device) -> bool:
    """True if calls run on copies: where these should take less time."""
    if isinstance(problem, MaskedConv2dProblem):
        return with_channels_last(problem, device) is not None
    assert isinstance(problem, DsdProblem | SddProblem | DsdTransposedProblem)
    return padded(problem, device) is not None


def measured(problem: Problem, device: Device, place: torch.device) -> dict[str, Any]:
    """A row: which way is chosen, and microseconds of each.

    Raises:
        WrongResultError: a result is not float64's.
    """
    call, exact = call_of(problem, place)
    runs: dict[str, Callable[[], Any]] = {}
    ways: dict[str, tuple[str, Callable[[Choice, Device], float]]] = {
        "in place": ("never", lambda *_: 0.0),
        "copied": ("never", lambda choice, _: 0.0 if is_whole(choice.problem) else math.inf),
        "dense": ("always", copied_operands.expected_us),
    }
    for name, (dense, times) in ways.items():
        calls.known.clear()
        with patch.object(copied_operands, "expected_us", times), torch.no_grad():
            found = call(dense)
            error = (found.double() - exact).abs().max().item()
            if error > WRONG * max(exact.abs().max().item(), 1e-3):
                raise WrongResultError(f"{problem} {name}: off by {error:.3g}")
            runs[name] = captured(lambda dense=dense: call(dense)) if place.type == "cuda" else lambda: None
    row: dict[str, Any] = {"operator": problem.operator, "problem": str(problem)}
    row["is_copied"] = is_copied(problem, device)
    if place.type == "cuda":
        us = times_in_turn(list(runs.values()), l2=L2.COLD, rounds=ROUNDS)
        row["us"] = dict(zip(runs, us, strict=True))
    return row


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--rows", type=int, default=10, show_default=True, help="of each operator")
@click.option("--tiny", is_flag=True, help="two small rows alone, for a test")
def main(name: str, seed: int, rows: int, tiny: bool) -> None:
    device = find_device(name)
    place, found = torch_place(device), []
    listed = TINY if tiny else [p for operator in OPERATORS for p in problems(operator, seed, rows)]
    for problem in listed:
        found.append(measured(problem, device, place))
        us = found[-1].get("us", {})
        click.echo(f"{' '.join(f'{what} {time:.1f}' for what, time in us.items())}  {problem}")
        write_results(device, "copied", found, seed=seed, l2="cold")


if __name__ == "__main__":
    main()
