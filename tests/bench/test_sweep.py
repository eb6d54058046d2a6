"""What `benchmarks.sweep` takes apart before it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from sparsegen.backends.emulator import device
from sparsegen.kernels import family
from sparsegen.operators import SpmmProblem

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import sweep

    return sweep


def test_workloads(sweep: Any) -> None:
    workload = sweep.parsed("4096x1024x8:0.75")
    assert (workload.m, workload.k, workload.n, workload.sparsity) == (4096, 1024, 8, 0.75)
    assert workload.matrix().shape == (4096, 1024)
    for wrong in ("4096x1024:0.75", "4096x1024x8", "4096x1024x8:75", "axbxc:0.5"):
        with pytest.raises(click.BadParameter, match=r"not like 4096x4096x8:0\.5"):
            sweep.parsed(wrong)


def test_every_combination_of_the_settings(sweep: Any) -> None:
    assert list(sweep.grid(("a=1,2", "b=x"))) == [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}]
    assert list(sweep.grid(())) == [{}]
    with pytest.raises(click.BadParameter, match="not like KEY=VALUE"):
        list(sweep.grid(("a",)))


def test_configs_are_the_guess_and_what_is_valid_of_the_grid(sweep: Any) -> None:
    matrix = sweep.parsed("64x96x32:0.8").matrix()
    csr = family("csr_spmm")
    configs, invalid = sweep.configs_of(
        csr, SpmmProblem(64, 96, 32), matrix, device(), ("tile_n=32,64", "threads_per_row=8,32")
    )
    assert invalid + len(configs) >= 4
    assert {(c.tile_n, c.threads_per_row) for c in configs} <= {(t, r) for t in (32, 64) for r in (8, 32)} | {
        (configs[0].tile_n, configs[0].threads_per_row)
    }
