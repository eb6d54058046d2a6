"""Words, names of files and truth values: whatever stands for one by mistake is refused in our own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen
from sparsegen import arguments
from sparsegen.dispatch.options import Dense, OnMiss, Verify, parse_kind
from sparsegen.errors import ConfigError, MatrixError, PruningError, SparsegenError
from sparsegen.masks import BlockMask
from sparsegen.matrix.block_mask_draw import MaskDraw
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.operators import DType, SpmmProblem
from sparsegen.pruning.request import PruneRequest

JUNK: dict[str, Any] = {
    "a SciPy matrix": sp.eye(3, format="csr"),
    "a structured array": np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
    "an array": np.ones(3),
    "an array of words": np.array(["float32", "none"]),
    "no dimension": np.array("float32"),
    "a list": ["float32"],
    "a dictionary": {},
    "a class": DType,
    "bytes": b"float32",
    "a number": 3,
    "NaN": float("nan"),
    "a long word": "x" * 10_000,
    "half a pair": "\ud800",
}
MATRIX = sp.random(32, 32, 0.2, format="csr", dtype=np.float32, random_state=1)
WORDS: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda junk: SpmmProblem.of((32, 32), n=8, dtype=junk),
    "layout": lambda junk: SpmmProblem.of((32, 32), n=8, layout=junk),
    "epilogue": lambda junk: SpmmProblem.of((32, 32), n=8, epilogue=junk),
    "on_miss": OnMiss.parse,
    "dense": Dense.parse,
    "verify": Verify.parse,
    "l2": parse_kind,
    "drawn": lambda junk: MaskDraw(0.5, drawn=junk),
    "pattern": lambda junk: PruneRequest.parse(junk, 0.5),
    "lookup": lambda junk: sparsegen.lookup(MATRIX, n=8, dtype=junk, device="emulator"),
    "tune": lambda junk: sparsegen.tune(MATRIX, n=8, effort=junk, device="emulator"),
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", WORDS)
def test_no_word(name: str, junk: str) -> None:
    with pytest.raises(SparsegenError) as error:
        WORDS[name](JUNK[junk])
    assert len(str(error.value)) < 1000


def test_a_word_is_a_member() -> None:
    assert arguments.word(DType, "float16", "dtype") is DType.FLOAT16
    assert arguments.word(DType, np.str_("float16"), "dtype") is DType.FLOAT16
    assert arguments.word(DType, DType.FLOAT16, "dtype") is DType.FLOAT16
    with pytest.raises(PruningError, match="dtype = 'float64' is none of float32, float16, bfloat16, or so"):
        arguments.word(DType, "float64", "dtype", PruningError, advice=", or so")


@pytest.mark.parametrize("name", ["\ud800", "a\0b", 3, None, b"bytes"])
def test_no_place_of_a_file(name: Any) -> None:
    with pytest.raises(ConfigError, match="no path"):
        arguments.location(name, "file")


@pytest.mark.parametrize("name", ["a" * 5000, "\ud800"])
def test_files_that_cannot_be(name: str) -> None:
    with pytest.raises(SparsegenError):
        sparsegen.load_operator(name, device="emulator")
    with pytest.raises(SparsegenError):
        sparsegen.load_matrix(name)
    with pytest.raises(SparsegenError):
        sparsegen.lookup(MATRIX, n=8, device="emulator", db=name)


@pytest.mark.parametrize("value", [0, -1, 2, "x", np.ones(2), None, MATRIX])
def test_no_density(value: Any) -> None:
    with pytest.raises(ConfigError, match="no density"):
        sparsegen.Density.parse(value)


def test_no_density_says_what_holds_of_every_operator() -> None:
    with pytest.raises(ConfigError) as refused:
        sparsegen.Density.parse(2)
    assert "block" not in str(refused.value) and "above 0 and at most 1" in str(refused.value)


@pytest.mark.parametrize("clip", [np.ones(2), "32", None, float("nan"), 0, -1.0, MATRIX])
def test_no_clip(clip: Any) -> None:
    with pytest.raises((ConfigError, MatrixError), match="clip"):
        Network.of([MATRIX, MATRIX], 0.0, clip)


def test_an_infinite_clip_is_none() -> None:
    assert Network.of([MATRIX], 0.0, np.inf).clip == np.inf


@pytest.mark.parametrize("exact", [np.ones(2), "yes", None, 2])
def test_exact_or_not(exact: Any) -> None:
    net = SparseNetwork(radixnet(64, 2), device="emulator")
    with pytest.raises(ConfigError, match="neither True nor False"):
        net.categories(np.ones((2, 64), dtype=bool), exact=exact)


@pytest.mark.parametrize("given", [np.array(None), np.array(8.5), np.array("8"), np.ones((2, 2), dtype=int)])
def test_no_pair(given: Any) -> None:
    for read in (arguments.pair, arguments.sides):
        with pytest.raises(ConfigError, match=r"two whole numbers|no whole number"):
            read(given, "block")
    assert arguments.sides(np.array(8), "block") == (8, 8)
    assert arguments.pair(np.array([8, 4]), "block") == (8, 4)


@pytest.mark.parametrize("given", [[[1], [1, 2]], type("No", (), {"__array__": None})()])
def test_no_array(given: Any) -> None:
    with pytest.raises(MatrixError):
        sparsegen.CsrMatrix((1, 2), given, [0], np.ones(1, dtype=np.float32))
    with pytest.raises(MatrixError):
        BlockMask.from_blocks(given, 16)


@pytest.mark.parametrize("layers", [np.array(None), np.eye(4), 3])
def test_no_layers(layers: Any) -> None:
    with pytest.raises(MatrixError, match="expected a list of matrices"):
        Network.of(layers, 0.0, 32.0)
