"""Families of masked products whose tiles TMA loads: scope, maps, heuristics."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from product_launches import compare

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.kernels.layouts.copied_ring import MOST_ROWS
from sparsegen.kernels.masked.copied_tiles_time import busiest_half
from sparsegen.kernels.rates import Rates
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    FactorType,
    Layout,
    MaskedProblem,
    Rest,
    SddProblem,
)

H100 = replace(device(), multiprocessors=132)
H200_RATES = Rates(4.08e6, 50.2e6, 371e6, 742e6, 742e6, launch_us=3.6, clock_mhz=1980)
DSD = DsdProblem(4096, 4096, 4096, DType.FLOAT16)
TRANSPOSED = DsdTransposedProblem(4096, 4096, 4096, DType.FLOAT16)
SDD = SddProblem(4096, 4096, 4096, DType.FLOAT16)
ALONG = (
    "warpgroups multiply 16-bit elements, or float32 ones (as TF32) if both matrices are contiguous along the "
    "contraction"
)
ALONG_8BIT = (
    "8-bit factors are contiguous along the contraction: W is n x k for dsd and k x n for sdd; instead of "
    "dsd_transposed, copy both matrices transposed, and call dsd with the transposed mask"
)
NARROW = replace(DSD, w_layout=Layout.COLUMN, factor_type=FactorType.E4M3)


def heuristic(problem: MaskedProblem, on: Device = H100) -> dict[str, object]:
    found = family(f"tma_{problem.operator}")
    return found.heuristic(problem, problem.features(problem.without_pattern), on).to_dict()


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (replace(DSD, dtype=DType.FLOAT32), ALONG),
        (replace(TRANSPOSED, dtype=DType.FLOAT32), ALONG),
        (replace(SDD, dtype=DType.FLOAT32, w_layout=Layout.COLUMN), ALONG),
        (replace(DSD, block=Block(32, 64)), "blocks (32x64) are whole pieces of 64 x 64"),
        (replace(DSD, n=100), "rows of the arrays (k = 4096, n = 100 elements) are whole chunks of 16 bytes"),
        (
            replace(SDD, k=4100),
            "rows of the arrays (k = 4100, n = 4096 elements) are whole chunks of 16 bytes",
        ),
        (
            replace(TRANSPOSED, batch=1 << 16),
            "a launch computes at most 65535 batch elements (batch = 65536)",
        ),
        (
            replace(DSD, m=MOST_ROWS + 1),
            f"the result ({MOST_ROWS + 1} x 4096) has at most {MOST_ROWS} rows and columns",
        ),
        (replace(DSD, factor_type=FactorType.E4M3), ALONG_8BIT),
        (replace(TRANSPOSED, factor_type=FactorType.E5M2), ALONG_8BIT),
        (replace(SDD, w_layout=Layout.COLUMN, factor_type=FactorType.E5M2_E4M3), ALONG_8BIT),
        (
            replace(NARROW, block=Block(128, 64)),
            "of 8-bit factors, blocks (128x64) have whole stages of 128 elements along the contraction",
        ),
        (
            replace(NARROW, k=4104),
            "rows of the arrays (k = 4104, n = 4096 elements) are whole chunks of 16 bytes",
        ),
    ],
    ids=str,
)
def test_scope_is_told_in_sentences(problem: MaskedProblem, sentence: str) -> None:
    found = family(f"tma_{problem.operator}")
    assert [c.sentence for c in found.scope(problem) if not c.holds] == [sentence]


def test_8bit_results_have_rows_of_their_own_type() -> None:
    assert family("tma_dsd").computes(replace(NARROW, n=4104))  # no row of an 8-bit matrix is as long as n
    assert not family("tma_sdd").computes(replace(SDD, n=4104, factor_type=FactorType.E4M3))
    assert not family("mma_dsd").computes(NARROW)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("changed", "tunables"),
    [
        ({}, {"tile_n": 256, "cluster": 2}),
        ({"dtype": DType.FLOAT32, "factor_type": FactorType.E5M2_E4M3}, {"tile_n": 256, "cluster": 1}),
        ({"factor_type": FactorType.E4M3_E5M2}, {"tile_n": 128, "cluster": 2, "order": "placed"}),
        ({"block": Block(128, 256), "dtype": DType.BFLOAT16}, {"tile_n": 64}),
    ],
    ids=("wide", "wide-float32", "placed", "narrow"),
)
@pytest.mark.parametrize("operator", ["dsd", "sdd"])
def test_8bit_factors(
    emulator_toolchain: EmulatorToolchain, operator: str, changed: dict[str, Any], tunables: dict[str, Any]
) -> None:
    start = NARROW if operator == "dsd" else replace(SDD, factor_type=FactorType.E4M3)
    problem = replace(start, m=200, k=528, n=272, block=Block(64, 128), density=Density(0.5))
    problem = replace(problem, **changed)
    compare(emulator_toolchain, problem, family(f"tma_{operator}").config(**tunables), H100)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("changed", "tunables"),
    [
        ({}, {"tile_n": 256, "cluster": 2}),
        ({"density": Density(0.7)}, {"tile_n": 192, "cluster": 2}),
        ({"w_layout": Layout.COLUMN, "rest": Rest.KEPT}, {"tile_n": 256, "cluster": 1, "order": "placed"}),
        ({"block": Block(64, 128), "dtype": DType.BFLOAT16}, {"tile_n": 256, "cluster": 2, "raster": 4}),
        ({"dtype": DType.FLOAT32, "density": Density(0.8)}, {"tile_n": 128, "cluster": 1}),
        ({"batch": 2, "w_layout": Layout.COLUMN, "density": Density(0.3)}, {"tile_n": 128, "cluster": 2}),
        ({"n": 72}, {"tile_n": 64, "cluster": 1}),
    ],
    ids=("pair", "three-units", "kept-by-columns", "wide-blocks", "float32", "batch", "short"),
)
def test_warpgroups_with_columns_of_their_own(
    emulator_toolchain: EmulatorToolchain, changed: dict[str, Any], tunables: dict[str, Any]
) -> None:
    run_sdd(emulator_toolchain, changed, {"own_columns": True, **tunables})


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("changed", "tunables"),
    [
        ({}, {"tile_n": 256, "cluster": 2}),
        ({"block": Block(128, 128), "k": 800}, {"tile_n": 192, "cluster": 1}),
        ({"w_layout": Layout.COLUMN, "density": Density(0.8)}, {"tile_n": 192, "cluster": 2}),
        ({"block": Block(128, 128), "rest": Rest.KEPT}, {"tile_n": 64, "cluster": 1, "order": "placed"}),
        ({"block": Block(64, 128), "dtype": DType.BFLOAT16}, {"tile_n": 256, "cluster": 1, "raster": 4}),
        ({"k": 4800, "m": 70, "n": 64, "density": Density(0.9)}, {"tile_n": 128, "order": "placed"}),
        ({"batch": 2, "w_layout": Layout.COLUMN, "density": Density(0.3)}, {"tile_n": 128, "cluster": 2}),
        ({"n": 208, "factor_type": FactorType.E4M3, "density": Density(1.0)}, {"tile_n": 128, "cluster": 1}),
    ],
    ids=("pair", "three-units", "three-in-pairs", "narrow", "wide-blocks", "words", "batch", "8-bit"),
)
def test_warpgroups_with_the_same_columns(
    emulator_toolchain: EmulatorToolchain, changed: dict[str, Any], tunables: dict[str, Any]
) -> None:
    run_sdd(emulator_toolchain, changed, tunables)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("problem", "tunables"),
    [
        (DsdProblem(330, 520, 400, DType.FLOAT16, Block(64, 64)), {"cluster": 2}),
        (
            DsdProblem(200, 264, 328, DType.FLOAT32, Block(128, 64), w_layout=Layout.COLUMN),
            {"cluster": 1, "order": "placed", "raster": 1, "tail": 1},
        ),
        (
            DsdTransposedProblem(520, 328, 400, DType.BFLOAT16, Block(64, 128), y_layout=Layout.COLUMN),
            {"cluster": 1, "order": "placed", "raster": 1, "tail": 1, "shared": True},
        ),
        (DsdTransposedProblem(264, 200, 200, DType.FLOAT16), {"cluster": 1}),
    ],
    ids=("pair", "float32", "shared", "ragged"),
)
def test_tiles_of_192_columns(
    emulator_toolchain: EmulatorToolchain, problem: MaskedProblem, tunables: dict[str, Any]
) -> None:
    config = family(f"tma_{problem.operator}").config(tile_n=192, **tunables)
    compare(emulator_toolchain, problem, config, H100)


def test_tiles_of_8bit_factors_are_whole_parts() -> None:
    found = family("tma_dsd")
    assert found.broken_constraints(NARROW, found.config(tile_n=192), H100) == [
        "sums of 8-bit products are added up for 128 columns at a time (tile_n = 192)"
    ]


def run_sdd(toolchain: EmulatorToolchain, changed: dict[str, Any], tunables: dict[str, Any]) -> None:
    """Compare an ``sdd`` with its reference under the sanitizers."""
    start = SddProblem(330, 720, 200, DType.FLOAT16, Block(64, 64), Density(0.5))
    compare(toolchain, replace(start, **changed), family("tma_sdd").config(**tunables), H100)


def test_own_columns_are_of_blocks_of_64_rows() -> None:
    found = family("tma_sdd")
    own = found.config(own_columns=True)
    assert found.broken_constraints(SDD, own, H100) == [
        "warpgroups have live columns of their own if blocks (128x128) have 64 rows"
    ]
    narrow = replace(SDD, block=Block(64, 64), factor_type=FactorType.E4M3)
    assert found.broken_constraints(narrow, own, H100) == [
        "with 8-bit factors all columns of a tile are multiplied"
    ]


def test_own_columns_are_predicted_to_pay() -> None:
    found, problem = family("tma_sdd"), replace(SDD, block=Block(64, 64), density=Density(0.8))
    features = problem.features(problem.without_pattern)

    def us(own: bool, cluster: int) -> float:
        return found.analytic_us(problem, features, found.config(own_columns=own, cluster=cluster), H100)

    assert us(True, 2) < us(True, 1) < us(False, 1)


def test_the_busiest_half_of_a_clusters_tiles_is_expected() -> None:
    """The mean over all ways in which live blocks may lie in two halves of two tiles."""
    ways = [(1, 1), (1, 0), (0, 1)]  # of a block that is live in one of the halves at least
    for blocks, tiles in ((1, 1), (2, 1), (3, 1), (2, 2)):
        most = [
            max(sum(half) for tile in found for half in zip(*tile, strict=True))
            for found in product(product(ways, repeat=blocks), repeat=tiles)
        ]
        assert busiest_half(2 / 3, blocks, tiles) == pytest.approx(sum(most) / len(most) / blocks)


def test_16384_rows_of_blocks_of_64_take_no_clusters() -> None:
    """95 us on an H200, and 106 in clusters of 192 columns, whose halves wait for the busiest of four."""
    of = SddProblem(
        16384, 768, 3072, DType.FLOAT16, w_layout=Layout.COLUMN, block=Block(64, 64), density=Density(0.5)
    )
    device = replace(H100, l2_bytes=60 << 20, rates=H200_RATES)
    found = family("tma_sdd").heuristic(of, of.features(of.without_pattern), device)
    assert (found.tile_n, found.cluster, found.own_columns) == (256, 1, True)


def test_sampled_products_start_with_what_was_fastest() -> None:
    """On an H200: of blocks of 64 rows, half of them dropped, warpgroups have own columns."""
    assert not heuristic(SDD)["own_columns"]
    narrow = replace(SDD, block=Block(64, 64))
    assert heuristic(narrow)["own_columns"] and heuristic(narrow)["tile_n"] == 256
    assert not heuristic(replace(narrow, density=Density(0.8)))["own_columns"]
    assert not heuristic(replace(narrow, factor_type=FactorType.E4M3))["own_columns"]


def test_few_tiles_are_as_wide_as_was_fastest() -> None:
    def shape(problem: MaskedProblem, size: int, density: float) -> tuple[object, object]:
        found = heuristic(replace(problem, m=size, k=size, n=size, density=Density(density)))
        assert found["order"] == "placed"
        return found["tile_n"], found["cluster"]

    for problem in (DSD, TRANSPOSED):
        assert shape(problem, 2048, 0.5) == (128, 2)
        assert shape(problem, 2048, 1.0)[0] == 256
    for problem in (DSD, TRANSPOSED, SDD):
        assert shape(problem, 1024, 1.0)[0] == shape(problem, 1024, 0.5)[0] == 64
    assert shape(SDD, 2048, 0.5)[0] == 128
    assert shape(SDD, 2048, 0.25)[0] == 128, "many masks have more live blocks than there is room for"
    assert shape(SDD, 2048, 0.1)[0] == 64


def test_rows_need_no_alignment() -> None:
    for problem in (DSD, TRANSPOSED, SDD):
        assert family(f"tma_{problem.operator}").computes(replace(problem, m=4097))


def test_other_devices_have_no_warpgroups() -> None:
    found = family("tma_dsd")
    broken = found.broken_constraints(DSD, found.config(), replace(H100, compute_capability=(8, 0)))
    assert broken == ["warpgroups need compute capability 9.x"]


def test_a_tail_is_a_part_of_a_group() -> None:
    found = family("tma_dsd_transposed")
    broken = found.broken_constraints(TRANSPOSED, found.config(raster=8, tail=16), H100)
    assert broken == ["groups of raster (8) are walked in parts of tail (16)"]


def test_maps_are_those_of_the_stored_arrays() -> None:
    sizes = {"m": 1000, "k": 520, "n": 712}
    shapes = {
        replace(DSD, **sizes): {"x": (520, 1000), "w": (712, 520), "y": (712, 1000)},
        replace(DSD, **sizes, w_layout=Layout.COLUMN): {"x": (520, 1000), "w": (520, 712), "y": (712, 1000)},
        replace(TRANSPOSED, **sizes): {"x": (520, 1000), "d": (712, 1000), "y": (712, 520)},
        replace(TRANSPOSED, **sizes, y_layout=Layout.COLUMN): {
            "x": (520, 1000),
            "d": (712, 1000),
            "y": (520, 712),
        },
        replace(SDD, **sizes): {"d": (712, 1000), "w": (712, 520), "y": (520, 1000)},
        replace(SDD, **sizes, w_layout=Layout.COLUMN): {"d": (712, 1000), "w": (520, 712), "y": (520, 1000)},
    }
    for problem, wanted in shapes.items():
        found = family(f"tma_{problem.operator}")
        maps = {name: found.tensor_map(problem, found.config(), name) for name in found.mapped_names}
        assert {name: tuple(m.sizes) for name, m in maps.items()} == wanted
        stored = {spec.name: spec.shape for spec in (*problem.operands(0), problem.result(0))}
        assert all(stored[name] == (rows, columns) for name, (columns, rows) in wanted.items())


def test_items_are_a_dimension_of_the_maps() -> None:
    problem = replace(DSD, m=1000, k=520, n=712, dtype=DType.FLOAT32, w_layout=Layout.COLUMN, batch=3)
    found = family("tma_dsd")
    maps = {name: found.tensor_map(problem, found.config(), name) for name in found.mapped_names}
    assert {name: (m.sizes, m.strides, m.box) for name, m in maps.items()} == {
        "x": ((520, 1000, 3), (2080, 2_080_000), (32, 64, 1)),
        "w": ((520, 712, 3), (2080, 1_480_960), (32, 256, 1)),
        "y": ((712, 1000, 3), (2848, 2_848_000), (32, 64, 1)),
    }


@pytest.mark.sanitizer
@pytest.mark.parametrize("cluster", [1, 2])
def test_every_lane_may_arrive(emulator_toolchain: EmulatorToolchain, cluster: int) -> None:
    """The variant for racecheck computes the same, through many stages."""
    problem = DsdProblem(200, 1032, 136, DType.FLOAT16, Block(64, 64))
    config = family("tma_dsd").config(tile_n=64, cluster=cluster)
    compare(emulator_toolchain, problem, config, H100, before="#define SPARSEGEN_EVERY_LANE_ARRIVES\n")


def test_heuristics_fall_with_the_size() -> None:
    large = heuristic(DSD)
    assert large == {
        "tile_n": 256, "cluster": 2, "raster": 16, "order": "counted", "tail": 2, "shared": False
    }  # fmt: skip
    assert heuristic(replace(DSD, density=Density.parse(1.0)))["tail"] == 16
    assert heuristic(replace(DSD, m=2048, k=2048, n=2048, density=Density.parse(1.0)))["tile_n"] == 256
    assert heuristic(replace(DSD, m=1024, k=1024, n=1024))["tile_n"] == 64
    half = heuristic(replace(DSD, m=2048, k=2048, n=2048))  # a long row and a short one for each cluster
    assert half == {
        "tile_n": 128, "cluster": 2, "raster": 1, "order": "placed", "tail": 1, "shared": False
    }  # fmt: skip
    # 36 tiles and a long contraction (H200: 37.8 µs, 50.7 with whole tiles); 64 tiles are faster whole (29.2 for 31.1).
    assert heuristic(replace(TRANSPOSED, m=16384, k=768, n=768))["shared"]
    assert not heuristic(replace(TRANSPOSED, m=8192, k=1024, n=1024))["shared"]
    # Two waves of 252 tiles on 264 places (H200: 77.9 µs, 82.6 with 216 of 192 columns).
    whole = replace(DSD, m=2304, k=9216, n=2304, w_layout=Layout.COLUMN)
    assert heuristic(whole)["tile_n"] == 168
    assert heuristic(replace(whole, w_layout=Layout.ROW))["tile_n"] == 192, "its columns are loaded by 64"
    assert heuristic(SDD)["cluster"] == 1
    # Where 16 tiles of A's rows do not stay in the L2, fewer are walked through at a time, or pairs share them.
    long = heuristic(replace(DSD, k=8192))
    assert (long["raster"], long["tail"]) == (8, 4)
    assert heuristic(replace(SDD, n=8192))["cluster"] == 2
    assert heuristic(replace(SDD, n=4088))["cluster"] == 2, "its rows lie in two lines of the L2 each"
    assert heuristic(replace(SDD, m=2048, k=2048, n=2048))["tile_n"] == 128


@pytest.mark.parametrize(
    ("problem", "tunables", "measured_us"),
    [
        # Rows of 5,008 bytes, and waves: 168 tiles on 132 multiprocessors.
        (DsdProblem(3000, 2504, 1720, DType.FLOAT16, w_layout=Layout.COLUMN), (256, 1, "placed"), 39.2),
        (DsdTransposedProblem(3000, 2504, 1720, DType.FLOAT16, Block(64, 64)), (256, 1, "placed"), 57.2),
        (SddProblem(3000, 2504, 1720, DType.FLOAT16, w_layout=Layout.COLUMN), (256, 1, "placed"), 39.8),
        (DsdProblem(2304, 9216, 2304, DType.FLOAT16, w_layout=Layout.COLUMN), (256, 1, "placed"), 97.3),
        (DsdProblem(6144, 3072, 5120, DType.FLOAT16, Block(64, 64)), (256, 2, "counted"), 170.0),
        (DsdTransposedProblem(16384, 768, 3072, DType.FLOAT16, Block(64, 64)), (128, 1, "placed"), 133.8),
        (SddProblem(1536, 1536, 6144, DType.FLOAT16, w_layout=Layout.COLUMN), (128, 1, "placed"), 41.2),
    ],
    ids=str,
)
def test_expected_times_are_near_measured_ones(
    problem: MaskedProblem, tunables: tuple[int, int, str], measured_us: float
) -> None:
    """One H200, half of the blocks live (benchmarks/results, off_the_list)."""
    found, rates = family(f"tma_{problem.operator}"), H200_RATES
    raster = 1 if tunables[2] == "placed" and problem.operator != "sdd" else 16
    tail = {} if problem.operator == "sdd" else {"tail": min(raster, 2)}
    config = found.config(tile_n=tunables[0], cluster=tunables[1], order=tunables[2], raster=raster, **tail)
    features = problem.features(problem.without_pattern)
    expected = found.analytic_us(problem, features, config, replace(H100, rates=rates))
    assert expected == pytest.approx(measured_us, rel=0.15)


def test_a_sparser_mask_is_predicted_to_take_less() -> None:
    for problem in (DSD, TRANSPOSED, SDD):
        found = family(f"tma_{problem.operator}")

        def us(density: float, of: MaskedProblem = problem) -> float:
            some = replace(of, density=Density.parse(density))
            return family(f"tma_{of.operator}").predicted_us(some, some.features(some.without_pattern), H100)

        assert us(0.1) < us(0.5) < us(1.0), found.name


def predicted_us(name: str, problem: MaskedProblem) -> float:
    return family(name).predicted_us(problem, problem.features(problem.without_pattern), H100)


@pytest.mark.parametrize("density", [1.0, 0.8, 0.5])
@pytest.mark.parametrize("size", [1024, 2048, 4096])
@pytest.mark.parametrize("kind", [DsdProblem, DsdTransposedProblem, SddProblem])
def test_warps_are_expected_to_be_slower_than_warpgroups(
    kind: type[MaskedProblem], size: int, density: float
) -> None:
    """Dispatch took warps at 1024³ by their expected time, for twice that of warpgroups."""
    problem = kind(size, size, size, DType.FLOAT16, density=Density(density))
    ours = predicted_us(f"tma_{problem.operator}", problem)
    assert ours < predicted_us(f"mma_{problem.operator}", problem)


@pytest.mark.sanitizer
@pytest.mark.parametrize("tile_n", [168, 176])
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_tiles_of_no_whole_pieces(emulator_toolchain: EmulatorToolchain, dtype: DType, tile_n: int) -> None:
    """The last piece of a tile's columns is stored with some of the one before it."""
    problem = DsdProblem(200, 328, 712, dtype, Block(64, 64), w_layout=Layout.COLUMN)
    compare(emulator_toolchain, problem, family("tma_dsd").config(tile_n=tile_n), H100)


@pytest.mark.sanitizer
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("side", [64, 128])
@pytest.mark.parametrize("multiprocessors", [6, 22])
def test_halved_tiles(
    emulator_toolchain: EmulatorToolchain,
    monkeypatch: pytest.MonkeyPatch,
    multiprocessors: int,
    side: int,
    cluster: int,
) -> None:
    """The last wave of 45, 23, 26 or 14 wide tiles is halved on 22 multiprocessors, and not on 6."""
    few = replace(device(), multiprocessors=multiprocessors)
    monkeypatch.setattr("sparsegen.testing.launches.device", lambda: few)
    problem = SddProblem(1000, 1816, 136, DType.FLOAT16, Block(side, side), w_layout=Layout.COLUMN)
    order = "counted" if side == 64 else "placed"
    config = family("tma_sdd").config(cluster=cluster, halves=True, raster=4, order=order)
    compare(emulator_toolchain, problem, config, H100)


def test_halves_are_expected_to_pay_where_a_wave_is_uneven() -> None:
    uneven = replace(
        SDD, m=6144, k=3072, n=5120, w_layout=Layout.COLUMN
    )  # H200: 156.9 µs, 172.4 with whole tiles
    assert heuristic(uneven)["halves"]
    assert not heuristic(replace(uneven, block=Block(64, 64)))["halves"], "it has own columns"
    found = family("tma_sdd")
    (broken,) = found.broken_constraints(uneven, found.config(halves=True, tile_n=192), H100)
    assert broken == "tiles of 256 columns can be halved, of one batch element and without own_columns"
