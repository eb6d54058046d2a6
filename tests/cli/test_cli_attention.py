"""``--operator sparse_attention`` on the command line: heads and width, looked up, verified and shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import scipy.sparse
from command_line import Command

from sparsegen import masks

OF = ("--operator", "sparse_attention", "--dtype", "float16")


@pytest.fixture
def mask(tmp_path: Path) -> Path:
    path = tmp_path / "mask.npz"
    scipy.sparse.save_npz(path, masks.sliding_window(24, 9, 2).to_scipy())
    return path


@pytest.mark.usefixtures("shared_cache")
def test_what_is_looked_up_is_right(run: Command, mask: Path) -> None:
    wanted = (*OF, "--matrix", mask, "--heads", 2, "-k", 16)
    found = run.json("lookup", *wanted)
    assert found["how"] == "default" and found["family"] == "fused_attention"
    assert found["problem"] == {
        "operator": "sparse_attention", "m": 24, "n": 24, "k": 16, "batch": 2, "dtype": "float16"
    }  # fmt: skip
    assert run.json("verify", *wanted, "--rounds", 1)["right"]
    same = run.json("lookup", *OF, "--matrix", mask, "--batch", 2, "-k", 16)
    assert same["config"] == found["config"], "other words for the same sizes"


def test_the_source_needs_no_mask(run: Command) -> None:
    sizes = ("--m", 4096, "-n", 4096, "-k", 128, "--heads", 8)
    text = run("source", *OF, *sizes, "--family", "fused_attention").stdout
    assert 'extern "C" __global__' in text and "constexpr int kWidth = 128;" in text


def test_what_it_cannot_compute_is_told(run: Command, mask: Path) -> None:
    of = ("--operator", "sparse_attention", "--matrix", mask, "-k", 16)
    error = run.json("lookup", *of, exit_code=5)["error"]
    assert error["type"] == "NoVariantError" and "elements (float32) have 16 bits" in error["message"]
    refused = run.json("lookup", *of, "--epilogue", "bias", exit_code=3)["error"]
    assert "sparse_attention takes no epilogue" in refused["message"]
