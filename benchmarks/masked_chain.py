"""Chains of small masked convolutions on one mask: what a layer takes alone, and behind others.

    python -m benchmarks.masked_chain

Layers of 3 × 3 filters, float16, channels last, outputs outside of the mask left as they are (zero). Each chain is a
CUDA graph whose mask is in the buffer when it is replayed. In one, every kernel waits for the one before it and then
finds its units in the mask (`given="latest"`); in the other all but the first find them, and load their first weights,
while the one before still ends (`given="earlier"`). Both must give equal bits, for masks that change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click
import torch

import sparsegen
from benchmarks.study import times_in_turn, write_results
from sparsegen import masks
from sparsegen.backends import find_device
from sparsegen.errors import CompileError
from sparsegen.kernels.base import Device
from sparsegen.kernels.convolution.halo_conv import FAMILY, HaloConvConfig
from sparsegen.measure.l2 import L2
from sparsegen.operators import Density, Given, MaskedConv2dProblem

# Small tiles spread few units over many multiprocessors.
CONFIGS = (
    HaloConvConfig(tile_n=64, group_units=1, input_stages=3, weight_stages=4, stage_taps=3),
    HaloConvConfig(tile_n=32, group_units=1, input_stages=2, weight_stages=4, stage_taps=3),
    HaloConvConfig(tile_n=32, group_units=1, input_stages=4, weight_stages=6, stage_taps=3),
    HaloConvConfig(tile_n=32, group_units=1, input_stages=4, weight_stages=9, stage_taps=3),
)
MASKS = 20  # on which both chains are compared


class Chain:
    """Layers with weights of their own, two images that take turns, and a mask."""

    def __init__(self, problem: MaskedConv2dProblem, layers: int, seed: int = 0) -> None:
        p = self.problem = problem
        self.generator = torch.Generator("cuda").manual_seed(seed)
        shape = problem.operands(0)[0].shape
        self.first = self.drawn(*shape)
        self.images = [torch.zeros_like(self.first) for _ in range(2)]
        size = p.filters, 3, 3, p.channels
        self.weights = [self.drawn(*size) / (9 * p.channels) ** 0.5 for _ in range(layers)]
        self.words = torch.zeros(problem.operands(0)[2].shape, dtype=torch.int64, device="cuda")
        self.renew()

    def drawn(self, *shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=self.generator).half()

    def renew(self) -> None:
        """Another mask, and no results."""
        p = self.problem
        live = torch.rand(p.batch, *p.mask_shape, device="cuda", generator=self.generator) < p.density.share
        self.words.copy_(masks.words_of(live).reshape(self.words.shape).view(torch.int64))
        for image in self.images:
            image.zero_()

    def graph(self, layers: int, operators: Sequence[Any]) -> Any:
        """Captures ``layers`` layers; the first operator computes the first one, the second one the others."""

        def run() -> None:
            x = self.first
            for number, w in enumerate(self.weights[:layers]):
                y = self.images[number % 2]
                operators[number > 0](x, w, self.words, out=y)
                x = y

        run()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        return captured

    def result(self, layers: int) -> Any:
        """Returns the last layer's result."""
        return self.images[(layers - 1) % 2].clone()


def require_equal(chain: Chain, layers: int, graphs: Sequence[Any]) -> None:
    """Both graphs give equal bits on masks that change.

    Raises:
        ClickException: they do not.
    """
    for number in range(MASKS):
        found = []
        state = chain.generator.get_state()
        for graph in graphs:
            chain.generator.set_state(state)
            chain.renew()
            graph.replay()
            found.append(chain.result(layers))
        if not torch.equal(*found) or not found[0].any():
            raise click.ClickException(f"chains differ, or are zero, on mask {number}")


def measured(
    problem: MaskedConv2dProblem, config: HaloConvConfig, layers: int, repetitions: int
) -> dict[str, Any]:
    """Microseconds of a layer alone, also with the L2 written over, and of one within each chain.

    The device is busy while the host enqueues a graph, so that no time of the host is among them.
    """
    prepare: Callable[[MaskedConv2dProblem], Any] = lambda p: sparsegen.prepare(  # noqa: E731
        problem=p, family=FAMILY.name, config=config.to_dict(), dense="never"
    )
    latest, earlier = (prepare(replace(problem, given=given)) for given in (Given.LATEST, Given.EARLIER))
    chain = Chain(problem, layers)
    graphs = [chain.graph(layers, (latest, other)) for other in (latest, earlier)]
    require_equal(chain, layers, graphs)
    alone = chain.graph(1, (latest, latest))
    replays = [graph.replay for graph in (alone, *graphs)]
    times = times_in_turn(replays, rounds=repetitions)
    cold = times_in_turn([alone.replay], l2=L2.COLD, rounds=repetitions)
    return {
        "channels": problem.channels,
        "config": str(config),
        "alone_us": times[0],
        "alone_cold_us": cold[0],
        **{
            f"layer_{given}_us": (of_all - times[0]) / (layers - 1)
            for given, of_all in zip(Given, times[1:], strict=True)
        },
    }


def configs(problem: MaskedConv2dProblem, device: Device) -> list[HaloConvConfig]:
    """The heuristic one and those for small work, as far as they are valid."""
    own = FAMILY.heuristic(problem, problem.features(problem.without_pattern), device)
    return [c for c in dict.fromkeys((own, *CONFIGS)) if not FAMILY.broken_constraints(problem, c, device)]


@click.command()
@click.option("--channels", multiple=True, default=(64, 128, 256), show_default=True)
@click.option("--side", default=128, show_default=True, help="Rows and columns of an image.")
@click.option("--images", default=1, show_default=True)
@click.option("--layers", default=16, show_default=True)
@click.option("--sparsity", default=0.9, show_default=True)
@click.option("--repetitions", default=50, show_default=True)
def main(
    channels: Sequence[int], side: int, images: int, layers: int, sparsity: float, repetitions: int
) -> None:
    device, rows = find_device("cuda"), []
    for count in channels:
        problem = MaskedConv2dProblem.of(
            (side, side),
            **{"channels": count, "filters": count, "batch": images, "dtype": "float16", "rest": "kept"},
            density=Density.parse(1 - sparsity),
        )
        for config in configs(problem, device):
            try:
                rows.append(measured(problem, config, layers, repetitions))
            except CompileError as error:
                click.echo(f"{count} channels, {config}: {error}", err=True)
                continue
            times = "  ".join(f"{name[:-3]} {v:.2f}" for name, v in rows[-1].items() if name.endswith("_us"))
            click.echo(f"{count} channels  {times}  {config}")
    write_results(device, "masked_chain", rows, side=side, images=images, layers=layers, sparsity=sparsity)


if __name__ == "__main__":
    main()
