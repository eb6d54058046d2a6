"""The suite ``drawn``: what its documentation says, the same for equal seeds and other problems for others."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsegen.bench.drawn import ROWS, distributions, drawn_cases
from sparsegen.bench.drawn.attention import MASKS
from sparsegen.bench.drawn.distribution import MOST_BYTES, MOST_FLOP
from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.layer_generators import Connections, random_layer
from sparsegen.bench.patterns.patterns import (
    Blobs,
    Blocks,
    Drawn,
    Pattern,
    PowerLaw,
    RandomLayers,
    pattern_from_dict,
)
from sparsegen.errors import MatrixError, SuiteError
from sparsegen.kernels import families_of
from sparsegen.matrix import masks
from sparsegen.networks.model.radixnet import CLIP
from sparsegen.operators import OPERATORS, DType, FactorType, Layout, Rest, SparseNetworkProblem

SEEDS = (0, 1)
MANY = 300  # rows, of which every kind that is documented is among
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
each_operator = pytest.mark.parametrize("operator", list(OPERATORS))


@cache
def cases(operator: str, seed: int = 0, rows: int = MANY) -> list[Case]:
    return drawn_cases(operator, seed, rows)


def values(operator: str, name: str) -> list[Any]:
    return [getattr(case.problem, name) for case in cases(operator)]


def is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


def test_every_operator_has_a_distribution() -> None:
    assert set(distributions()) == set(OPERATORS)
    with pytest.raises(SuiteError, match="nothing is drawn of gemm; there are spmm, quantized_spmm, sddmm"):
        drawn_cases("gemm", 0)


@each_operator
def test_equal_seeds_give_equal_rows_and_others_give_others(operator: str) -> None:
    rows = cases(operator)
    assert drawn_cases(operator, 0, 40) == rows[:40], "more rows begin with the same"
    drawn, others = ({(c.problem, c.pattern) for c in cases(operator, seed)} for seed in (0, 1))
    assert len(drawn) == len({case.name for case in rows}) == MANY and not drawn & others
    assert {case.suite for case in rows} == {f"drawn-{operator}-0"}


@each_operator
def test_rows_survive_result_files(operator: str) -> None:
    for case in cases(operator)[:ROWS]:
        assert Case.from_dict(case.to_dict()) == case


@each_operator
def test_rows_are_computed_and_stay_small(operator: str) -> None:
    of = distributions()[operator]
    for case in cases(operator):
        problem = case.problem
        assert any(family.computes(problem) for family in families_of(operator)), problem
        assert of.dense_flop(problem) <= MOST_FLOP
        nnz = of.nonzeros(problem, case.pattern)  # type: ignore[attr-defined]
        assert sum(s.nbytes for s in (*problem.operands(nnz), problem.result(nnz))) <= MOST_BYTES
        if not problem.has_pattern:
            assert isinstance(case.pattern, Drawn)


@each_operator
def test_the_page_says_what_is_drawn(operator: str) -> None:
    page = PAGE.read_text()
    for words in distributions()[operator].words.values():
        assert words in page, f"docs/benchmarks.md lacks of {operator}: {words}"


@each_operator
def test_every_type_is_drawn(operator: str) -> None:
    wanted = {DType.FLOAT16, DType.BFLOAT16} | (
        set() if "attention" in operator or operator == "quantized_spmm" else {DType.FLOAT32}
    )
    assert set(values(operator, "dtype")) == wanted


def test_sizes_of_products() -> None:
    for operator, sizes in {"spmm": "mk", "sddmm": "mn"}.items():
        drawn = cases(operator)
        kinds = {case.name.split()[2] for case in drawn}
        assert kinds >= {"graph", "scattered", "uneven", "even", "blocks", "shared"}
        assert {c.pattern.block for c in drawn if isinstance(c.pattern, Blocks)} == {8, 16, 32, 64, 128}
        odd = [getattr(c.problem, s) for c in drawn if not isinstance(c.pattern, Blocks) for s in sizes]
        assert sum(map(is_power_of_two, odd)) < len(odd) / 20
        assert any(size % 8 for size in odd) and any(size % 8 == 0 for size in odd)
    assert set(values("spmm", "layout")) == set(Layout)
    n = values("spmm", "n")
    assert 0.15 < sum(size <= 16 for size in n) / MANY < 0.45 and max(n) > 4000
    short = [min(c.problem.matrix_shape) for c in cases("spmm") if not isinstance(c.pattern, PowerLaw)]
    assert 0.05 < sum(size <= 128 for size in short) / len(short) < 0.25


@pytest.mark.parametrize("operator", ["dsd", "dsd_transposed", "sdd"])
def test_products_with_masks(operator: str) -> None:
    tokens = values(operator, "m")
    shares = [
        sum(low <= m <= high for m in tokens) / MANY for low, high in ((1, 64), (65, 1024), (1025, 32768))
    ]
    assert min(shares) > 0.05 and math.isclose(sum(shares), 1.0)
    plain = [c.problem for c in cases(operator) if c.problem.factor_type is FactorType.SAME]  # type: ignore[attr-defined]
    assert not any(is_power_of_two(size) for p in plain for size in p.sizes.values() if size > 64)
    blocks = values(operator, "block")
    assert {b.rows for b in blocks} == {b.columns for b in blocks} == {16, 32, 64, 128}
    assert any(b.rows != b.columns for b in blocks)
    shares = [d.share for d in values(operator, "density")]
    assert min(shares) < 0.05 and max(shares) > 0.9
    assert sum(0.4 <= share <= 0.6 for share in shares) > 0.3 * MANY
    assert any(min(c.problem.k, c.problem.n) <= 192 for c in cases(operator))  # type: ignore[attr-defined]
    narrow = sum(of is not FactorType.SAME for of in values(operator, "factor_type"))
    assert narrow == 0 if operator == "dsd_transposed" else 0.03 * MANY < narrow < 0.2 * MANY
    if operator == "sdd":
        assert set(values(operator, "rest")) == set(Rest)


@pytest.mark.parametrize("operator", ["masked_conv2d", "masked_conv2d_weights"])
def test_convolutions(operator: str) -> None:
    channels = values(operator, "channels")
    assert min(channels) == 3 and max(channels) > 400
    whole = [c.problem for c in cases(operator) if c.problem.groups.count == 1]  # type: ignore[attr-defined]
    assert not any(is_power_of_two(p.channels) or is_power_of_two(p.filters) for p in whole)  # type: ignore[attr-defined]
    sides = {(f.rows, f.columns) for f in values(operator, "filter_size")}
    assert sides == {(3, 3), (1, 1), (5, 5), (7, 7), (2, 2), (3, 1), (1, 7)}
    assert Counter(f.rows for f in values(operator, "stride")).keys() == {1, 2, 3}
    assert {d.rows for d in values(operator, "dilation")} == {1, 2}
    grouped = [c.problem for c in cases(operator) if c.problem.groups.count > 4]  # type: ignore[attr-defined]
    assert {g.count for g in values(operator, "groups")} > {1, 2, 4} and len(grouped) < 0.1 * MANY
    assert all(p.groups.count == p.channels == p.filters for p in grouped)  # type: ignore[attr-defined]
    assert {(b.rows, b.columns) for b in values(operator, "mask_block")} >= {(8, 8), (128, 128), (12, 20)}
    shares = [d.share for d in values(operator, "density")]
    assert min(shares) < 0.05 and 0.05 < sum(share == 1 for share in shares) / MANY < 0.25
    blobs = sum(isinstance(case.pattern, Blobs) for case in cases(operator))
    assert 0.35 < blobs / MANY < 0.65
    for case in cases(operator)[:5]:
        small = replace(case.problem, height=40, width=36)  # type: ignore[arg-type]
        pattern = replace(case.pattern, rows=40, columns=36)
        assert "mask" in pattern.operands(small, 0, np.random.default_rng(0))


def test_attention_has_seven_kinds_of_masks() -> None:
    kinds = Counter(case.name.split()[2] for case in cases("sparse_attention"))
    assert kinds.keys() == MASKS.keys() and len(kinds) == 7 and min(kinds.values()) > MANY / 20
    assert set(values("sparse_attention", "k")) == {32, 64, 80, 96, 128}
    lengths = values("sparse_attention", "m")
    assert min(lengths) < 500 and max(lengths) > 4000 and not any(map(is_power_of_two, lengths))


def test_networks_are_connected_in_four_ways() -> None:
    patterns = [case.pattern for case in cases("sparse_network")]
    assert all(isinstance(p, RandomLayers) for p in patterns)
    assert {p.connections for p in patterns} == set(Connections)  # type: ignore[attr-defined]
    assert {p.per_row for p in patterns} >= {8, 32}  # type: ignore[attr-defined]
    assert max(p.per_row for p in patterns) > 50  # type: ignore[attr-defined]
    neurons = [p.neurons for p in patterns]  # type: ignore[attr-defined]
    assert min(neurons) < 700 and 3000 < max(neurons) <= 4096


def test_points() -> None:
    points = values("submanifold_conv3d", "points")
    assert min(points) < 4000 and max(points) > 100_000
    assert {v.sides for v in values("submanifold_conv3d", "filter_volume")} == {
        (3, 3, 3), (1, 3, 3), (3, 1, 1), (5, 5, 5), (1, 1, 1),
    }  # fmt: skip


@pytest.mark.parametrize("connections", list(Connections))
def test_layers_are_connected_as_they_say(connections: Connections) -> None:
    layer = random_layer(256, 16, connections, (3, 1))
    again, other = random_layer(256, 16, connections, (3, 1)), random_layer(256, 16, connections, (3, 2))
    assert np.array_equal(layer.column_indices, again.column_indices)
    assert not np.array_equal(layer.column_indices, other.column_indices)
    lengths = np.diff(layer.row_offsets)
    assert layer.nnz == 16 * 256
    if connections in (Connections.RANDOM, Connections.BAND):
        assert set(lengths.tolist()) == {16}
    else:
        assert lengths.max() > 16
    if connections is Connections.BAND:
        columns = layer.column_indices.reshape(256, 16)
        gaps = np.diff(np.concatenate((columns, columns[:, :1] + 256), axis=1), axis=1)
        assert (np.sort(gaps, axis=1)[:, :-1] == 1).all(), "one run, round the end"
    if connections is Connections.BLOCKS:
        assert (lengths % 16 == 0).all()


def test_layers_that_cannot_be() -> None:
    with pytest.raises(MatrixError, match="connections are random, band, power_law, blocks, not 'rings'"):
        random_layer(64, 4, "rings", (0, 0))
    with pytest.raises(MatrixError, match="from 1 to 64 neurons, not 65"):
        random_layer(64, 65, "random", (0, 0))


def test_no_input_of_a_random_network_dies() -> None:
    pattern = RandomLayers(30 * 128, 131, 128, 30, 8, "random", 5)
    matrix = pattern.matrix()
    problem = SparseNetworkProblem(*matrix.shape, 48, DType.FLOAT16)
    given = pattern.operands(problem, matrix.nnz, np.random.default_rng(0))
    y = given["y"].astype(np.float32)
    assert set(np.unique(y)) == {0.0, 1.0}
    for layer, bias in zip(pattern.network().layers, pattern.network().biases, strict=True):
        y = np.clip(y @ layer.to_dense().T + bias, 0, CLIP)
        assert y.any(axis=1).all()
    assert 0.05 < y.mean() < CLIP, "sums neither vanish nor all end at the clip"


MASK_PATTERNS: list[dict[str, Any]] = [
    {"kind": "strided", "stride": 7},
    {"kind": "mask_blocks", "block": 16, "neighbours": 1, "extra": 2},
    {"kind": "documents", "mean": 20, "seed": 3},
    {"kind": "global_tokens", "window": 6, "tokens": 3},
]


@pytest.mark.parametrize("fields", MASK_PATTERNS, ids=lambda fields: fields["kind"])
def test_masks_of_attention(fields: dict[str, Any]) -> None:
    pattern: Pattern = pattern_from_dict({**fields, "rows": 100, "columns": 100})
    seen = pattern.matrix().to_dense() != 0
    assert seen.diagonal().all() and pattern_from_dict(pattern.to_dict()) == pattern
    with pytest.raises(MatrixError, match="it is square"):
        pattern_from_dict({**fields, "rows": 100, "columns": 90}).matrix()


def test_documents_see_themselves_alone() -> None:
    both = masks.documents(400, 25, causal=False, seed=3).to_dense() != 0
    assert np.array_equal(both, both.T) and np.array_equal(both @ both, both), "they are classes"
    firsts = both.argmax(axis=1)
    assert 8 < len(set(firsts.tolist())) < 32 and (np.diff(firsts) >= 0).all()
    assert np.array_equal(masks.documents(400, 25, seed=3).to_dense() != 0, np.tril(both))
    assert masks.documents(1, 5).nnz == 1
    with pytest.raises(MatrixError, match="mean = 0"):
        masks.documents(10, 0)


def test_global_tokens_see_all_and_are_seen_by_all() -> None:
    seen = masks.global_tokens(60, 4, 3).to_dense() != 0
    assert np.array_equal(seen, seen.T) and seen[:3].all()
    rest = seen[3:, 3:]
    rows, columns = np.indices(rest.shape)
    assert np.array_equal(rest, np.abs(rows - columns) < 4)
    assert masks.global_tokens(5, 1, 9).nnz == 25 and masks.global_tokens(5, 1, 0).nnz == 5


def test_draws() -> None:
    draw = Draw("spmm", 0, 0)
    sizes = [draw.size(20, 3000) for _ in range(500)]
    assert min(sizes) >= 20 and max(sizes) <= 3000
    assert not any(size >= 8 and is_power_of_two(size) for size in sizes)
    assert 0.3 < sum(size % 8 == 0 for size in sizes) / len(sizes) < 0.7
    assert {draw.one_of("ab", (1, 0)) for _ in range(20)} == {"a"}
    assert {draw.whole(1, 3) for _ in range(100)} == {1, 2, 3}
    assert all(size % 16 == 0 for size in (draw.multiple(16, 512, 4096) for _ in range(50)))
