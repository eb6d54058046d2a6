"""``sparsegen mask``."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command

import sparsegen
from sparsegen import masks


@pytest.mark.parametrize(
    ("arguments", "mask"),
    [
        (("band",), masks.band(300)),
        (
            ("band", "--width", "16", "--sparsity", "0.8", "--seed", "4", "--bidirectional"),
            masks.band(300, 16, 0.8, causal=False, seed=4),
        ),
        (("window", "--window", "32", "--sinks", "4"), masks.sliding_window(300, 32, 4)),
        (("strided", "--stride", "17", "--bidirectional"), masks.strided(300, 17, causal=False)),
        (
            ("blocks", "--block", "32", "--neighbours", "0", "--extra", "2", "--seed", "1"),
            masks.blocks(300, 32, 0, 2, seed=1),
        ),
    ],
)
def test_what_is_written_is_the_mask(
    arguments: tuple[str, ...], mask: sparsegen.CsrMatrix, run: Command
) -> None:
    data = run.json("mask", *arguments, "--length", "300", "-o", "mask.npz")
    found = sparsegen.load_matrix(data["output"])
    assert found.fingerprint() == mask.fingerprint() == data["fingerprint"]
    assert (data["shape"], data["nonzeros"]) == ([300, 300], mask.nnz)
    assert data["density"] == pytest.approx(mask.nnz / 300**2)


def test_it_says_what_it_wrote_and_overwrites_on_request(run: Command, tmp_path: Path) -> None:
    arguments = ("mask", "window", "--length", "50", "--window", "8", "-o", "new/mask.npz")
    said = run(*arguments).output
    assert said.startswith("new/mask.npz: 50 × 50, 372 nonzeros (14.88%)\n") and "longest of 8" in said
    before = (tmp_path / "new" / "mask.npz").read_bytes()
    assert "mask.npz" in run(*arguments[:-2], "--sinks", "2", "-o", "new/mask.npz", exit_code=3).stderr
    assert (tmp_path / "new" / "mask.npz").read_bytes() == before
    assert run.json(*arguments, "--sinks", "2", "--force")["nonzeros"] > 372


def test_a_mask_is_looked_up_like_any_matrix(run: Command) -> None:
    run("mask", "window", "--length", "64", "--window", "8", "-o", "mask.npz")
    found = run.json("lookup", "--matrix", "mask.npz", "--operator", "sddmm", "-k", "16")
    assert found["problem"]["operator"] == "sddmm"


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("band", "--length", "9", "-o", "mask.mtx"), 2),
        (("band", "--length", "0", "-o", "mask.npz"), 2),
        (("band", "--length", "9", "--sparsity", "1.1", "-o", "mask.npz"), 2),
        (("window", "--length", "9", "-o", "mask.npz"), 2),
        (("window", "--length", "1000000", "--window", "100000", "-o", "mask.npz"), 3),
        (("window", "--length", "9", "--window", "2", "-o", "/dev/null/mask.npz"), 1),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], exit_code: int, run: Command, tmp_path: Path) -> None:
    run("mask", *arguments, exit_code=exit_code)
    assert not list(tmp_path.glob("*.npz"))
