"""Problems of every operator with every value of every field, and what a search of each would record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
from tuning_samples import DIGEST, H100, START

from sparsegen.errors import ConfigError
from sparsegen.kernels import families_of
from sparsegen.kernels.config import Config
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import (
    Block,
    Density,
    DType,
    FilterVolume,
    Layout,
    PageCount,
    PageSize,
    Parameter,
    Problem,
    fields_of,
)
from sparsegen.operators.attention.scores import Room
from sparsegen.operators.attention.span import Span
from sparsegen.operators.base.fields import Field
from sparsegen.operators.convolution.window import Dilation, FilterSize, Groups, MaskBlock, Padding, Stride
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant, Workload

SIZES = (8, 1, 7, 36, 131)  # the first is what a field has where another one varies
LARGE = (4096, 50_000)  # of operators without a pattern, of which nothing is drawn
BATCHES = (1, 3)
PARAMETERS: dict[type[Parameter], tuple[str, ...]] = {
    Block: tuple(f"{p}x{q}" for p in (64, 16, 32, 128, 256) for q in (64, 16, 32, 128, 256)),
    Density: ("0.5", "0.001", "0.02", "0.123456", "1"),
    FilterSize: tuple(f"{p}x{q}" for p in (3, 1, 2, 4, 5, 6, 7) for q in (3, 1, 2, 4, 5, 6, 7)),
    Stride: ("1", "2", "3", "1x2", "2x1", "8"),
    Padding: ("1", "0", "2", "3x0", "48"),
    Dilation: ("1", "2", "3x1", "16"),
    Groups: ("1", "2", "4", "8"),
    MaskBlock: ("16", "1", "8", "8x24", "5x7", "32", "64", "256"),
    Span: ("full", "causal", "full@start", "causal:12", "causal@start:12+3"),
    PageSize: ("64", "16", "32", "128", "256"),
    PageCount: ("0", "1", "50000"),
    Room: ("0", "1", "12", "5000"),
    FilterVolume: ("3x3x3", "1x1x1", "5x1x3", "1x3x5"),
}
# What fields of an operator have first, where it computes little of the usual.
USUAL: dict[tuple[str, str], tuple[Any, ...]] = {
    ("sparse_attention", "dtype"): (DType.FLOAT16, DType.BFLOAT16),
    ("sparse_attention", "k"): (64, 16, 32, 128),
    ("quantized_spmm", "dtype"): (DType.FLOAT16, DType.BFLOAT16),
    ("quantized_spmm", "n"): (8, 1, 33, 64),
    ("quantized_spmm", "layout"): (Layout.COLUMN,),
    ("quantized_spmm", "batch"): (1,),
    ("sparse_attention", "m"): (64, 36, 131, 257),
    ("sparse_attention", "n"): (64, 36, 131, 257),
    **{
        (operator, name): values
        for operator in ("block_attention", "block_attention_backward")
        for name, values in {
            "dtype": (DType.FLOAT16, DType.BFLOAT16),
            "head_dim": (64, 128, 192),
            "value_dim": ("0", "128"),
            "block": ("128x128", "64x64", "64x128", "128x64"),
            "kv_heads": (2, 1, 7),
            "group": (1, 2, 3),
        }.items()
    },
    **{
        ("paged_attention", name): values
        for name, values in {
            "queries": (1, 4, 16),
            "keys": (4096, 131, 50_000),
            "dtype": (DType.FLOAT16, DType.BFLOAT16),
            "head_dim": (128, 64, 256),
            "kv_heads": (2, 1, 7),
            "group": (4, 1, 8),
        }.items()
    },
}
PAIRS = 60  # of all fields at random, for each operator


def values_of(of: type[Problem], field: Field) -> list[Any]:
    """Every value that the tests give a field; of sizes and parameters without an end a few, ragged ones among them."""
    if (of.operator, field.name) in USUAL:
        return list(USUAL[of.operator, field.name])
    if field.is_size:
        sizes = BATCHES if field.of_batch else SIZES
        return [*sizes, *(LARGE if not of.has_pattern and not field.of_batch else ())]
    if field.is_trait:
        return [field.default, *(member for member in field.kind if member is not field.default)]  # type: ignore[union-attr]
    return list(PARAMETERS[field.kind])  # type: ignore[index]


def problems_of(of: type[Problem]) -> Iterator[Problem]:
    """The usual problem with one field changed at a time, and problems with all fields drawn; each once."""
    listed = {name: values_of(of, field) for name, field in fields_of(of).items()}
    usual = {name: values[0] for name, values in listed.items()}
    rng = np.random.default_rng(7)
    drawn = [
        {name: values[rng.integers(len(values))] for name, values in listed.items()} for _ in range(PAIRS)
    ]
    changed = [usual | {name: value} for name, values in listed.items() for value in values]
    made: dict[Problem, None] = {}
    for options in (*changed, *drawn):
        shape = tuple(options.pop(name) for name in of.matrix_sizes)
        try:
            made[of.of(shape, **options)] = None
        except ConfigError:  # of groups that do not divide the channels, or filters that do not fit
            continue
    return iter(made)


@cache
def _pattern(shape: tuple[int, int]) -> CsrMatrix:
    return random_uniform(*shape, 0.3, seed=sum(shape))


def workload_of(problem: Problem) -> Workload:
    """Returns the workload under which a search of the problem is recorded."""
    is_drawn = problem.has_pattern
    return Workload.of(problem, _pattern(problem.matrix_shape) if is_drawn else problem.without_pattern)


def searched(workload: Workload, at: int) -> list[Measurement]:
    """The heuristic config of each family that computes this, as a search that tries no more records them."""
    found: dict[Config, float] = {}
    for family in families_of(workload.problem.operator):
        config = (
            family.heuristic(workload.problem, workload.features, H100)
            if family.computes(workload.problem)
            else None
        )
        if config is not None and family.suits(workload.problem, workload.features, config, H100):
            found[config] = 5.0 + 0.5 * len(found)
    sample = Sample(5.0, 5.0, 5.5, 30)
    return [
        Measurement(
            workload,
            H100,
            Variant(config, DIGEST),
            Outcome.OK,
            replace(sample, median_us=us, low_us=us, high_us=us),
            final=True,
            measured_at=START + timedelta(seconds=at),
        )
        for config, us in found.items()
    ]
