"""The test half of DLMC's layers: which they are, and that nothing packaged knows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tuning_fakes import DEVICE, MATRIX, PROBLEM
from tuning_samples import START

from benchmarks import make_seeds, seed_documents
from benchmarks.dlmc_split import is_for_testing
from benchmarks.dlmc_split import test_half as half
from sparsegen.bench.results import result_file
from sparsegen.kernels import family
from sparsegen.matrix.features import Features
from sparsegen.tuning_db import exchange, seed_file
from sparsegen.tuning_db.records import Baseline, Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3-sm90" / "bench_dlmc_float32.json.xz"


def test_a_layer_is_in_one_half_however_it_was_pruned() -> None:
    name = "body_decoder_layer_0_ffn_conv1_fully_connected"
    ways = [
        f"transformer/{way}/{sparsity}/{name}" for way in ("random", "l0") for sparsity in ("0.5", "0.98")
    ]
    assert len({is_for_testing(way) for way in ways}) == 1


def test_about_half_of_many_layers_are_for_testing() -> None:
    count = sum(is_for_testing(f"model/random/0.9/layer_{i}") for i in range(1000))
    assert 450 < count < 550


def test_the_list_holds_every_test_matrix_that_was_measured_and_no_other() -> None:
    measured = {row.case.partition(" n=")[0]: row.fingerprint for row in result_file.read(RESULTS).rows}
    listed = {name: measured[name] for name in measured if is_for_testing(name)}
    assert listed and listed == {name: half()[name] for name in listed}
    assert all(is_for_testing(name) for name in half())


@pytest.mark.parametrize("file", sorted((ROOT / "tuning_db" / "seeds").glob("*.json")), ids=lambda f: f.stem)
def test_no_packaged_result_is_of_the_test_half(file: Path) -> None:
    content = exchange.load(json.dumps(seed_documents.unpack(seed_file.read(file))), str(file))
    known = {record.workload.fingerprint for record in (*content.measurements, *content.baselines)}
    assert known and not known & set(half().values())
    assert all(make_seeds.shortened(found) == found for found in content.measurements)
    assert all(make_seeds.shortened_baseline(found) == found for found in content.baselines)


def test_seeds_are_made_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, aside = (
        Workload(PROBLEM, fingerprint, Features.of(MATRIX)) for fingerprint in ("ab" * 32, "cd" * 32)
    )
    monkeypatch.setattr(make_seeds, "set_aside", lambda: frozenset({aside.fingerprint}))
    sample = Sample(1.0000000235, 0.9999999, 1.00049, 30)
    with Store.open(tmp_path / "tuned.db") as store:
        for workload in (ours, aside):
            config = family("csr_spmm").heuristic(PROBLEM, workload.features, DEVICE)
            variant = Variant(config, "ef" * 32)
            facts = {"worst_error": 0.0106399100008, "compile_seconds": 0.5}
            found = Measurement(workload, DEVICE, variant, Outcome.OK, sample, **facts)
            store.add_measurement(found)
            store.add_baseline(Baseline(workload, DEVICE, "cublas", "cuBLAS 13", sample))
            earlier = Sample(2.0, 2.0, 2.0, 30)
            store.add_baseline(Baseline(workload, DEVICE, "cublas", "cuBLAS 13", earlier, START))
    made = tmp_path / "seeds.json"
    command = [str(tmp_path / "tuned.db"), "-o", str(made)]
    done = CliRunner().invoke(make_seeds.main, command)
    assert done.exit_code == 0, done.output
    content = exchange.load(json.dumps(seed_documents.unpack(seed_file.read(made))), "made")
    assert [m.workload.fingerprint for m in content.measurements] == [ours.fingerprint]
    assert [b.workload.fingerprint for b in content.baselines] == [ours.fingerprint]
    [kept] = content.measurements
    assert kept.sample == Sample(1.0, 1.0, 1.0, 30)
    assert kept.worst_error == 0.011 and kept.compile_seconds is None
    assert kept.variant.source_digest == "ef" * 4
    assert content.baselines[0].sample == kept.sample
    assert {record.measured_at.microsecond for record in (kept, *content.baselines)} == {0}
