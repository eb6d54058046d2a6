"""A user's shared object as a baseline: the example compiles, runs and is right; broken ones are explained."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from bench_fakes import cases, request

from sparsegen.bench.baseline.shared_object import SharedObject
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import RadixNet
from sparsegen.bench.results.results import Status
from sparsegen.bench.run.run import run
from sparsegen.errors import ConfigError
from sparsegen.matrix.features import Features
from sparsegen.operators import (
    DType,
    Epilogue,
    Layout,
    Readout,
    SoftmaxProblem,
    SparseNetworkProblem,
    SpmmProblem,
)
from sparsegen.operators.sparse_network import Activation

EXAMPLES = Path(__file__).parents[2] / "examples" / "baseline"
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def build(folder: Path, name: str, *changes: tuple[str, str], example: str = "plain_c") -> Path:
    """An example with changes to its source, as a shared object."""
    source = (EXAMPLES / f"{example}.c").read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    (folder / f"{name}.c").write_text(source)
    target = folder / f"{name}.so"
    command = [
        "cc",
        "-O1",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-I{EXAMPLES}",
        f"{name}.c",
        "-o",
        str(target),
    ]
    subprocess.run(command, cwd=folder, check=True)
    return target


def test_the_example_and_what_may_go_wrong_with_one(tmp_path: Path) -> None:
    made = {
        "right": build(tmp_path, "right"),
        "old": build(tmp_path, "old", ("{SPARSEGEN_BASELINE_VERSION,", "{0,")),
        "failing": build(tmp_path, "failing", ("return 0;", "return 7;")),
        "wrong": build(tmp_path, "wrong", ("= sum;", "= 2 * sum;")),
    }
    (tmp_path / "text.so").write_text("not a library")
    some = [SharedObject.parse(f"{name}={path}:plain_c") for name, path in made.items()]
    some += [
        SharedObject.parse(f"nameless={made['right']}:no_such_symbol"),
        SharedObject.parse(f"text={tmp_path / 'text.so'}:plain_c"),
    ]
    second = cases(2)[1]
    listed = [cases(1)[0], replace(second, problem=SpmmProblem(32, 24, 2, layout=Layout.COLUMN))]
    listed.append(replace(second.of_dtypes((DType.FLOAT16,)), name="half"))
    rows = run(request(*some, cases=listed), lambda step: None).results
    cells = {cell.baseline: cell for cell in rows.rows[0].cells}
    assert {name: cell.status for name, cell in cells.items()} == {
        "right": Status.OK,
        "old": Status.MISSING,
        "failing": Status.CRASHED,
        "wrong": Status.WRONG,
        "nameless": Status.MISSING,
        "text": Status.MISSING,
    }
    assert "version 0" in cells["old"].reason and "returned 7" in cells["failing"].reason
    assert "no_such_symbol" in cells["nameless"].reason and "text.so" in cells["text"].reason
    assert rows.versions["right"] == "plain C"
    by_case = {(row.case, row.layout, row.dtype): row.cell("right") for row in rows.rows}
    in_columns, in_half = (
        by_case["32x24x2", Layout.COLUMN, DType.FLOAT32],
        by_case["half", Layout.ROW, DType.FLOAT16],
    )
    assert in_columns is not None and in_columns.status is Status.OK
    assert in_half is not None and in_half.status is Status.UNSUPPORTED and "float32" in in_half.reason


def test_networks(tmp_path: Path) -> None:
    """Every activation and readout; and a baseline that forgets the biases is wrong."""
    made = {
        "right": build(tmp_path, "right", example="plain_network"),
        "wrong": build(tmp_path, "wrong", ("part == 0 ? 1", "part == 0 ? 0"), example="plain_network"),
        "other": build(tmp_path, "other"),
    }
    symbols = {"right": "plain_network", "wrong": "plain_network", "other": "plain_c"}
    some = [SharedObject.parse(f"{name}={path}:{symbols[name]}") for name, path in made.items()]
    listed = [
        Case(
            "networks",
            f"{activation} {readout}",
            SparseNetworkProblem(3 * 64, 67, 20, DType.FLOAT32, activation, readout),
            (DType.FLOAT32,),
            RadixNet(3 * 64, 67, 64, 3, alive=activation is not Activation.DYING_RELU),
            "generated",
        )
        for activation in Activation
        for readout in Readout
    ]
    rows = run(request(*some, cases=listed), lambda step: None).results.rows
    assert len(rows) == 6
    for row in rows:
        cells = {cell.baseline: cell for cell in row.cells}
        assert cells["right"].status is Status.OK, f"{row.case}: {cells['right'].reason}"
        assert cells["wrong"].status is Status.WRONG, row.case
        assert cells["other"].status is Status.UNSUPPORTED and "spmm" in cells["other"].reason


@pytest.mark.parametrize("text", ["", "a", "a=b", "a=b:", "=b:c", "a=/nowhere/b.so:c"])
def test_malformed_baselines(text: str) -> None:
    with pytest.raises(ConfigError, match="--baseline"):
        SharedObject.parse(text)


def test_what_the_interface_cannot_name_is_refused() -> None:
    baseline = SharedObject("mine", "/some/where.so", "symbol")
    features = Features.of(cases(1)[0].matrix())
    assert (
        baseline.refusal(SoftmaxProblem(32, 24), features)
        == "the interface knows spmm, sddmm, sparse_network"
    )
    assert baseline.refusal(SpmmProblem(32, 24, 1, epilogue=Epilogue.BIAS), features) is not None
    assert baseline.refusal(SpmmProblem(32, 24, 1), features) is None
