"""Every notebook runs in a kernel of Jupyter's on the emulator, and prints what its outputs show.

`pytest tests/examples/test_notebooks.py --update-golden` writes the outputs anew. A cell whose output is other every
time, such as a time, is tagged ``varies``: it runs, and is not compared.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from gallery import EXAMPLES, as_user
from patience import LONG

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
VARIES = "varies"
MOST_BYTES = 60_000  # of a file, with its pictures
OF_A_MACHINE = re.compile(r"/(tmp|home|root|work|Users|usr|opt)/|\x1b")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def executed(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of this run, without numbers of runs, warnings and versions."""
    notebook = nbformat.read(path, as_version=4)
    with as_user(folder):
        client = nbclient.NotebookClient(
            notebook,
            timeout=LONG,
            kernel_name="python3",
            coalesce_streams=True,  # how a stream is cut is other every time
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            for out in cell.outputs:
                if "execution_count" in out:
                    out.execution_count = None
    return notebook


def told(notebook: Any) -> list[list[str]]:
    """The texts of every code cell that is compared; of a picture that there is one."""
    compared = [
        c for c in notebook.cells if c.cell_type == "code" and VARIES not in c.metadata.get("tags", ())
    ]
    return [
        [str(out.get("text") or sorted(out.get("data", {}))) for out in cell.outputs] for cell in compared
    ]


@each_notebook
def test_it_prints_what_it_shows(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "import torch" in path.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    found = executed(path, tmp_path)
    if request.config.option.update_golden:
        nbformat.write(found, path)
    assert told(found) == told(nbformat.read(path, as_version=4))


@each_notebook
def test_it_is_small_and_of_no_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert path.stat().st_size < MOST_BYTES
    for cell in notebook.cells:
        for out in cell.get("outputs", ()):
            text = out.get("text") or out.get("data", {}).get("text/plain", "")
            assert out.output_type != "error" and not OF_A_MACHINE.search(text), text
    assert any(c.get("outputs") for c in notebook.cells), "run it with --update-golden"


def test_there_are_six() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 6 and all(f"(notebooks/{path.name})" in listed for path in NOTEBOOKS)
