"""The Sparse DNN Challenge's inference: rates of `SparseNetwork`'s families, with every input alive and where most die.

    python -m benchmarks.sparse_networks
    python -m benchmarks.sparse_networks --case 1024:120:60000:alive --family fused_network --config parts=1

A case is neurons:layers:inputs:kind. Of the kind ``alive`` weights are uniform in [0, 1/16) and biases in [-0.05, 0.1),
so that no input dies and every edge is computed; of ``challenge`` they are the challenge's, and most inputs die;
``exact`` is the same with the categories of float64, by wall clock, inputs on the device. Rates are edges of all layers
times inputs by time. The first inputs' results are held against float64 before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from benchmarks.common import write_results
from sparsegen import SparseNetwork, backends
from sparsegen.backends.executor import Executor
from sparsegen.kernels import family as family_named
from sparsegen.matrix.features import Features
from sparsegen.measure.clock import Clock
from sparsegen.networks.images import stroke_images
from sparsegen.networks.network import Network
from sparsegen.networks.radixnet import CLIP, radixnet
from sparsegen.operators import Readout
from sparsegen.plan.binding import bind_variant
from sparsegen.verify.bounds import worst_error

CASES = tuple(
    f"{neurons}:{layers}:{inputs}:{kind}"
    for neurons, layers, inputs in (
        (1024, 120, 60000),
        (4096, 120, 60000),
        (16384, 120, 60000),
        (65536, 120, 8448),
    )
    for kind in ("alive", "challenge")
)
CHECKED = 64  # inputs, at most
CHECKED_EDGES = 1 << 28  # of them together


@dataclass(frozen=True)
class Case:
    """One row."""

    neurons: int
    layers: int
    inputs: int
    kind: str

    @classmethod
    def parse(cls, text: str) -> Case:
        neurons, layers, inputs, kind = text.split(":")
        return cls(int(neurons), int(layers), int(inputs), kind)

    def network(self) -> Network:
        made = radixnet(self.neurons, self.layers)
        if self.kind != "alive":
            return made
        rng = np.random.default_rng(0)
        weights = [
            layer.with_values(rng.uniform(0, 1 / 16, layer.nnz).astype(np.float32)) for layer in made.layers
        ]
        biases = [rng.uniform(-0.05, 0.1, self.neurons).astype(np.float32) for _ in weights]
        return Network.of(weights, biases, CLIP)


def measured(
    case: Case, family: str, changes: Mapping[str, str], readout: Readout, executor: Executor
) -> Any:
    """A row: the variant checked and timed, L2 cold."""
    started = time.perf_counter()
    net = SparseNetwork(case.network(), device=executor.device)
    matrix, problem = net.matrix(), net.problem(case.inputs, readout)
    chosen = family_named(family)
    guess = chosen.guess(problem, Features.of(matrix), executor.device).to_dict()
    config = chosen.config(**{**guess, **changes})
    chosen.require_valid(problem, config, executor.device)
    made = time.perf_counter()
    variant = bind_variant(config, problem, matrix, executor, backends.toolchain(executor.device))
    packed = time.perf_counter()
    images = stroke_images(case.inputs, case.neurons).astype(np.float16)
    clip = np.array([CLIP], np.float32)
    result = problem.result(matrix.nnz)
    given, limit, out = executor.upload(images), executor.upload(clip), executor.allocate(result.nbytes)
    addresses = (given.address, limit.address, out.address)
    executor.synchronize()

    def call() -> None:
        variant.bound()(0, *addresses)

    executor.fill(out, 0xFF)
    call()
    executor.synchronize()
    found = np.empty(result.shape, result.dtype.storage)
    executor.download(out, found)
    few = max(1, min(CHECKED, case.inputs, CHECKED_EDGES // net.network.edges))
    right = replace(problem, n=few).reference(matrix, {"y": images[:few], "clip": clip})
    timing = Clock(executor).time(call, samples=7, budget_s=4.0, warmup=2)
    median = float(np.median(timing.samples_us))
    return {
        "case": ":".join(map(str, (case.neurons, case.layers, case.inputs, case.kind))),
        "variant": str(config),
        "readout": str(readout),
        "compiled": [variant.compiled.kernel.registers, variant.compiled.kernel.spill_bytes],
        "ms": median / 1e3,
        "tera_edges_per_second": net.network.edges * case.inputs / median / 1e6,
        "samples_us": list(timing.samples_us),
        "worst_error": worst_error(right, found[:few]),
        "checked": few,
        "living": int(np.count_nonzero(found.any(axis=1) if found.ndim == 2 else found)),
        "network_s": made - started,
        "packing_and_compiling_s": packed - made,
    }


def exact(case: Case, device: Any) -> Any:
    """A row: exact categories, which are held against float64 of the first inputs."""
    import torch

    net = SparseNetwork(case.network(), device=device)
    images = stroke_images(case.inputs, case.neurons)
    given = torch.from_numpy(images).cuda().half()
    live = net.categories(given)
    few = min(256, case.inputs)
    right = np.flatnonzero(net.inferred(images[:few]).any(axis=1))
    rounded = net.categories(given, exact=False)
    taken = []
    for _ in range(3):
        torch.cuda.synchronize()
        started = time.perf_counter()
        net.categories(given)
        taken.append(time.perf_counter() - started)
    seconds = float(np.median(taken))
    return {
        "case": ":".join(map(str, (case.neurons, case.layers, case.inputs, case.kind))),
        "ms": 1e3 * seconds,
        "tera_edges_per_second": net.network.edges * case.inputs / seconds / 1e12,
        "living": int(live.size),
        "undecided": net.undecided,
        "unlike_float16": int(np.setxor1d(live, rounded).size),
        "unlike_float64": int(np.setxor1d(live[live < few], right).size),
        "checked": few,
    }


@click.command()
@click.option("--case", "cases", multiple=True, default=CASES, metavar="N:L:INPUTS:KIND")
@click.option("--family", help="default: fused_network up to 1024 neurons, else streamed_network")
@click.option("--config", "changes", multiple=True, metavar="KEY=VALUE", help="changes to the family's guess")
@click.option("--readout", type=click.Choice([str(r) for r in Readout]), default="totals")
@click.option("--name", default="sparse_networks", help="of the result file")
def main(
    cases: tuple[str, ...], family: str | None, changes: tuple[str, ...], readout: str, name: str
) -> None:
    device = backends.find_device("cuda")
    executor = backends.open_executor(device)
    rows = []
    for case in map(Case.parse, cases):
        if case.kind == "exact":
            row = exact(case, device)
        else:
            chosen = family or ("fused_network" if case.neurons <= 1024 else "streamed_network")
            with executor.entered():
                row = measured(
                    case, chosen, dict(change.split("=", 1) for change in changes), Readout(readout), executor
                )
        rows.append(row)
        click.echo({name: value for name, value in row.items() if name != "samples_us"})
        write_results(device, name, rows)
    executor.close()


if __name__ == "__main__":
    main()
