"""Databases of drawn problems, as they are kept."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from tuning_fakes import DEVICE, MATRIX, PROBLEM

from benchmarks import drawn_variants
from benchmarks.make_seeds import shortened, shortened_baseline
from sparsegen.kernels import family
from sparsegen.matrix.features import Features
from sparsegen.system.compressed import decompress
from sparsegen.tuning_db.exchange import load
from sparsegen.tuning_db.records import Baseline, Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store


def test_a_database_is_kept_as_fine_as_clocks_told_it(tmp_path: Path) -> None:
    workload = Workload(PROBLEM, "ab" * 32, Features.of(MATRIX))
    config = family("csr_spmm").heuristic(PROBLEM, workload.features, DEVICE)
    sample = Sample(1.0000000235, 0.9999999, 1.00049, 30)
    measured = Measurement(workload, DEVICE, Variant(config, "ef" * 32), Outcome.OK, sample, registers=40)
    refused = Measurement(workload, DEVICE, Variant(config, "01" * 32), Outcome.COMPILE_FAILED, reason="no")
    baseline = Baseline(workload, DEVICE, "cublas", "cuBLAS 13", sample)
    database, kept = tmp_path / "drawn.db", tmp_path / "variants.json.xz"
    with Store.open(database) as store:
        store.add_measurement(measured)
        store.add_measurement(refused)
        store.add_baseline(baseline)
    done = CliRunner().invoke(drawn_variants.main, ["keep", str(database), "-o", str(kept)])
    assert done.exit_code == 0, done.output
    content = load(decompress(kept.read_bytes(), 1 << 20).decode(), str(kept))
    assert set(content.measurements) == {shortened(measured), shortened(refused)}
    assert content.baselines == (shortened_baseline(baseline),)
