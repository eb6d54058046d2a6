"""The variation of row lengths in DLMC: the stored fits, what is generated from them, and the fitting script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import EqualRows, Independent, VaryingRows
from sparsegen.bench.suites import load_suite
from sparsegen.bench.suites.listed import RowVariation, row_cov, row_variations
from sparsegen.errors import SuiteError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("case", load_suite("dlmc-like").cases, ids=str)
def test_generated_matrices_are_as_fitted(case: Case) -> None:
    *_, model, method = case.name.split()
    assert isinstance(case.pattern, VaryingRows)
    density = 1 - case.pattern.sparsity
    features = Features.of(case.matrix())
    assert features.density == pytest.approx(density, rel=0.005)
    assert features.row_cov == pytest.approx(
        row_cov(model, method, case.problem.matrix_shape[1], density), rel=0.05
    )


def test_ways_of_pruning_differ_as_in_the_collection() -> None:
    """Random pruning is as even as chance allows; the others vary more, the more the sparser."""
    assert len(row_variations()) == 8
    for (model, method), fit in row_variations().items():
        chance = Features.of(Independent(2000, 512, 0.9, 1).matrix()).row_cov
        if method == "random_pruning":
            assert fit.row_cov(512, 0.1) == pytest.approx(chance, rel=0.06)
        else:
            assert fit.row_cov(512, 0.1) > 1.5 * chance, model
            assert fit.row_cov(10**9, 0.02) > fit.row_cov(10**9, 0.5)


def test_unknown_ways_of_pruning() -> None:
    with pytest.raises(SuiteError, match="no matrices of rn50 l0_regularization; there are rn50"):
        row_cov("rn50", "l0_regularization", 512, 0.1)


def write_smtx(path: Path, matrix: CsrMatrix) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = f"{matrix.shape[0]}, {matrix.shape[1]}, {matrix.nnz}"
    arrays = (matrix.row_offsets, matrix.column_indices)
    path.write_text("\n".join([sizes, *(" ".join(map(str, np.asarray(a))) for a in arrays)]) + "\n")


def test_the_script_finds_a_planted_law(tmp_path: Path) -> None:
    law = RowVariation(0.1, 0.4, 1.0, 1)
    for sparsity in (0.5, 0.7, 0.8, 0.9, 0.95, 0.98):
        wanted = law.row_cov(1024, 1 - sparsity)
        planted = VaryingRows(512, 1024, sparsity, wanted).matrix()
        write_smtx(tmp_path / "net" / "planted" / str(sparsity) / "a.smtx", planted)
        write_smtx(
            tmp_path / "net" / "even" / str(sparsity) / "a.smtx", Independent(512, 1024, sparsity).matrix()
        )
    outlier = VaryingRows(512, 1024, 0.95, 3.0).matrix()
    write_smtx(tmp_path / "net" / "planted" / "0.95" / "outlier.smtx", outlier)
    full = EqualRows(4, 6, 0.0).matrix()  # has no variation to measure
    write_smtx(tmp_path / "net" / "planted" / "0.0" / "full.smtx", full)

    output = tmp_path / "fits.json"
    script = [sys.executable, "-m", "benchmarks.fit_dlmc", "--data", str(tmp_path), "-o", str(output)]
    subprocess.run(script, cwd=ROOT, check=True, capture_output=True)
    fits = json.loads(output.read_text())["fits"]["net"]
    found = RowVariation(**fits["planted"])
    for density in (0.5, 0.1, 0.02):
        assert found.row_cov(1024, density) == pytest.approx(law.row_cov(1024, density), rel=0.15)
    assert found.matrices == 7
    assert fits["even"] | {"spread": 1.0} == {"scale": 0.0, "power": 0.0, "spread": 1.0, "matrices": 6}
