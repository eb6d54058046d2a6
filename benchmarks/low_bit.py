"""Decoding with sparse weights of 8 and 4 bits, beside dense ones: float16, 8-bit floating point, and low bits.

    python -m benchmarks.low_bit                             # a minute
    python -m benchmarks.low_bit --device emulator --tiny    # a check without times

Layers of large language models times 1, 4, 8 and 16 tokens, with the heuristic's configs. Unstructured zeros, one scale
for 128 columns of a row or for a row, and zero points; activations are float16. Many tokens are multiplied by the full
weight, expanded from the packed codes at each call, and beside it by one that is kept. Dense: cuBLAS, PyTorch's
`_scaled_mm` of e4m3 by e4m3, and the library humming where it is installed (4-bit weights in groups of 128, 8-bit ones,
e4m3), compiled before anything is timed. Times in turn with a cold L2 full of dirty lines, in microseconds; every
result of ours is held against float64. Raw output: ``low_bit.json.xz``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from benchmarks.humming_layers import KINDS, humming_layer, is_installed
from benchmarks.study import Rows, WrongResultError, times_in_turn, torch_place, write_results
from sparsegen.backends import find_device, toolchain
from sparsegen.backends.executor import Toolchain
from sparsegen.kernels.base import Device
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.quantized.quantized_stream_spmm import FAMILY
from sparsegen.kernels.spmm import lane_stream_spmm
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.measure.l2 import L2
from sparsegen.operators import (
    DType,
    Layout,
    Quantization,
    QuantizedSpmmProblem,
    ScaleGroup,
    SpmmProblem,
    ValueType,
)
from sparsegen.operators.base.float8 import Float8
from sparsegen.plan.binding import BoundVariant, bind_variant
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.expanded_codes import ExpandedCodes
from sparsegen.plan.packing import pack
from sparsegen.plan.variants import compile_variant
from sparsegen.system.device_memory import Buffer

LAYERS = ((14336, 4096), (4096, 4096), (4096, 14336), (28672, 8192))
TOKENS, SPARSITIES = (8, 1, 16, 4), (0.5, 0.7)
TINY = ((256, 512),)
TILED = 1024  # rows from which on a pattern is repeated
LARGE = 1 << 27  # weights from which on two formats alone are measured
FORMATS = (
    Quantization(ValueType.E4M3, ScaleGroup.ROW),
    Quantization(ValueType.INT4, ScaleGroup.OF_128),
    Quantization(ValueType.INT8, ScaleGroup.ROW),
    Quantization(ValueType.INT4, ScaleGroup.OF_128, symmetric=False),
)
MANY_TOKENS = (512, 1024, 2048)
WRONG = 1e-3  # of the norm of a result
Run = Callable[[], Any]
Way = Callable[[Tensor], Run]


def pattern(m: int, k: int, sparsity: float) -> CsrMatrix:
    """Unstructured zeros; many rows repeat those of the first ones, which saves time and changes no kernel's work."""
    rows = min(m, TILED)
    while m % rows:
        rows //= 2
    part = random_uniform(rows, k, 1 - sparsity, 0)
    times = m // rows
    offsets = np.r_[0, np.cumsum(np.tile(np.diff(part.row_offsets), times), dtype=np.int64)]
    columns = np.tile(part.column_indices, times)
    return CsrMatrix((m, k), offsets, columns, np.zeros(columns.size, dtype=np.float32))


def with_codes(matrix: CsrMatrix, kind: ValueType, seed: int) -> CsrMatrix:
    """Random codes other than zero."""
    rng = np.random.default_rng(seed)
    largest = int(kind.largest)
    if kind is ValueType.E4M3:
        codes = (
            rng.integers(1, 0x7E, matrix.nnz, dtype=np.uint8)
            | rng.integers(0, 2, matrix.nnz, dtype=np.uint8) << 7
        )
        return matrix.with_values(Float8.E4M3.from_storage(codes))
    sizes = rng.integers(1, largest + 1, matrix.nnz, dtype=np.int16)
    return matrix.with_values(
        (sizes * (1 - 2 * rng.integers(0, 2, matrix.nnz, dtype=np.int16))).astype(np.float32)
    )


def dense_ways(weight: Tensor) -> dict[str, Way]:
    """PyTorch's products with all weights by name; each takes the activations."""
    narrow = weight.to(torch.float8_e4m3fn)
    one = torch.ones((), device=weight.device)

    def scaled(x: Tensor) -> Run:
        x8 = x.to(torch.float8_e4m3fn)
        return lambda: torch._scaled_mm(
            x8, narrow.t(), one, one, out_dtype=torch.float16, use_fast_accum=True
        )

    return {"float16": lambda x: lambda: torch.matmul(x, weight.t()), "scaled_mm_e4m3": scaled}


def peers_of(layer: tuple[int, int], kind: str) -> Way | None:
    """A dense product by humming, compiled for all tokens; none where it fails, which is printed."""
    weight = torch.randn(layer, dtype=torch.float16, device="cuda") / layer[1] ** 0.5
    try:
        call, _ = humming_layer(weight, kind, max(TOKENS))
    except Exception as error:  # a peer's own errors
        click.echo(f"  {kind} {layer}: {type(error).__name__}: {str(error)[:300]}")
        return None
    return partial(partial, call)


def begun_peers(pool: ThreadPoolExecutor) -> dict[tuple[int, int], dict[str, Future[Way | None]]]:
    """Dense products by humming of all layers, in the making; none where it is not installed."""
    kinds = KINDS if is_installed() else ()
    return {layer: {kind: pool.submit(peers_of, layer, kind) for kind in kinds} for layer in LAYERS}


def finished(begun: Mapping[Any, Mapping[str, Future[Way | None]]]) -> dict[Any, dict[str, Way]]:
    """Keep those that did not fail, once all are made: nothing else runs while times are taken."""
    made = {layer: {kind: one.result() for kind, one in kinds.items()} for layer, kinds in begun.items()}
    return {layer: {kind: way for kind, way in ways.items() if way} for layer, ways in made.items()}


class Ours:
    """One format on one pattern: its matrix, its packed form, and what runs."""

    def __init__(
        self,
        base: CsrMatrix,
        rounding: Quantization,
        device: Device,
        compiler: Toolchain,
        place: torch.device,
    ) -> None:
        self.device, self.executor, self.compiler = device, shared_executor(device), compiler
        m, k = base.shape
        self.problem = QuantizedSpmmProblem(
            *(m, k, 8, DType.FLOAT16, Layout.COLUMN),
            value_type=rounding.value_type,
            scale_group=rounding.group,
            symmetry=rounding.symmetry,
        )
        self.matrix = with_codes(base, rounding.value_type, 1)
        shape = self.problem.groups, m
        scales = torch.rand(shape, device=place).half() * 0.01 + 0.001
        points = torch.randint(-4, 5, shape, device=place).half()
        self.of_groups = (scales,) if rounding.symmetric else (scales, points)
        self.name = f"{rounding.value_type}/{rounding.group}{'' if rounding.symmetric else '/zero-points'}"
        most = replace(self.problem, n=16)  # packed once: what 16 tokens have room for serves fewer
        self.config = FAMILY.heuristic(most, most.features(self.matrix), device)
        self.packed = pack(FAMILY, self.problem, self.config, self.matrix, self.executor)

    def compile(self, pool: ThreadPoolExecutor) -> list[Future[Any]]:
        """Begins to compile it for all tokens."""
        problems = [replace(self.problem, n=n) for n in (8, 16)]
        return [pool.submit(compile_variant, self.config, problem, self.compiler) for problem in problems]

    def bound(self, tokens: int) -> BoundVariant:
        packed = self.packed
        if tokens > 8:
            packed = replace(packed, scratch={name: 2 * size for name, size in packed.scratch.items()})
        problem = replace(self.problem, n=tokens)
        return bind_variant(self.config, problem, packed, self.executor, self.compiler)

    def run(self, b: Tensor) -> tuple[Run, Tensor]:
        """Returns its launch, and its result."""
        out = torch.full((b.shape[0], self.problem.m), torch.nan, dtype=torch.float16, device=b.device)
        return partial(launched, self.bound(b.shape[0]), b, *self.of_groups, out), out

    def about(self) -> dict[str, Any]:
        """Returns what a row says of it."""
        return {
            "config": self.config.to_dict(),
            "value_type": str(self.problem.value_type),
            "group": str(self.problem.scale_group),
            "symmetry": str(self.problem.symmetry),
            "bytes_per_weight": self.packed.nbytes / (self.problem.m * self.problem.k),
        }

    def exact(self, b: Tensor) -> Tensor:
        """The product in float64, tokens × m."""
        scales, *points = self.of_groups
        m, k = self.matrix.shape
        result = torch.empty((b.shape[0], m), dtype=torch.float64, device=b.device)
        lengths = torch.from_numpy(np.diff(self.matrix.row_offsets)).to(b.device)
        columns = torch.from_numpy(np.array(self.matrix.column_indices)).to(b.device)
        values = torch.from_numpy(np.array(self.matrix.values)).to(b.device)
        offsets = np.array(self.matrix.row_offsets)
        size = self.problem.scale_group.size(k)
        for first in range(0, m, 2048):
            last = min(m, first + 2048)
            part = slice(int(offsets[first]), int(offsets[last]))
            rows = torch.repeat_interleave(torch.arange(last - first, device=b.device), lengths[first:last])
            weights = torch.zeros((last - first, k), dtype=torch.float64, device=b.device)
            at = columns[part].long()
            place = at // size, rows + first
            numbers = values[part].double() - (points[0][place].double() if points else 0)
            weights[rows, at] = numbers * scales[place].double()
            result[:, first:last] = b.double() @ weights.t()
        return result

    def expanded(self, x: Tensor) -> Run:
        """The product of many tokens with the weight that each call expands."""
        scales, *points = (tensor.float().cpu().numpy() for tensor in self.of_groups)
        expand = ExpandedCodes(self.bound(8), scales, points[0] if points else None)
        full = torch.empty((self.problem.m, self.problem.k), dtype=torch.float16, device=x.device)

        def run() -> Tensor:
            expand.bound()(0, full.data_ptr())
            return torch.matmul(x, full.t())

        return run


def launched(bound: BoundVariant, *tensors: Tensor) -> None:
    """Launches on the default stream; the variant's memory lives as long as what calls this."""
    bound.bound()(0, *(tensor.data_ptr() for tensor in tensors))


class Float16:
    """The same pattern with float16 values, by `lane_stream_spmm`."""

    def __init__(self, base: CsrMatrix, device: Device, compiler: Toolchain) -> None:
        self.device, self.executor, self.compiler = device, shared_executor(device), compiler
        self.matrix = base.with_values(np.random.default_rng(0).standard_normal(base.nnz, dtype=np.float32))
        self.packed: dict[Any, Packed[Buffer]] = {}

    def run(self, b: Tensor) -> Run:
        family, n = lane_stream_spmm.FAMILY, b.shape[0]
        problem = SpmmProblem(*self.matrix.shape, n, DType.FLOAT16, Layout.COLUMN)
        config = family.heuristic(problem, problem.features(self.matrix), self.device)
        key = config, n > 8  # more columns take more scratch memory
        if key not in self.packed:
            self.packed[key] = pack(family, problem, config, self.matrix, self.executor)
        bound = bind_variant(config, problem, self.packed[key], self.executor, self.compiler)
        out = torch.empty((n, problem.m), dtype=torch.float16, device=b.device)
        return partial(launched, bound, b, out)


def relative_error(found: Tensor, exact: Tensor, name: str) -> float:
    """The error's norm over the result's.

    Raises:
        WrongResultError: it is too large.
    """
    error = float((found.double() - exact).norm() / exact.norm())
    if not error < WRONG:
        raise WrongResultError(f"{name}: {error:.3g} of the result's norm")
    return error


def measure(
    layer: tuple[int, int], sparsity: float, ours: Mapping[Ours, Tensor], others: Mapping[str, Way], b: Tensor
) -> Rows:
    """Checks and times everything on one layer for some tokens; the exact results may be of more."""
    where = {"m": layer[0], "k": layer[1], "n": b.shape[0], "sparsity": sparsity}
    runs = {name: make(b) for name, make in others.items()}
    rows: Rows = [{**where, "what": name} for name in runs]
    for one, exact in ours.items():
        runs[one.name], out = one.run(b)
        runs[one.name]()
        error = relative_error(out, exact[: b.shape[0]], one.name)
        rows.append({**where, "what": one.name, **one.about(), "relative_error": error})
    return timed(rows, runs)


def measure_many(one: Ours, weight: Tensor, sparsity: float) -> Iterator[Rows]:
    """Times products of many tokens with an expanded weight, and with one that is kept."""
    m, k = weight.shape
    drawn = torch.randn((max(MANY_TOKENS), k), device=weight.device).half()
    exact = one.exact(drawn[:16])
    for n in MANY_TOKENS:
        x = drawn[:n]
        runs = {
            f"expanded {one.name}": one.expanded(x),
            f"kept {one.name}": partial(torch.matmul, x, weight.t()),
        }
        error = relative_error(next(iter(runs.values()))()[:16], exact, f"expanded {one.name}")
        where = {"m": m, "k": k, "n": n, "sparsity": sparsity, "relative_error": error}
        yield timed([{**where, "what": name} for name in runs], runs)


def timed(rows: Rows, runs: Mapping[str, Run]) -> Rows:
    """The rows with the times of their runs, which are printed; without them where there is no GPU."""
    if torch.cuda.is_available():
        for row, us in zip(rows, times_in_turn(list(runs.values()), l2=L2.COLD), strict=True):
            row["us"] = us
    where = "{m} x {k} x {n}, {sparsity:.0%} zeros: ".format(**rows[0])
    click.echo(where + ", ".join(f"{row['what']} {row.get('us', torch.nan):.1f}" for row in rows))
    return rows


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--limit", default=500.0, show_default=True, help="begin no pattern later, seconds")
@click.option("--tiny", is_flag=True, help="one small layer, for a test")
def main(name: str, limit: float, tiny: bool) -> None:
    """Measures all layers and writes the file."""
    device, began = find_device(name), time.monotonic()
    place, compiler = torch_place(device), toolchain(device)
    rows: Rows = []
    torch.manual_seed(0)
    with ThreadPoolExecutor(8) as pool, ThreadPoolExecutor(2 * len(KINDS)) as beside:
        peers = begun_peers(beside)
        for m, k in TINY if tiny else LAYERS:
            weight = torch.randn((m, k), device=place).half() / k**0.5
            b = torch.randn((max(TOKENS), k), device=place).half()
            for sparsity in SPARSITIES:
                if time.monotonic() - began > limit:
                    click.echo(f"{limit:g} s are over")
                    return
                base = pattern(m, k, sparsity)
                formats = FORMATS if m * k < LARGE else FORMATS[:2]
                ours = list(pool.map(lambda f, base=base: Ours(base, f, device, compiler, place), formats))
                exact = {one: one.exact(b) for one in ours}
                others = {"ours_float16": Float16(base, device, compiler).run}
                if place.type == "cuda":
                    others = dense_ways(weight) | finished(peers).get((m, k), {}) | others
                for future in [future for one in ours for future in one.compile(pool)]:
                    future.result()
                click.echo(f"packed and compiled after {time.monotonic() - began:.1f} s")
                for n in TOKENS:
                    rows += measure((m, k), sparsity, exact, others, b[:n])
                for one in ours:
                    rows += [row for part in measure_many(one, weight, sparsity) for row in part]
                write_results(device, "low_bit", rows, dtype="float16", l2="cold")


if __name__ == "__main__":
    main()
