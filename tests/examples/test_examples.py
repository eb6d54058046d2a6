"""Every example of the gallery runs on the emulator and prints what it promises (PyTorch: test_torch_examples.py)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from gallery import EXAMPLES, PROGRAMS, needs_torch, run, sources
from postgres_server import own_or_skip

MOST_LINES = 40  # that are not empty
LEAST_EXAMPLES = 30
EXPECTED = {
    "batched_attention": r"largest difference from NumPy \d\.\de-0[67]",
    "block_sparse": r"(?s)block_spmm: largest difference from float32 \d.\de-02\ncsr_spmm: ",
    "bundle": r"(?s)the bundle has 1\.\d MB\n.*csr_spmm \(exact\): the fastest of",
    "conjugate_gradients": r"576 unknowns, 16 right-hand sides, 4\d iterations, residual [12]e-04",
    "custom_family": r"(?s)11 checks hold\ncaught: .*heap-buffer-overflow\nrow_spmm \(named\)",
    "database_exchange": r"csr_spmm \(exact\): the fastest of",
    "dlpack_arrays": r"NumPy: difference \de-0[67]",
    "graph_convolution": r"right without edges: 50%\nright by the graph:  9\d%",
    "many_gpus": r"2 searches for 2 products: 2 searched",
    "masked_image": r"4 of 16 blocks changed, 12 were computed\nthe same as the whole image: True",
    "new_values": r"step 2: largest difference from SciPy \d\.\de-0[67]",
    "optuna_study": r"(?s)8 trials\n.*uspmm.nwarp explains \d+% of the differences in time",
    "pagerank": r"9 steps, ranks add up to 1 within \de-0[67]",
    "pins_and_explain": r"(?s)\(default\).*\(exact\).*\(pinned\): pinned in .*: released with 2\.1",
    "predict_a_gpu": r"(?s)nvidia-a100: \d+\.\d µs predicted.*nvidia-h200: \d+\.\d µs predicted",
    "prune_and_tune": r"(?s)unstructured: 95\.00% zeros.*uniform: 94\.95% zeros",
    "quickstart": r"largest difference from SciPy in float64: \d\.\de-0[67]",
    "read_the_cuda": r"constexpr int kTileM = ",
    "safetensors_shards": r"(?s)layers\.0\.mlp\.weight.*1 search for 2 products",
    "sampled_product": r"step 3: mean squared error 0\.0",
    "saved_operator": r"equal bits: True",
    "sparse_network": r"(\d+) of 16 images live, .*\n\1 live in float64",
    "sparse_softmax": r"rows with experts add up to 1 within \de-0[678]",
}


def names() -> list[str]:
    """The examples that need neither PyTorch nor a server."""
    return [name for name in sources() if not needs_torch(name) and name != "postgres"]


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_it_runs(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if name == "predict_a_gpu" and shutil.which("nvcc") is None:
        pytest.skip("nvcc is not here")
    run(name, tmp_path)
    told = capfd.readouterr().out
    assert re.search(EXPECTED[name], told), told


@pytest.mark.long
def test_a_postgres_database_of_many_hosts(
    postgres_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run("postgres", tmp_path, postgres_url)
    assert "csr_spmm (exact)" in capfd.readouterr().out


def test_it_says_that_it_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Name a database by its URL"):
        run("postgres", tmp_path)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run("masked_image", tmp_path, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_gallery_is_short_and_whole() -> None:
    assert len(sources()) >= LEAST_EXAMPLES
    files = {**sources(), **{f.stem: f.read_text() for f in (EXAMPLES / "own_family").glob("row_spmm*")}}
    for name, text in files.items():
        lines = [line for line in text.splitlines() if line.strip()]
        assert len(lines) <= MOST_LINES, f"{name} has {len(lines)} lines"


def test_the_list_has_all_of_them() -> None:
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted((*sources(), *PROGRAMS))


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A server of this test's own, where PostgreSQL is installed."""
    with own_or_skip() as server:
        yield server.url
