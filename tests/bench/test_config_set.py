"""``--configs``: texts and files of settings, what they make of a family's configs, and a run of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import DEVICE, LIMITS, request

from sparsegen.bench.baseline.baseline import MissingError, UnsupportedError
from sparsegen.bench.baseline.inputs import Inputs, InputsMaker
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import EqualRows, Independent
from sparsegen.bench.results.results import DIGITS, Status
from sparsegen.bench.run.config_set import Base, ConfigSet, config_sets
from sparsegen.bench.run.run import run
from sparsegen.errors import ConfigError
from sparsegen.kernels import family
from sparsegen.operators import DType, Layout, SddmmProblem, SpmmProblem
from sparsegen.settings import Settings
from sparsegen.tuning.tuner import Backend, Budget, tune
from sparsegen.tuning_db.store import Store

CSR = family("csr_spmm")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, emulator_settings: Settings) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return InputsMaker(tmp_path).make(case(), DType.FLOAT32)


def case() -> Case:
    return Case("tiny", "64x96x32", SpmmProblem(64, 96, 32), (DType.FLOAT32,), Independent(64, 96, 0.8), "")


def settings(text: str, inputs: Inputs, *names: str) -> set[tuple[Any, ...]]:
    configs = ConfigSet.parse(text).configs(inputs, DEVICE, None)
    return {tuple(config.to_dict()[name] for name in names) for config in configs}


def test_a_family_alone_is_its_heuristic(inputs: Inputs) -> None:
    [config] = ConfigSet.parse("csr_spmm").configs(inputs, DEVICE, None)
    assert config == CSR.heuristic(inputs.problem, inputs.features, DEVICE)


def test_every_valid_combination(inputs: Inputs) -> None:
    some = settings("csr_spmm:tile_n=32,64;threads_per_row=8,16", inputs, "tile_n", "threads_per_row")
    assert some and some <= {(tile, threads) for tile in (32, 64) for threads in (8, 16)}
    for config in ConfigSet.parse("csr_spmm:tile_n=8,16,32,64,128").configs(inputs, DEVICE, None):
        assert not CSR.broken_constraints(inputs.problem, config, DEVICE)


def test_keys_may_change_together(inputs: Inputs) -> None:
    text = "csr_spmm:row_order+index_bits=natural+32,sorted+16"
    assert settings(text, inputs, "row_order", "index_bits") <= {("natural", 32), ("sorted", 16)}


def test_what_a_publication_fixes(tmp_path: Path) -> None:
    problem = SpmmProblem(64, 96, 32, DType.FLOAT16, Layout.COLUMN)
    uniform = Case("tiny", "u", problem, (DType.FLOAT16,), EqualRows(64, 96, 0.5), "")
    inputs = InputsMaker(tmp_path).make(uniform, DType.FLOAT16)
    found = ConfigSet.parse("uspmm@published").configs(inputs, DEVICE, None)
    assert tuple(found) == family("uspmm").published(problem)
    with pytest.raises(UnsupportedError, match="no publication fixes configs of csr_spmm here"):
        ConfigSet.parse("csr_spmm@published").configs(inputs, DEVICE, None)  # of a column-major B


def test_the_recorded_winner(inputs: Inputs, tmp_path: Path) -> None:
    db = str(tmp_path / "t.db")
    tuned = ConfigSet.parse("csr_spmm@tuned:row_order=natural")
    with pytest.raises(MissingError, match="no config of csr_spmm is recorded"):
        tuned.configs(inputs, DEVICE, db)
    with Store.open(db) as store:
        backend = Backend.of(DEVICE, inputs.problem, baselines=False)
        found = tune(
            inputs.matrix(), inputs.problem, device=DEVICE, store=store, backend=backend,
            budget=Budget(trials=2), families=["csr_spmm"],
        )  # fmt: skip
    [config] = tuned.configs(inputs, DEVICE, db)
    assert config.to_dict() == found.winner.variant.config.to_dict() | {"row_order": "natural"}


def test_nothing_valid_says_why(inputs: Inputs) -> None:
    with pytest.raises(UnsupportedError, match=r"none of 1 configs is valid here: .+"):
        ConfigSet.parse("csr_spmm:tile_n=8;threads_per_row=32").configs(inputs, DEVICE, None)
    refusal = ConfigSet.parse("csr_spmm").refusal(SddmmProblem(8, 8, 8), inputs.features)
    assert refusal == "csr_spmm computes spmm"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("csr spmm", "expected FAMILY"),
        ("csr_spm", "no family is called 'csr_spm'"),
        ("csr_spmm@best", "expected one of heuristic, tuned, published behind @, got 'best'"),
        ("csr_spmm:tile_n", "'tile_n' is not like KEY=VALUE"),
        ("csr_spmm:tile_n+row_splits=32", "needs a value for each of tile_n"),
        ("csr_spmm:tile_n=33", "tile_n = '33' is none of"),
        ("csr_spmm:tiles=32", "--configs csr_spmm:tiles=32: .*tiles"),
    ],
)
def test_texts_of_another_form(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        config_sets([text])


def test_a_file_of_named_sets(tmp_path: Path) -> None:
    file = tmp_path / "sets.json"
    sets = [
        {"name": "natural", "family": "csr_spmm", "base": "tuned", "set": {"row_order": ["natural"]}},
        {"name": "wide", "family": "csr_spmm", "set": {"tile_n": [64, 128], "residue_unroll": [True]}},
    ]
    file.write_text(json.dumps({"description": "two", "sets": sets}))
    first, second, third = config_sets([str(file), "csr_spmm"])
    assert (first.name, first.base, first.axes) == ("natural", Base.TUNED, (((("row_order", "natural"),),),))
    assert second.base is Base.HEURISTIC and len(second.axes) == 2 and third.name == "csr_spmm"
    assert [one.name for one in config_sets(["csr_spmm", "csr_spmm:tile_n=32"])] == ["csr_spmm", "csr_spmm-2"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"set": {"tile_n": [1.5]}}, r"sets\[0\]\.set\.tile_n\[0\]: expected an integer"),
        ({"family": "gone"}, r"sets\[0\]: no family is called 'gone'"),
        ({"name": "a b"}, r"sets\[0\]\.name"),
        ({"more": 1}, r"sets\[0\]: expected no member 'more'"),
    ],
)
def test_malformed_files(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    file = tmp_path / "sets.json"
    sets = [{"name": "wide", "family": "csr_spmm"} | change]
    file.write_text(json.dumps({"description": "one", "sets": sets}))
    with pytest.raises(ConfigError, match=complaint):
        config_sets([str(file)])


def test_committed_sets_are_sound() -> None:
    for file in sorted((Path(__file__).parents[2] / "benchmarks" / "configs").glob("*.json")):
        assert config_sets([str(file)]), file


def test_a_run_of_configs() -> None:
    """Every config is checked and timed on the emulator, and the fastest takes its turns with the others."""
    sets = config_sets(["csr_spmm:tile_n=32,64", "csr_sddmm"])
    finished = run(request(*sets, cases=[case()], limits=LIMITS), lambda step: None)
    [row] = finished.results.rows
    grid, other = row.cells
    assert (
        grid.status is Status.OK
        and len(grid.implementations) == 2
        and all(one.us for one in grid.implementations)
    ), grid
    assert grid.variant == grid.implementations[0].variant and len(grid.digest) == DIGITS
    assert other.status is Status.UNSUPPORTED and other.reason == "csr_sddmm computes sddmm", other
