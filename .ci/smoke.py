"""Whether an installation works that has nothing beside it: run by its Python with ``-I``, from anywhere."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import scipy.sparse

import sparsegen

PACKAGE = Path(sparsegen.__file__).parent
SIZES = ("--m", "512", "--k", "512", "-n", "64", "--family", "csr_spmm")


def command(*words: str) -> str:
    """What ``sparsegen`` says, with a cache and a database of its own."""
    program = Path(sys.executable).with_name("sparsegen")
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": "/usr/bin:/bin", "SPARSEGEN_DEVICE": "emulator"}
        done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


assert PACKAGE.is_relative_to(sys.prefix), f"{PACKAGE} is not in this environment"
assert sparsegen.__version__ == metadata.version("sparsegen")
assert f" {sparsegen.__version__}" in command("--version")
for marker in ("py.typed", "__init__.pyi"):
    assert (PACKAGE / marker).is_file(), marker
assert any(files("sparsegen.tuning_db").joinpath("seeds").iterdir()), "the packaged results are missing"
assert "csr_spmm" in command("families")
assert "csr_spmm(int m" in command("source", *SIZES)
assert "int main(" in command("source", *SIZES, "--standalone", "--for", "h100")
with tempfile.TemporaryDirectory() as folder:
    matrix = Path(folder) / "matrix.npz"
    scipy.sparse.save_npz(matrix, scipy.sparse.random(256, 256, 0.1, format="csr"))
    assert "_spmm" in command("lookup", "--matrix", str(matrix), "-n", "64")
    choice = sparsegen.lookup(
        scipy.sparse.load_npz(matrix), n=64, device="emulator", db=Path(folder) / "tuning.db"
    )
    assert choice.family.name.endswith("_spmm")
