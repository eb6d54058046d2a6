"""Families from outside of sparsegen: named by SPARSEGEN_FAMILIES or registered, in this process and its children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sparsegen import backends, kernels
from sparsegen.errors import ConfigError
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import SpmmProblem
from sparsegen.settings import FAMILIES, family_modules
from sparsegen.system.child import ChildProcess
from sparsegen.tuning.jobs import export
from sparsegen.tuning.jobs.export import Wanted
from sparsegen.tuning_db.layers import MemoryLayer

EXAMPLES = Path(__file__).parents[2] / "examples"
ROOT = EXAMPLES.parent
MODULE = "own_family.row_spmm"


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes registered families after the test."""
    monkeypatch.setenv(FAMILIES, "")
    monkeypatch.setattr(kernels, "_taken_up", {})
    monkeypatch.setattr(kernels, "_loaded", dict(kernels._loaded))
    monkeypatch.syspath_prepend(str(EXAMPLES))


def names(connection: object) -> None:
    """Code of a child: it sends the families that it finds."""
    connection.send(sorted(kernels.families()))  # type: ignore[attr-defined]


def test_a_registered_family_stands_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from own_family.row_spmm import FAMILY

    assert FAMILY.name not in kernels.families()
    kernels.register(FAMILY)
    kernels.register(FAMILY)
    assert family_modules() == (MODULE,)
    assert kernels.family("row_spmm") is FAMILY is kernels.families()["row_spmm"]
    assert FAMILY in kernels.families_of("spmm") and FAMILY not in kernels.families_of("sddmm")
    assert kernels.read_config("row_spmm", {"threads": "64"}) == FAMILY.config(threads=64)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    child = ChildProcess(f"{Path(__file__).stem}:names")
    assert "row_spmm" in child.receive(60)
    child.close()


def test_the_variable_names_it_to_commands(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparsegen", "families", "--operator", "spmm", "--json"],
        cwd=ROOT,
        env=os.environ | {FAMILIES: f" {MODULE} ,", "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "row_spmm" in [told["name"] for told in json.loads(done.stdout)["families"]]


@pytest.mark.parametrize(
    ("module", "message"),
    [("no_such_module", "cannot be imported"), ("json", "exports no kernel family"), ("", "")],
)
def test_a_module_without_one_is_an_error(monkeypatch: pytest.MonkeyPatch, module: str, message: str) -> None:
    monkeypatch.setenv(FAMILIES, module)
    if not message:
        assert "csr_spmm" in kernels.families()
        return
    with pytest.raises(ConfigError, match=message):
        kernels.families_of("spmm")
    with pytest.raises(ConfigError, match=message):
        kernels.family("some_family")


def test_a_family_that_others_cannot_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from own_family.row_spmm import RowSpmm

    program = type("Mine", (RowSpmm,), {"__module__": "__main__"})()
    with pytest.raises(ConfigError, match="module of its own"):
        kernels.register(program)
    with pytest.raises(ConfigError, match="module of its own"):
        kernels.register(RowSpmm())  # not the one that its module exports
    taken = ModuleType("taken")
    taken.FAMILY = kernels.family("csr_spmm")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "taken", taken)
    monkeypatch.setenv(FAMILIES, "taken")
    with pytest.raises(ConfigError, match="there is a kernel family 'csr_spmm' already"):
        kernels.families()


def test_a_bundle_leaves_it_out_and_says_so_where_it_was_named() -> None:
    from own_family.row_spmm import FAMILY

    kernels.register(FAMILY)
    matrix = random_uniform(32, 32, 0.2, seed=0)
    wanted = Wanted(matrix, SpmmProblem(32, 32, 16), False)
    device = backends.find_device("emulator")
    chosen = export._choose(wanted, device, MemoryLayer([], []), 40, None)
    assert {"csr_spmm", "uspmm"} <= {c.family_name for c in chosen} and "row_spmm" not in str(chosen)
    with pytest.raises(ConfigError, match="families of sparsegen's own alone"):
        export._choose(wanted, device, MemoryLayer([], []), 40, ["csr_spmm", "row_spmm"])
