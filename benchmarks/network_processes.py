"""A sparse network on the GPUs of all processes of torchrun, by wall clock, against the first process alone.

    torchrun --nproc-per-node 2 -m benchmarks.network_processes
    torchrun --nproc-per-node 2 -m benchmarks.network_processes --device emulator --neurons 64 --layers 4 --inputs 40

Every process infers a part of the inputs on its own GPU; the first one packs the network and broadcasts it, and all of
them get all results (NCCL, or gloo on the emulator). Cases are those of ``network_devices``. Inputs are bits on the
host, results totals on the host; times are medians after a first call, from a barrier of all processes to the results
in the first one. They must be the same bits as those of one process. Raw output: ``network_processes.json.xz``.
"""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np
import torch
import torch.distributed as dist

from benchmarks.network_devices import CALLS, DISTINCT, living
from benchmarks.study import Rows, WrongResultError, write_results
from sparsegen import SparseNetwork
from sparsegen.backends import find_device
from sparsegen.integrations.torch.networks.distributed_network import DistributedNetwork
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.inputs import BitInputs
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet


@click.command()
@click.option("--device", default="cuda", show_default=True, help="Each process's own GPU, or emulator.")
@click.option("--neurons", default=65536, show_default=True)
@click.option("--layers", default=120, show_default=True)
@click.option("--inputs", default=60000, show_default=True)
@click.option("--family", default="streamed_network", show_default=True, help="By its heuristic config.")
@click.option("--seconds", default=100.0, show_default=True, help="After which no further case is begun.")
def main(device: str, neurons: int, layers: int, inputs: int, family: str, seconds: float) -> None:
    ends = time.perf_counter() + seconds
    dist.init_process_group("gloo" if device == "emulator" else "nccl")
    own = device if device == "emulator" else f"cuda:{dist.get_node_local_rank()}"
    if own != "emulator":
        torch.cuda.set_device(own)
    images = BitInputs.of(stroke_images(min(DISTINCT, inputs), neurons))
    given = images.some(np.arange(inputs) % images.count)
    challenge = radixnet(neurons, layers)
    rows: Rows = []
    for case, network in (("challenge-like", challenge), ("alive", living(challenge))):
        over = torch.tensor([time.perf_counter() > ends], dtype=torch.int32)
        told: list[Any] = [bool(over)]
        dist.broadcast_object_list(told, src=0)  # the first process's clock decides for all
        if told[0]:
            break
        row = measured(case, network, given, own, family)
        if dist.get_rank() == 0:
            rows.append(row)
            write_results(find_device(own), "network_processes", rows)
            click.echo(", ".join(f"{name} {value}" for name, value in row.items()))
    dist.destroy_process_group()


def measured(case: str, network: Network, given: BitInputs, device: str, family: str) -> dict[str, Any]:
    """A row: one process, then all of them.

    Raises:
        WrongResultError: all processes together give other results than one.
    """
    is_first = dist.get_rank() == 0
    net = SparseNetwork(network, family=family, device=device) if is_first else None
    alone_ms, right = np.nan, np.zeros(0)
    if net is not None:
        alone_ms, right = median_ms(lambda: net.totals(given, devices=device))
        net.release()
    together = DistributedNetwork(net, given.count, device=device)

    def call() -> Any:
        dist.barrier()
        return together.totals(given)

    ms, found = median_ms(call)
    if is_first and (unlike := int(np.count_nonzero(found != right))):
        raise WrongResultError(f"{case}: {unlike} of {right.size} results are not those of one process")
    return {
        "case": case,
        "neurons": network.neurons,
        "layers": len(network.layers),
        "inputs": given.count,
        "processes": dist.get_world_size(),
        "backend": str(dist.get_backend()),
        "ms": ms,
        "ms_of_one": alone_ms,
        "tera_edges_per_second": network.edges * given.count / ms / 1e9,
        "efficiency": alone_ms / ms / dist.get_world_size(),
        "living": int(np.count_nonzero(found)),
    }


def median_ms(call: Any) -> tuple[float, Any]:
    """Milliseconds of a call, after a first one, and what the last one gave."""
    taken, found = [], call()
    for _ in range(CALLS):
        began = time.perf_counter()
        found = call()
        taken.append(1e3 * (time.perf_counter() - began))
    return float(np.median(taken)), found


if __name__ == "__main__":
    main()
