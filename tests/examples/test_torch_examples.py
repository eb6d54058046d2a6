"""The gallery's examples with PyTorch run on the emulator and print what they promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gallery import needs_torch, run, sources

torch = pytest.importorskip("torch")

EXPECTED = {
    "first_speedup": r"[12] (sparse|left dense)(?s:.*)\d\.\d\d times as fast as dense\nconverted within \d",
    "flex_masks": r"largest difference from PyTorch in float32: \d\.\de-04\ngradient of q: \d\.\de-06",
    "lidar_net": r"points of 2 scans; loss 1\.\d+\ngradient of the first layer: \d\.\de-0[345]",
    "lightning_dropout": r"right: (8|9)\d%",
    "llama_decode": r"(?s)gate PreparedLinear\(.*finite: True",
    "masks_from_outside": r"2 sparse, 0 left dense(?s:.*)largest difference: \d\.\de-07",
    "paged_decode": r"8 of 32 pages: 0\.[1-9]\d off on cpu",
    "pruned_bert": r"8 sparse, 2 left dense(?s:.*)3 \(Linear\) stays dense: left out by name\noutput \(1, 32, 2\)",
    "pruned_vit": r"2 sparse, 4 left dense(?s:.*)step 2: loss [01]\.",
    "shipped_model": r"2 launches, kernels\.so, load\.py, model\.pt2, program\.py, .*\nequal bits without .*: True",
    "sparse_cnn": r"largest difference from the dense layer in live blocks: \d\.\de-07",
    "topk_attention": r"gradient of [1-9]\.\d+e-0\d on cpu",
    "torch_linear": r"\(128, 256\) → \(128, 512\), largest difference from PyTorch: \d\.\de-0[67]",
    "tuned_model": r"2 searches, 4 variants known; "
    r"(1 sparse, 0 left dense(?s:.*)0: 96 × 64, \d\d\.\d% sparse(, with relu)?; [\d.]+ µs for 8 tokens"
    r"|0 sparse, 1 left dense(?s:.*)0 \(Linear\) stays dense: the model is no faster with it sparse)",
    "video_attention": r"72% of the blocks are computed\nrelative error against all of them: \d%",
}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in sources() if needs_torch(name) and name != "cuda_graph"])
def test_it_runs(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    run(name, tmp_path)
    torch.set_rng_state(before)
    told = capfd.readouterr().out
    assert re.search(EXPECTED[name], told), told


@pytest.mark.gpu
def test_a_graph_is_captured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run("cuda_graph", tmp_path, device="cuda")
    assert re.search(r"largest difference from a dense product: \d\.\de-0[123]", capfd.readouterr().out)


def test_a_graph_needs_a_gpu(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(SystemExit, match="needs a GPU"):
        run("cuda_graph", tmp_path)
