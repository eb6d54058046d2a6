"""Terms of the cost model for a variant, against counts by hand."""

from __future__ import annotations

import pytest
from tuning_samples import H100, workload

from sparsegen.backends.cuda.instructions import Instructions
from sparsegen.kernels import family
from sparsegen.kernels.launch import Launch
from sparsegen.operators import DType, SpmmProblem
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning.prediction.terms import Described, Resources, resident_blocks

GRID = (1000, 1, 1)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "name", "blocks"),
    [
        (128, 32, 0, "h100", 16),  # 64 warps
        (128, 128, 0, "h100", 4),  # 65536 registers
        (128, 129, 0, "h100", 3),  # registers come by eights
        (256, 32, 100 * 1024, "h100", 2),  # 228 KiB of shared memory, of which a block takes one more
        (32, 16, 0, "h100", 32),  # blocks
        (32, 16, 0, "l40s", 24),
        (1024, 32, 0, "l40s", 1),  # 48 warps
        (1024, 255, 0, "a100", 1),  # never less than one: it would not run otherwise
    ],
)
def test_resident_blocks(threads: int, registers: int, shared: int, name: str, blocks: int) -> None:
    launch = Launch(GRID, (threads, 1, 1), shared)
    assert resident_blocks(launch, registers, 0, find_target(name).device) == blocks


def test_terms_of_waves_and_idle_multiprocessors() -> None:
    each = family("mma_spmm")

    def of(n: int, registers: int = 64) -> Described:
        problem = SpmmProblem(2048, 1024, n, DType.FLOAT16)
        features = workload(n, m=2048, k=1024, nnz=200_000).features
        where = workload(n, m=2048, k=1024, nnz=200_000)
        config = each.config(tile_m=64, tile_n=64, tile_k=64, warps_m=2, warps_n=2)
        assert not each.broken_constraints(problem, config, H100), features
        code = Instructions(800, 100, 12800)
        return Described.of(
            type(where)(problem, where.fingerprint, where.features),
            config,
            H100,
            Resources(registers, 8, 0, code),
            64,
        )

    few, many = of(64), of(64 * 64)
    assert few.general["idle multiprocessors"] > 2 and few.general["waves"] == 0
    assert many.general["idle multiprocessors"] == 0 and many.general["waves"] > 1
    assert few.general["registers"] == 6 and few.general["slots"] == -7
    assert of(64 * 64, 200).general["occupancy"] < many.general["occupancy"]
    assert few.own["tile_m squared"] == pytest.approx(few.own["tile_m"] ** 2 / 4)
    assert few.own["dtype=float16"] == few.own["storage=nonzeros"] == 1
    assert not any(name.startswith("epilogue") for name in few.own), "near traits touch the result once"
    assert 0 < few.share < many.share < 1


def test_what_is_not_compiled_has_no_terms_of_its_code() -> None:
    of = workload()
    config = family("csr_spmm").heuristic(of.problem, of.features, H100)
    before = Described.of(of, config, H100, None, 64).general
    after = Described.of(of, config, H100, Resources(64), 64).general
    assert set(after) - set(before) == {"registers", "spills"}
    assert {name: after[name] for name in before} == before, "the usual registers stood in"
