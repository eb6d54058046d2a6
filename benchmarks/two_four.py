"""Decoding with weights of 8 and 4 bits and 2:4 sparsity, beside dense ones and beside unstructured zeros.

    python -m benchmarks.two_four

Layers of large language models times 1, 8 and 16 tokens; activations are float16. Configs of
`quantized_sparse_mma_spmm` are checked against float64 and timed; the best ones are then timed in turn with cuBLAS
(float16), with the library humming where it is installed (4-bit weights in groups of 128), and with a bit a weight for
the same pattern (`quantized_stream_spmm`). With a cold L2 full of dirty lines, in microseconds. Rows of a weight repeat
those of the first 1024, which saves time and changes no kernel's work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click
import numpy as np
import torch

from benchmarks.humming_layers import is_installed
from benchmarks.low_bit import TILED, Ours, Run, Way, dense_ways, launched, peers_of, with_codes
from benchmarks.study import Rows, times_in_turn, torch_place, write_results
from sparsegen.backends import find_device, toolchain
from sparsegen.backends.executor import Toolchain
from sparsegen.kernels.base import Device
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.quantized.quantized_sparse_mma_spmm import FAMILY, QuantizedSparseMmaConfig
from sparsegen.matrix.chosen_columns import CHOSEN
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.l2 import L2
from sparsegen.operators import DType, Layout, Quantization, QuantizedSpmmProblem, ScaleGroup, ValueType
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.variants import compile_variant
from sparsegen.system.device_memory import Buffer

LAYERS = ((14336, 4096), (28672, 8192), (4096, 14336), (4096, 4096))
TOKENS = (8, 1, 16)
FORMATS = (Quantization(ValueType.INT4, ScaleGroup.OF_128), Quantization(ValueType.E4M3, ScaleGroup.ROW))
ALIKE = 64  # rows with the same chosen columns
PAIRS = np.array([(a, b) for b in range(4) for a in range(b)])
TRIED = tuple(
    QuantizedSparseMmaConfig(warps=warps, stages=stages, resident_blocks=resident, parts=parts)
    for warps, stages, resident in (
        (8, 4, 1),
        (8, 8, 1),
        (8, 12, 1),
        (16, 4, 1),
        (16, 6, 1),
        (8, 4, 2),
        (4, 8, 2),
    )
    for parts in (1, 2, 4, 8)
)
MORE = 8  # of the fastest for 8 tokens that are tried for others
BEST = 5  # configs that are timed beside the others
BESIDE_BITS = 1 << 26  # weights from which on unstructured zeros are left out


def pattern(m: int, k: int, of: int = CHOSEN) -> CsrMatrix:
    """Two nonzeros in every four columns, or in four chosen ones of more, the same for 64 rows."""
    rng, groups = np.random.default_rng(0), k // of
    chosen = np.sort(rng.permuted(np.tile(np.arange(of), (-(-m // ALIKE), groups, 1)), axis=2)[..., :CHOSEN])
    drawn = PAIRS[rng.integers(0, len(PAIRS), (m, groups))]
    columns = (
        np.take_along_axis(chosen.repeat(ALIKE, axis=0)[:m], drawn, axis=2) + np.arange(groups)[:, None] * of
    )
    columns = columns.reshape(-1).astype(np.int32)
    return CsrMatrix((m, k), np.arange(m + 1) * (2 * groups), columns, np.zeros(columns.size, np.float32))


def repeated(part: CsrMatrix, m: int) -> CsrMatrix:
    """The same rows again and again."""
    times, (rows, k) = m // part.shape[0], part.shape
    return CsrMatrix(
        (m, k),
        np.arange(m + 1) * (part.nnz // rows),
        np.tile(part.column_indices, times),
        np.tile(part.values, times),
    )


@dataclass(eq=False)
class TwoFour:
    """A layer's weight in one format: its packed units, its scales, and what runs."""

    m: int
    k: int
    rounding: Quantization
    device: Device
    compiler: Toolchain
    of: int = CHOSEN

    def __post_init__(self) -> None:
        self.part = with_codes(pattern(min(TILED, self.m), self.k, self.of), self.rounding.value_type, 1)
        self.problem = QuantizedSpmmProblem(
            *(self.m, self.k, 8, DType.FLOAT16, Layout.COLUMN),
            value_type=self.rounding.value_type,
            scale_group=self.rounding.group,
        )
        shape, place = (self.problem.groups, self.m), torch_place(self.device)
        self.scales = torch.rand(shape, device=place).half() * 0.01 + 0.001
        config = QuantizedSparseMmaConfig(of_columns=self.of)
        part = FAMILY.pack(replace(self.problem, m=self.part.shape[0]), config, self.part)
        self.layers = part.sizes["layers"]
        times = self.m // self.part.shape[0]
        executor = shared_executor(self.device)
        with executor.entered():
            self.arrays = {
                name: executor.upload(np.tile(array, (times, *(1,) * (array.ndim - 1))))
                for name, array in part.arrays.items()
            }
            executor.synchronize()  # launches may come on other streams than the uploads

    def packed_for(self, problem: QuantizedSpmmProblem, config: QuantizedSparseMmaConfig) -> Packed[Buffer]:
        """The packed weight with scratch memory for a problem and a config."""
        return Packed(
            arrays=self.arrays,
            sizes={"layers": self.layers},
            nnz=self.m // self.part.shape[0] * self.part.nnz,
            scratch=FAMILY.scratch(problem, config),
        )

    def where(self, n: int) -> dict[str, Any]:
        """Returns the fields that name a row."""
        return {"m": self.m, "k": self.k, "n": n, "format": str(self.rounding)}

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of the packed units; scales come on top."""
        return sum(array.nbytes for array in self.arrays.values()) / (self.m * self.k)

    def heuristic(self, n: int) -> QuantizedSparseMmaConfig:
        problem = replace(self.problem, n=n)
        return FAMILY.heuristic(problem, problem.features(self.part), self.device)

    def configs(self, n: int) -> list[QuantizedSparseMmaConfig]:
        """The heuristic's config and those tried that are valid."""
        problem = replace(self.problem, n=n)
        tried = dict.fromkeys((self.heuristic(n), *TRIED))
        return [c for c in tried if FAMILY.is_valid(problem, c, self.device)]

    def run(self, config: QuantizedSparseMmaConfig, b: Any) -> tuple[Run, Any]:
        """Returns the launch of a config, and its result."""
        problem = replace(self.problem, n=b.shape[0])
        packed = self.packed_for(problem, config)
        bound = bind_variant(config, problem, packed, shared_executor(self.device), self.compiler)
        out = torch.full((b.shape[0], self.m), float("nan"), dtype=torch.float16, device=b.device)
        return partial(launched, bound, b, self.scales, out), out

    def exact(self, b: Any) -> Any:
        """The product in float64, tokens × m."""
        rows, size = self.part.shape[0], self.problem.scale_group.size(self.k)
        codes = torch.from_numpy(self.part.to_dense()).to(b.device).double()
        found = torch.empty((b.shape[0], self.m), dtype=torch.float64, device=b.device)
        for first in range(0, self.m, rows):
            scales = self.scales[:, first : first + rows].double().t().repeat_interleave(size, 1)[:, : self.k]
            found[:, first : first + rows] = b.double() @ (codes * scales).t()
        return found


def checked(
    one: TwoFour, configs: Sequence[QuantizedSparseMmaConfig], b: Any, exact: Any
) -> dict[QuantizedSparseMmaConfig, Run]:
    """The launches of configs whose results are right; of others it is printed."""
    found = {}
    for config in configs:
        run, out = one.run(config, b)
        run()
        torch.cuda.synchronize()
        relative = float(((out.double() - exact).norm() / exact.norm()).item())
        if relative < 1e-3:
            found[config] = run
        else:
            click.echo(f"  WRONG {one.rounding} {config.settings}: {relative:.3g}")
    return found


def compile_all(
    one: TwoFour, configs: Sequence[QuantizedSparseMmaConfig], n: int, pool: ThreadPoolExecutor
) -> None:
    """Compiles configs at once."""
    problem = replace(one.problem, n=n)
    for future in [pool.submit(compile_variant, config, problem, one.compiler) for config in configs]:
        future.result()


def ranked(
    one: TwoFour, configs: Sequence[QuantizedSparseMmaConfig], b: Any, rows: Rows
) -> dict[QuantizedSparseMmaConfig, Run]:
    """The launches of the configs that are right, the fastest first."""
    runs = checked(one, configs, b, one.exact(b))
    times = dict(zip(runs, times_in_turn(list(runs.values()), l2=L2.COLD, rounds=7), strict=True))
    order = sorted(times, key=lambda config: times[config])
    rows += [
        {**one.where(b.shape[0]), "what": str(c.settings), "us": us, "rounds": 7} for c, us in times.items()
    ]
    click.echo(f"{one.where(b.shape[0])}, the heuristic's {times.get(configs[0], 0.0):.1f}")
    click.echo("  " + ", ".join(f"{times[c]:.1f} {list(c.to_dict().values())}" for c in order))
    return {config: runs[config] for config in order}


def compare(
    one: TwoFour, n: int, ours: dict[QuantizedSparseMmaConfig, Run], others: dict[str, Run], rows: Rows
) -> None:
    """Times the first few configs beside others."""
    beside = {str(config.settings): run for config, run in list(ours.items())[:BEST]} | others
    times = dict(zip(beside, times_in_turn(list(beside.values()), l2=L2.COLD), strict=True))
    rows += [{**one.where(n), "what": name, "us": us} for name, us in times.items()]
    for name, us in times.items():
        click.echo(f"  {us:6.1f} {name}")


def dense_of(m: int, k: int) -> dict[str, Way]:
    """Dense products of a layer's shape by name, compiled for all tokens."""
    weight = torch.randn((m, k), dtype=torch.float16, device="cuda") / k**0.5
    peer = peers_of((m, k), "humming_w4") if is_installed() else None
    return {"float16": dense_ways(weight)["float16"]} | ({"humming_w4": peer} if peer is not None else {})


def bits_beside(one: TwoFour, b: Any, pool: ThreadPoolExecutor) -> dict[str, Run]:
    """`quantized_stream_spmm` on the same pattern."""
    ours = Ours(repeated(one.part, one.m), one.rounding, one.device, one.compiler, b.device)
    for future in ours.compile(pool):
        future.result()
    return {f"bits: {ours.config.settings}": ours.run(b)[0]}


@click.command()
@click.option("--seconds", default=1000.0, show_default=True, help="No new layer after this time.")
def main(seconds: float) -> None:
    """Measures all layers and writes the file."""
    device, began = find_device("cuda"), time.monotonic()
    compiler, rows = toolchain(device), Rows()
    torch.manual_seed(0)
    with ThreadPoolExecutor(16) as pool, ThreadPoolExecutor(1) as beside:
        begun = {layer: beside.submit(dense_of, *layer) for layer in LAYERS}
        for m, k in LAYERS:
            if time.monotonic() - began > seconds:
                click.echo(f"no time for {m} x {k}")
                begun[m, k].cancel()
                continue
            b = torch.randn((max(TOKENS), k), dtype=torch.float16, device="cuda")
            ours: dict[QuantizedSparseMmaConfig, Run] = {}
            for rounding in FORMATS:
                one = TwoFour(m, k, rounding, device, compiler)
                configs = one.configs(8)
                for n in TOKENS:
                    if n != 8:
                        valid = one.configs(n)
                        configs = [c for c in dict.fromkeys((valid[0], *list(ours)[:MORE])) if c in valid]
                    compile_all(one, configs, n, pool)
                    click.echo(f"after {time.monotonic() - began:.1f} s")
                    ours = ranked(one, configs, b[:n], rows)
                    others = {name: way(b[:n]) for name, way in begun[m, k].result().items()}
                    if n == 8 and m * k < BESIDE_BITS and rounding.value_type is ValueType.INT4:
                        others |= bits_beside(one, b[:n], pool)
                    compare(one, n, ours, others, rows)
            write_results(device, "two_four", rows)


if __name__ == "__main__":
    main()
