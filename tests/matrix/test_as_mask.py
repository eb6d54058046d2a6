"""Masks whose values are ignored: additive ones, whose meaning is inverted, are refused everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import sparsegen
from sparsegen.cli.main import cli
from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import as_mask

SEEN = np.random.default_rng(0).random((16, 16)) < 0.3


def _attention(mask: Any) -> Any:
    return sparsegen.prepare_attention(mask, head_dim=8, device="emulator")


def _operator(name: str, **options: Any) -> Callable[[Any], Any]:
    return lambda mask: sparsegen.prepare(mask, operator=name, device="emulator", **options)


TAKERS = {
    "as_mask": as_mask,
    "prepare_attention": _attention,
    "sparse_softmax": _operator("sparse_softmax"),
    "sparse_softmax_backward": _operator("sparse_softmax_backward"),
    "sddmm": _operator("sddmm", k=8),
    "sparse_attention": _operator("sparse_attention", k=8, dtype="float16"),
}


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize("hidden", [-np.inf, -1e9, -1e4, -100, np.finfo(np.float32).min])
def test_additive_masks_are_refused_with_the_line_to_write(take: Callable[[Any], Any], hidden: float) -> None:
    with pytest.raises(MatrixError, match=r"additive.*mask == 0"):
        take(np.where(SEEN, 0, hidden).astype(np.float32))


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize("hidden", [-np.inf, -1e9, -65504.0])
@pytest.mark.parametrize("bias", ["slopes", "learned"])
def test_additive_masks_with_biases_are_refused_too(
    take: Callable[[Any], Any], hidden: float, bias: str
) -> None:
    distance = np.abs(np.subtract.outer(np.arange(16), np.arange(16)))
    biases = -0.5 * distance if bias == "slopes" else np.cos(distance)
    with pytest.raises(MatrixError, match=r"additive.*biases.*mask > -100"):
        take(np.where(SEEN, biases, hidden).astype(np.float32))


@pytest.mark.parametrize(
    "mask",
    [
        SEEN,
        SEEN.astype(np.int8),
        sp.csr_array(SEEN),
        np.where(SEEN, -0.5, 0),
        np.where(SEEN, -5e3, 0) + SEEN * 6e3,
        np.where(SEEN, np.linspace(-1e6, 1e6, 256).reshape(16, 16), 0),
    ],
    ids=["booleans", "integers", "sparse", "negative", "large", "both signs"],
)
def test_other_masks_are_their_nonzeros(mask: Any) -> None:
    np.testing.assert_array_equal(as_mask(mask).to_dense() != 0, SEEN)


def test_pytorch_masks() -> None:
    torch = pytest.importorskip("torch")
    from sparsegen.integrations.torch import SparseAttention, SparsePattern

    seen = torch.from_numpy(SEEN)
    assert SparsePattern(seen).nnz == SEEN.sum()
    additive = torch.zeros(16, 16).masked_fill(~seen, torch.finfo(torch.float32).min)
    with pytest.raises(MatrixError, match="mask == 0"):
        SparsePattern(additive)
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    found = SparseAttention(additive == 0, 2, 8)(q, k, v)
    seen_rows = seen.any(1)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=additive)
    torch.testing.assert_close(found[:, :, seen_rows], wanted[:, :, seen_rows])
    with pytest.raises(MatrixError, match="mask == 0"):
        SparseAttention(additive.masked_fill(~seen, -torch.inf), 2, 8)


def test_what_is_no_mask_is_refused() -> None:
    with pytest.raises(MatrixError, match="nan"):
        as_mask(np.where(SEEN, np.nan, 0))


def test_values_that_scale_are_no_mask() -> None:
    values = np.where(SEEN, -1e9, 0).astype(np.float32)
    sparsegen.prepare(values, operator="sddmm", k=8, epilogue="scale", device="emulator")
    with pytest.raises(MatrixError, match="inf"):
        sparsegen.prepare(
            np.where(SEEN, np.inf, 0), operator="sddmm", k=8, epilogue="scale", device="emulator"
        )


def test_the_command_line_refuses_additive_masks(tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.where(SEEN, 0, -1e9).astype(np.float32))
    command = ["lookup", "--operator", "sparse_softmax", "--matrix", str(tmp_path / "mask.npy")]
    found = CliRunner().invoke(cli, [*command, "--device", "emulator"])
    assert found.exit_code == 3 and "mask == 0" in found.output
