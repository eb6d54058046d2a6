"""Decoding with weights of 8 and 4 bits in one race: unstructured zeros, 2:4, V:N:M, and other libraries' dense ones.

    python -m benchmarks.low_bit_race                             # a minute
    python -m benchmarks.low_bit_race --device emulator --tiny    # a check without times

Layers of large language models times 8, 1, 4 and 16 tokens; activations are float16, configs the heuristics'. All ways
of a row are timed in turn with a cold L2 full of dirty lines, in microseconds, so that ratios are of one state of the
device: `quantized_stream_spmm` with unstructured zeros, `quantized_sparse_mma_spmm` with 2:4, 64:2:8 and 64:2:16
patterns, cuBLAS (float16), PyTorch's `_scaled_mm` of e4m3, and the library humming where it is installed. Every result
of ours is held against float64. Raw output: ``low_bit_race.json.xz``.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import click
import torch
from torch import Tensor

from benchmarks.humming_layers import KINDS
from benchmarks.low_bit import (
    TINY,
    Ours,
    Run,
    Way,
    begun_peers,
    dense_ways,
    finished,
    pattern,
    relative_error,
)
from benchmarks.study import Rows, times_in_turn, torch_place, write_results
from benchmarks.two_four import FORMATS, LAYERS, TwoFour
from sparsegen.backends import find_device, toolchain
from sparsegen.backends.executor import Toolchain
from sparsegen.kernels.base import Device
from sparsegen.measure.l2 import L2
from sparsegen.operators import Quantization, ValueType
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.variants import compile_variant

TOKENS, SPARSITIES = (8, 1, 4, 16), (0.5, 0.7)
PATTERNS = {4: "2:4", 8: "64:2:8", 16: "64:2:16"}
BYTES = {"float16": 2.0, "scaled_mm_e4m3": 1.0, "humming_w4": 0.516, "humming_w8": 1.0, "humming_fp8": 1.0}


@dataclass(frozen=True, eq=False)
class Entrant:
    """One format on one pattern.

    Attributes:
        name: of the zeros and of the codes.
        weight: the packed weight, with its launch and its result in float64.
    """

    name: str
    weight: Ours | TwoFour

    @property
    def bytes_per_weight(self) -> float:
        if isinstance(self.weight, TwoFour):
            return self.weight.bytes_per_weight
        return self.weight.packed.nbytes / self.weight.matrix.shape[0] / self.weight.matrix.shape[1]

    def config(self, n: int) -> Any:
        return self.weight.heuristic(n) if isinstance(self.weight, TwoFour) else self.weight.config

    def compile(self) -> None:
        """Compiles it for all tokens."""
        for n in TOKENS:
            compile_variant(self.config(n), replace(self.weight.problem, n=n), self.weight.compiler)

    def run(self, b: Tensor) -> tuple[Run, Tensor]:
        """Returns its launch, and its result."""
        if isinstance(self.weight, TwoFour):
            return self.weight.run(self.weight.heuristic(b.shape[0]), b)
        return self.weight.run(b)


def entrants(
    layer: tuple[int, int], device: Device, compiler: Toolchain, pool: ThreadPoolExecutor
) -> list[Entrant]:
    """All of a layer, packed and compiled."""
    m, k = layer

    def unstructured(sparsity: float, rounding: Quantization) -> Entrant:
        base = pattern(m, k, sparsity)
        ours = Ours(base, rounding, device, compiler, torch_place(device))
        return Entrant(f"{sparsity:.0%} {rounding.value_type}", ours)

    def structured(of: int, rounding: Quantization) -> Entrant:
        return Entrant(f"{PATTERNS[of]} {rounding.value_type}", TwoFour(m, k, rounding, device, compiler, of))

    begun = [pool.submit(unstructured, sparsity, f) for sparsity in SPARSITIES for f in FORMATS]
    begun += [pool.submit(structured, of, f) for of in PATTERNS for f in FORMATS]
    found = [future.result() for future in begun]
    for done in [pool.submit(one.compile) for one in found]:
        done.result()
    return found


def measure(layer: tuple[int, int], ours: dict[Entrant, Tensor], others: dict[str, Way], b: Tensor) -> Rows:
    """Checks all on one layer for some tokens and times them; the exact results may be of more tokens."""
    n = b.shape[0]
    where = {"m": layer[0], "k": layer[1], "n": n}
    runs = {name: make(b) for name, make in others.items()}
    rows: Rows = [{**where, "what": name, "bytes_per_weight": BYTES[name]} for name in runs]
    for one, exact in ours.items():
        runs[one.name], out = one.run(b)
        runs[one.name]()
        error = relative_error(out, exact[:n], f"{one.name}, {where}")
        about = {"config": one.config(n).to_dict(), "bytes_per_weight": one.bytes_per_weight}
        rows.append({**where, "what": one.name, **about, "relative_error": error})
    if torch.cuda.is_available():
        for row, us in zip(rows, times_in_turn(list(runs.values()), l2=L2.COLD), strict=True):
            row["us"] = us
    click.echo(f"{layer[0]} x {layer[1]} x {n}: " + ", ".join(told(row, rows) for row in rows))
    return rows


def told(row: dict[str, Any], rows: Rows) -> str:
    """A way's time, and how many times faster it is than dense weights of as many bits by humming."""
    us = row.get("us", float("nan"))
    bits = ValueType.INT4 if "int4" in row["what"] else ValueType.E4M3
    peers = ("humming_w4",) if bits is ValueType.INT4 else ("humming_fp8", "scaled_mm_e4m3")
    best = min((other["us"] for other in rows if other["what"] in peers and "us" in other), default=None)
    ratio = f" ({best / us:.2f})" if best is not None and "relative_error" in row else ""
    return f"{row['what']} {us:.1f}{ratio}"


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--limit", default=500.0, show_default=True, help="begin no layer later, seconds")
@click.option("--tokens", default=TOKENS, show_default=True, multiple=True, help="these alone, in this order")
@click.option("--tiny", is_flag=True, help="one small layer, for a test")
def main(name: str, limit: float, tokens: tuple[int, ...], tiny: bool) -> None:
    """Measures all layers and writes the file."""
    device, began = find_device(name), time.monotonic()
    place, compiler = torch_place(device), toolchain(device)
    shared_executor(device)  # this thread's: what the pool's threads make is launched here
    rows: Rows = []
    torch.manual_seed(0)
    with ThreadPoolExecutor(12) as pool, ThreadPoolExecutor(2 * len(KINDS)) as beside:
        peers = begun_peers(beside)
        for m, k in TINY if tiny else LAYERS:
            if time.monotonic() - began > limit:
                click.echo(f"{limit:g} s are over")
                break
            b = torch.randn((max(TOKENS), k), device=place).half()
            ours = {one: one.weight.exact(b) for one in entrants((m, k), device, compiler, pool)}
            others: dict[str, Way] = {}
            if place.type == "cuda":
                weight = torch.randn((m, k), device=place).half() / k**0.5
                others = dense_ways(weight) | finished(peers).get((m, k), {})
            click.echo(f"packed and compiled after {time.monotonic() - began:.1f} s")
            for n in tokens:
                rows += measure((m, k), ours, others, b[:n])
                write_results(device, "low_bit_race", rows, dtype="float16", l2="cold")


if __name__ == "__main__":
    main()
