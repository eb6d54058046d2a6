"""Decoding with sparse weights of 8 and 4 bits, beside dense ones: float16, 8-bit floating point, and low bits.

    python -m benchmarks.low_bit

Layers of large language models times 1, 4, 8 and 16 tokens. Unstructured zeros, one scale for 128 columns of a row or
for a row, and zero points; activations are float16. Many tokens are multiplied by the full weight, expanded from the
packed codes at each call, and beside it by one that is kept. Dense: cuBLAS and PyTorch's `_scaled_mm` of e4m3 by
e4m3; with ``--peers`` alone, and beside the library humming where it is installed (4-bit weights in groups of 128,
8-bit ones, e4m3). Times in turn with a cold L2 full of dirty lines, in microseconds; every result of ours is held
against float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import click
import numpy as np
import torch

from benchmarks.study import Rows, times_in_turn, write_results
from sparsegen.backends import find_device, toolchain
from sparsegen.backends.executor import Toolchain
from sparsegen.kernels.base import Device
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.quantized.quantized_stream_spmm import FAMILY, QuantizedStreamConfig
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

LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192))
TOKENS, SPARSITIES = (1, 4, 8, 16), (0.5, 0.7)
TINY = ((256, 512),)
TILED = 1024  # rows from which on a pattern is repeated
LARGE = 1 << 26  # nonzeros from which on fewer ways are measured
FORMATS = (
    Quantization(ValueType.E4M3, ScaleGroup.ROW),
    Quantization(ValueType.INT8, ScaleGroup.ROW),
    Quantization(ValueType.INT4, ScaleGroup.OF_128),
    Quantization(ValueType.INT4, ScaleGroup.OF_128, symmetric=False),
)
MANY_TOKENS = (512, 1024, 2048)
PEERS = {
    "humming_w4": {"dtype": "int4", "group_size": 128},
    "humming_fp8": {"dtype": "float8e4m3"},
    "humming_w8": {"dtype": "int8"},
}
Run = Callable[[], Any]


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


def configs(
    problem: QuantizedSpmmProblem, matrix: CsrMatrix, device: Device
) -> Iterator[QuantizedStreamConfig]:
    """The heuristic's config, and others in their shares of the work."""
    own = FAMILY.heuristic(problem, problem.features(matrix), device)
    tried = [own, replace(own, warps_m=2 * own.warps_m, ring_chunks=8, depth=2), replace(own, blocks=132)]
    yield from dict.fromkeys(c for c in tried if FAMILY.is_valid(problem, c, device))


def exact(one: Ours, b: Any) -> Any:
    """The product in float64, tokens × m."""
    problem, matrix = one.problem, one.matrix
    scales, *points = one.of_groups
    m, k = matrix.shape
    result = torch.empty((b.shape[0], m), dtype=torch.float64, device="cuda")
    lengths = torch.from_numpy(np.diff(matrix.row_offsets)).cuda()
    columns = torch.from_numpy(np.array(matrix.column_indices)).cuda().long()
    values = torch.from_numpy(np.array(matrix.values)).cuda()
    offsets = np.array(matrix.row_offsets)
    size = problem.scale_group.size(k)
    for first in range(0, m, 2048):
        last = min(m, first + 2048)
        part = slice(int(offsets[first]), int(offsets[last]))
        rows = torch.repeat_interleave(torch.arange(last - first, device="cuda"), lengths[first:last])
        weights = torch.zeros((last - first, k), dtype=torch.float64, device="cuda")
        place = columns[part] // size, rows + first
        numbers = values[part].double() - (points[0][place].double() if points else 0)
        weights[rows, columns[part]] = numbers * scales[place].double()
        result[:, first:last] = b.double() @ weights.t()
    return result


def dense_ways(weight: Any) -> dict[str, Callable[[Any], Run]]:
    """PyTorch's products with all weights by name; each takes the activations."""
    narrow = weight.to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")

    def scaled(x: Any) -> Run:
        x8 = x.to(torch.float8_e4m3fn)
        return lambda: torch._scaled_mm(
            x8, narrow.t(), one, one, out_dtype=torch.float16, use_fast_accum=True
        )

    return {"float16": lambda x: lambda: torch.matmul(x, weight.t()), "scaled_mm_e4m3": scaled}


def peer_ways(weight: Any, names: Iterable[str] = PEERS) -> dict[str, Callable[[Any], Run]]:
    """The library humming's products by name, where it is installed."""
    if find_spec("humming") is None:
        return {}
    from humming.layer import HummingLayer  # type: ignore[import-not-found]

    found: dict[str, Callable[[Any], Run]] = {}
    m, k = weight.shape
    for name in names:
        try:
            layer = HummingLayer(
                shape_n=m, shape_k=k, weight_config=dict(PEERS[name]), torch_dtype=torch.float16
            ).cuda()
            layer.load_from_unquantized(weight)
            layer.transform()
        except Exception as error:  # a peer's own errors
            click.echo(f"  {name}: {type(error).__name__}: {str(error)[:300]}")
            continue
        found[name] = partial(partial, layer)
    return found


def working(runs: Mapping[str, Callable[[Any], Run]], x: Any) -> dict[str, Run]:
    """The runs that take these activations; why others do not is printed."""
    found = {}
    for name, make in runs.items():
        try:
            run = make(x)
            run()
            torch.cuda.synchronize()
        except Exception as error:  # a peer's own errors
            click.echo(f"  {name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        found[name] = run
    return found


class Ours:
    """One format on one pattern: its matrix, its packed forms, and what runs."""

    def __init__(self, base: CsrMatrix, rounding: Quantization, device: Device, compiler: Toolchain) -> None:
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
        scales = torch.rand(shape, device="cuda", dtype=torch.float16) * 0.01 + 0.001
        points = torch.randint(-4, 5, shape, device="cuda").half()
        self.of_groups = (scales,) if rounding.symmetric else (scales, points)
        self.name = f"{rounding.value_type}/{rounding.group}{'' if rounding.symmetric else '/zero-points'}"
        self.packed: dict[Any, Packed[Buffer]] = {}
        self.exact: Any = None

    def begin(self, pool: ThreadPoolExecutor) -> list[Future[Any]]:
        """Packs for all configs, and begins to compile them."""
        self.configs = list(configs(self.problem, self.matrix, self.device))
        problems = [replace(self.problem, n=n) for n in (8, 16)]
        valid = [(c, p) for c in self.configs for p in problems if FAMILY.is_valid(p, c, self.device)]
        begun = [pool.submit(compile_variant, c, p, self.compiler) for c, p in valid]
        for config in self.configs:
            key = FAMILY.packing_key(self.problem, config)
            if key not in self.packed:
                self.packed[key] = pack(FAMILY, self.problem, config, self.matrix, self.executor)
        return begun

    def runs(self, b: Any) -> Iterator[tuple[QuantizedStreamConfig, Run, Any, int]]:
        """Each config, its launch, its result and its bytes."""
        problem = replace(self.problem, n=b.shape[0])
        for config in self.configs:
            if not FAMILY.is_valid(problem, config, self.device):
                continue
            key = FAMILY.packing_key(problem, config)
            packed = self.packed[key]
            if problem.n > 8:
                packed = replace(packed, scratch={name: 2 * size for name, size in packed.scratch.items()})
            bound = bind_variant(config, problem, packed, self.executor, self.compiler)
            out = torch.full((b.shape[0], problem.m), float("nan"), dtype=torch.float16, device="cuda")
            yield config, partial(launched, bound, b, *self.of_groups, out), out, packed.nbytes

    def expanded(self, x: Any) -> Run:
        """The product of many tokens with the weight that each call expands."""
        config = self.configs[0]
        packed = self.packed[FAMILY.packing_key(self.problem, config)]
        bound = bind_variant(config, self.problem, packed, self.executor, self.compiler)
        scales, *points = (tensor.float().cpu().numpy() for tensor in self.of_groups)
        expand = ExpandedCodes(bound, scales, points[0] if points else None)
        full = torch.empty((self.problem.m, self.problem.k), dtype=torch.float16, device="cuda")

        def run() -> Any:
            expand.bound()(0, full.data_ptr())
            return torch.matmul(x, full.t())

        return run


def launched(bound: BoundVariant, *tensors: Any) -> None:
    """Launches on the default stream; the variant's memory lives as long as what calls this."""
    bound.bound()(0, *(tensor.data_ptr() for tensor in tensors))


def fp16_run(base: CsrMatrix, n: int, b: Any, device: Device, compiler: Toolchain) -> tuple[Run, str]:
    family, (m, k) = lane_stream_spmm.FAMILY, base.shape
    problem = SpmmProblem(m, k, n, DType.FLOAT16, Layout.COLUMN)
    config = family.heuristic(problem, problem.features(base), device)
    executor = shared_executor(device)
    matrix = base.with_values(np.random.default_rng(0).standard_normal(base.nnz, dtype=np.float32))
    packed = pack(family, problem, config, matrix, executor)
    bound = bind_variant(config, problem, packed, executor, compiler)
    out = torch.empty((n, m), dtype=torch.float16, device="cuda")
    return partial(launched, bound, b, out), str(config.settings)


@click.command()
@click.option("--tiny", is_flag=True, help="One small layer, to rehearse.")
@click.option("--seconds", default=1000.0, show_default=True, help="No new layer after this time.")
@click.option("--peers", is_flag=True, help="The dense ways alone, those of other libraries among them.")
def main(tiny: bool, seconds: float, peers: bool) -> None:
    """Measures all layers and writes the file."""
    device, began = find_device("cuda"), time.monotonic()
    rows: Rows = []
    torch.manual_seed(0)
    compiler = toolchain(device)
    with ThreadPoolExecutor(8) as pool:
        for m, k in TINY if tiny else LAYERS:
            if time.monotonic() - began > seconds:
                click.echo(f"no time for {m} x {k}")
                continue
            weight = torch.randn((m, k), dtype=torch.float16, device="cuda") / k**0.5
            dense = dense_ways(weight)
            b = torch.randn((max(TOKENS), k), dtype=torch.float16, device="cuda")
            if peers:
                dense |= peer_ways(weight)
                for n in TOKENS:
                    measure(m, [], None, dense, b[:n], rows)
                click.echo(f"{m} x {k}, dense, after {time.monotonic() - began:.1f} s")
                write_results(device, "low_bit_peers", rows)
                continue
            for sparsity in SPARSITIES:
                base = pattern(m, k, sparsity)
                ours = list(pool.map(lambda f, base=base: Ours(base, f, device, compiler), FORMATS))
                for future in [f for one in ours for f in one.begin(pool)]:
                    future.result()
                click.echo(f"{m} x {k}, {sparsity:.0%} zeros, packed after {time.monotonic() - began:.1f} s")
                for one in ours:
                    one.exact = exact(one, b)
                for n in TOKENS:
                    measure(m, ours, base, dense, b[:n], rows)
                for one in ours:
                    measure_many(one, weight, rows)
                del ours
            write_results(device, "low_bit", rows)


def measure(
    m: int, ours: list[Ours], base: CsrMatrix | None, dense: Mapping[str, Any], b: Any, rows: Rows
) -> None:
    """Checks and times everything on one layer for some tokens."""
    n, k = b.shape
    runs: dict[str, Run] = working(dense, b)
    about: dict[str, dict[str, Any]] = {name: {} for name in runs}
    if base is not None and (base.nnz < LARGE or n == 8):
        runs["ours_float16"], settings = fp16_run(base, n, b, ours[0].device, ours[0].compiler)
        about["ours_float16"] = {"config": settings}
    for one in ours:
        problem = one.problem
        reference = one.exact[:n]
        scale = reference.norm() / reference.numel() ** 0.5
        for config, run, out, nbytes in one.runs(b):
            name = f"{one.name} {config.settings}"
            out.fill_(float("nan"))
            run()
            torch.cuda.synchronize()
            error = float(((out.double() - reference).abs().max() / scale).item())
            relative = float(((out.double() - reference).norm() / reference.norm()).item())
            if not relative < 1e-3:
                click.echo(f"  WRONG {name}: {relative:.3g}")
                continue
            runs[name] = run
            about[name] = {
                "config": config.to_dict(),
                "value_type": str(problem.value_type),
                "group": str(problem.scale_group),
                "symmetry": str(problem.symmetry),
                "bytes_per_weight": nbytes / (problem.m * k),
                "largest_error": error,
                "relative_error": relative,
            }
    times = times_in_turn(list(runs.values()), l2=L2.COLD)
    found = dict(zip(runs, times, strict=True))
    sparsity = 0.0 if base is None else 1 - base.nnz / (m * k)
    for name, us in found.items():
        rows.append(
            {"m": m, "k": k, "n": n, "sparsity": round(sparsity, 3), "what": name, "us": us, **about[name]}
        )
    dense_part = ", ".join(
        f"{name} {us:.1f}" for name, us in found.items() if name in dense or name == "ours_float16"
    )
    click.echo(f"  {m}x{k}x{n}: {dense_part}")
    for one in ours:
        mine = {name: us for name, us in found.items() if name.startswith(f"{one.name} ")}
        for name, us in sorted(mine.items(), key=lambda pair: pair[1])[: 20 if n == 8 else 2]:
            click.echo(f"    {us:6.1f} {name}  {about[name]['bytes_per_weight']:.3f} B")


def measure_many(one: Ours, weight: Any, rows: Rows) -> None:
    """Times products of many tokens with an expanded weight, and with one that is kept."""
    m, k = weight.shape
    for n in MANY_TOKENS:
        x = torch.randn((n, k), dtype=torch.float16, device="cuda")
        run = one.expanded(x)
        reference, found = exact(one, x[:16]), run()[:16].double()
        relative = float(((found - reference).norm() / reference.norm()).item())
        if not relative < 1e-3:
            click.echo(f"  WRONG expanded {one.name}: {relative:.3g}")
            continue
        ways = {"expanded": run, "kept": partial(torch.matmul, x, weight.t())}
        times = dict(zip(ways, times_in_turn(list(ways.values()), l2=L2.COLD), strict=True))
        click.echo(f"  {m}x{k}x{n} {one.name}: expanded {times['expanded']:.1f}, kept {times['kept']:.1f}")
        rows += [
            {"m": m, "k": k, "n": n, "what": f"{way} {one.name}", "us": us, "relative_error": relative}
            for way, us in times.items()
        ]


if __name__ == "__main__":
    main()
