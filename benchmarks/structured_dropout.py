"""A step of a linear layer behind structured dropout beside dropout and a dense layer, and what its mask costs.

    python -m benchmarks.structured_dropout                     # a minute
    python -m benchmarks.structured_dropout --device emulator --tiny
    python -m benchmarks.structured_dropout --row chain --size 1024 --size 4096 --p 0.5

`layer`: a step is forward and backward, the gradients of input, weight and bias; with PyTorch's seeds, and with one of
the layer's own. Before it is timed, the three products of the layer are held against dense ones on the same mask.
`chain`: steps of the three products, one behind the other. The mask of a step is there already, or it is drawn behind
the product before: while that still runs (`early`), when it has ended (`late`), or when a kernel that draws a seed has
ended behind it (`generator`, as in layers without a seed of their own). All see the same masks; results must be equal.
`mask`: twenty masks in turn.

Each implementation is one CUDA graph, so that the host plays no part; graphs are replayed in turn, with the L2 as they
leave it (not flushed), and medians are told. Raw output: ``structured_dropout.json.xz``. The emulator has no CUDA graph
and no time: there calls stand for replays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import torch
from torch import Tensor, nn

from benchmarks.study import WrongResultError, times_in_turn, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch import (
    BlockMaskTensor,
    DropoutLinear,
    draw_block_mask,
    dsd,
    dsd_transposed,
    sdd,
)
from sparsegen.integrations.torch.blocks import dropout
from sparsegen.integrations.torch.blocks.block_masks import mask_of
from sparsegen.integrations.torch.blocks.mask_states import new_state
from sparsegen.masks import Drawn, MaskDraw
from sparsegen.measure.decision import decisions

ROUNDS, WARM_UP, MASKS, STEPS = 10, 3, 20, 6
TOLERANCE = 1e-2  # of the largest element, in float16

KINDS = ("layer", "chain", "mask")

Step = Callable[[], Any]


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option(
    "--size", "sizes", multiple=True, type=int, help="tokens, inputs and outputs; default 4096, 1024, 2048"
)
@click.option("--p", "shares", multiple=True, type=float, help="share to drop; default 0.5, 0.1")
@click.option("--block", default="128", show_default=True)
@click.option("--row", "kinds", multiple=True, type=click.Choice(KINDS), help="default: all")
@click.option("--tiny", is_flag=True, help="small layers, for a test")
@click.option("--limit", default=120.0, help="begin nothing later, seconds")
def main(
    name: str,
    sizes: tuple[int, ...],
    shares: tuple[float, ...],
    block: str,
    kinds: tuple[str, ...],
    tiny: bool,
    limit: float,
) -> None:
    began, device = time.monotonic(), find_device(name)
    place = torch_place(device)
    sizes, block = ((64,), "16") if tiny else (sizes or (4096, 1024, 2048), block)
    cases = [(size, p) for size in sizes for p in shares or (0.5, 0.1)]
    rows: list[dict[str, Any]] = []
    makers: list[Callable[[], dict[str, Any]]] = []
    for kind, make in (("layer", layer_row), ("chain", chain_row)):
        if kind in (kinds or KINDS):
            for size, p in cases:
                makers.append(lambda make=make, size=size, p=p: make(size, p, block, place))
    for blocks in (4,) if tiny else (32, 128, 1024):
        if "mask" in (kinds or KINDS):
            makers.append(lambda blocks=blocks: mask_row(blocks, place))
    # All on one stream: autograd adds up gradients on the stream that first saw a parameter, which graphs must capture.
    with torch.cuda.stream(torch.cuda.Stream()) if place.type == "cuda" else contextlib.nullcontext():
        for make in makers:
            if time.monotonic() - began > limit:
                click.echo("time is up: what follows is left out")
                break
            rows.append(make())
            write_results(device, "structured_dropout", rows, l2="not flushed", in_graph=place.type == "cuda")
            click.echo(", ".join(f"{key} {value}" for key, value in rows[-1].items()))


def layer_row(size: int, p: float, block: str, place: torch.device) -> dict[str, Any]:
    """Microseconds of a step of each implementation, and which one the layer takes by itself.

    Raises:
        WrongResultError: masked products differ from dense ones on the same mask.
    """
    torch.manual_seed(0)
    shared: dict[str, Any] = {"device": place, "dtype": torch.float16}
    x, dy = torch.randn(size, size, **shared).requires_grad_(), torch.randn(size, size, **shared)
    layer, own = (DropoutLinear(size, size, p, block, own_seed=own, **shared) for own in (False, True))
    plain = nn.Linear(size, size, **shared)
    dense = nn.Sequential(nn.Dropout(p), plain)

    def step(module: nn.Module) -> tuple[Tensor, ...]:
        y = module(x)
        return y, *torch.autograd.grad(y, (x, *module.parameters()), dy)

    def forced(module: DropoutLinear, masked: bool) -> Step:
        def run() -> tuple[Tensor, ...]:
            module.dense = Dense.NEVER if masked else Dense.ALWAYS
            try:
                return step(module)
            finally:
                module.dense = Dense.AUTO

        return run

    error = 0.0
    for module in (layer, own):
        found = []
        forced(module, True)()  # which draws the seed of its own
        for masked in (True, False):
            torch.manual_seed(1)
            if module is own:
                own._state[1] = 0
            found.append(forced(module, masked)())
        for one, other in zip(*found, strict=True):
            difference = (one.detach().double() - other.detach().double()).abs().max()
            error = max(error, float(difference / other.detach().abs().max()))
    if not error <= TOLERANCE:
        raise WrongResultError(f"{size}, p = {p}: the error is {error:.3g} of the largest element")
    error = max(error, _error_of_graph(forced(own, True), own, place))
    if not error <= TOLERANCE:
        raise WrongResultError(f"{size}, p = {p}, in a graph: the error is {error:.3g}")
    step(layer)  # which tries both implementations
    chosen = dropout.masked_products_pay(size, size, size, layer.block, p, x.dtype, str(x.device), True)
    tried = decisions()  # none without a GPU
    in_graph = tried[-1][-1].on_device if tried else chosen
    implementations = [lambda: step(dense), forced(layer, True), forced(own, True), forced(layer, False)]
    implementations.append(lambda: step(plain))
    us = median_us([replay(implementation, place) for implementation in implementations])
    return {
        "layer": f"{size} x {size} x {size}",
        "block": block,
        "p": p,
        "dropout_dense_us": us[0],
        "masked_us": us[1],
        "masked_own_seed_us": us[2],
        "dense_behind_block_dropout_us": us[3],
        "dense_us": us[4],
        "masked_over_dropout_dense": quotient(us[1], us[0]),
        "own_seed_over_dropout_dense": quotient(us[2], us[0]),
        "chosen": "masked" if chosen else "dense",
        "chosen_in_graph": "masked" if in_graph else "dense",
        "error": error,
    }


def _error_of_graph(step: Step, layer: DropoutLinear, place: torch.device) -> float:
    """The largest difference between results of a graph and of calls with the same masks, of the largest element."""
    graph, results = graph_of(step, place)
    assert layer._state is not None
    layer._state[1] = 0
    right = [one.detach().clone() for one in step()]
    layer._state[1] = 0
    graph()
    pairs = zip(results(), right, strict=True)
    return max(
        float((one.detach().double() - other.double()).abs().max() / other.abs().max())
        for one, other in pairs
    )


def quotient(one: float, other: float) -> float | None:
    """One time over another; None without a GPU, where there is none."""
    return round(one / other, 3) if other else None


def chain_row(size: int, p: float, block: str, place: torch.device) -> dict[str, Any]:
    """Microseconds of a step's three products with a mask that is there, and what another one costs each way.

    Raises:
        WrongResultError: an implementation's results are not those of the masks that are there.
    """
    torch.manual_seed(0)
    shared: dict[str, Any] = {"device": place, "dtype": torch.float16}
    x, weight, dy = (torch.randn(size, size, **shared) for _ in range(3))
    state, draw, sides = new_state(place), MaskDraw(p), dropout.checked_block(block)

    def drawn(*, early: bool, draws_seed: bool = False) -> BlockMaskTensor:
        if draws_seed:
            new_state(place)
        return mask_of(state, (size, size), sides, draw, early=early)

    state.zero_()
    there = [drawn(early=False) for _ in range(STEPS)]

    def chain(mask_at: Callable[[int], BlockMaskTensor]) -> Step:
        def run() -> list[Tensor]:
            state.zero_()
            results = []
            for at in range(STEPS):
                mask = mask_at(at)
                scale = 1 / mask.density
                results = [
                    dsd(x, weight, mask, scale=scale, dense="never"),
                    sdd(dy, weight, mask, scale=scale, dense="never"),
                    dsd_transposed(x, dy, mask, scale=scale, dense="never"),
                ]
            return results

        return run

    implementations = {
        "there": chain(lambda at: there[at]),
        "early": chain(lambda _: drawn(early=True)),
        "late": chain(lambda _: drawn(early=False)),
        "generator": chain(lambda _: drawn(early=False, draws_seed=True)),
    }
    right = implementations["there"]()
    for name, implementation in implementations.items():
        if not all(torch.equal(one, other) for one, other in zip(implementation(), right, strict=True)):
            raise WrongResultError(f"{size}, p = {p}: masks drawn {name} give another result")
    masks = replay(lambda: [drawn(early=False) for _ in range(STEPS)], place)
    us = median_us([*(replay(implementation, place) for implementation in implementations.values()), masks])
    step, alone = (round(found / STEPS, 2) for found in (us[0], us[-1]))
    row: dict[str, Any] = {"chain": f"{size} x {size} x {size}", "block": block, "p": p}
    row |= {"products_us": step, "mask_alone_us": alone}
    for name, found in zip(list(implementations)[1:], us[1:-1], strict=True):
        row[f"{name}_adds_us"] = round((found - us[0]) / STEPS, 2)
    return row


def mask_row(blocks: int, place: torch.device) -> dict[str, Any]:
    """Microseconds of a mask of blocks × blocks, of each kind."""
    row: dict[str, Any] = {"mask": f"{blocks} x {blocks}"}
    for drawn in Drawn:
        if blocks > 128 and drawn is Drawn.EXACT_WHOLE:
            continue  # for which each thread block compares all blocks
        state = torch.zeros(2, dtype=torch.int64, device=place)

        def many(drawn: Drawn = drawn, state: Tensor = state) -> None:
            for _ in range(MASKS):
                draw_block_mask((16 * blocks, 16 * blocks), (16, 16), 0.5, drawn, state=state)

        row[f"{drawn}_us"] = round(median_us([replay(many, place)])[0] / MASKS, 2)
    return row


def replay(step: Step, place: torch.device) -> Step:
    """A replay of a graph of the step on the current stream; without a GPU the step itself."""
    return graph_of(step, place)[0]


def graph_of(step: Step, place: torch.device) -> tuple[Step, Step]:
    """A replay of a graph of the step on the current stream, and its results; without a GPU the step itself."""
    latest: list[Any] = []

    def run() -> None:
        latest[:] = [step()]

    if place.type != "cuda":
        return run, lambda: latest[0]
    for _ in range(WARM_UP):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()
    return graph.replay, lambda: latest[0]


def median_us(runs: list[Step]) -> list[float]:
    """Median microseconds of each, of five calls behind each other, in turn; zeros without a GPU."""
    if not torch.cuda.is_available():
        for run in runs:
            run()
        return [0.0] * len(runs)

    def five_calls(run: Step) -> None:
        for _ in range(5):
            run()

    calls = [partial(five_calls, run) for run in runs]
    times = times_in_turn(calls, rounds=ROUNDS)
    return [round(us / 5, 2) for us in times]


if __name__ == "__main__":
    main()
