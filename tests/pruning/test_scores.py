"""Scores beside the l2 norm: sums, maxima and Taylor's, against definitions written out; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sparsegen
from sparsegen.cli.main import cli
from sparsegen.errors import PruningError

RNG = np.random.default_rng(3)
WEIGHTS = {
    "a": RNG.normal(size=(12, 20)).astype(np.float32),
    "b": RNG.standard_t(2, (8, 16)).astype(np.float32),
}
SLOPES = {name: RNG.normal(size=w.shape).astype(np.float32) for name, w in WEIGHTS.items()}
DEFINED = {
    "l2": lambda x, axis: np.sqrt((x.astype(np.float64) ** 2).sum(axis)),
    "sum": lambda x, axis: x.astype(np.float64).sum(axis),
    "max": lambda x, axis: x.max(axis),
}


def columns_kept(scores: dict[str, Any], rows: dict[str, int], keep: int) -> dict[str, int]:
    """Number of columns of each sorted layer that stay: the best of all layers, as near to ``keep`` weights as whole
    columns allow.
    """
    ranked = sorted(((s, name) for name, of in scores.items() for s in of), key=lambda one: -one[0])
    heads = [dict.fromkeys(scores, 0)]
    for _, name in ranked:
        heads.append(heads[-1] | {name: heads[-1][name] + 1})
    return min(heads, key=lambda head: abs(sum(head[name] * rows[name] for name in head) - keep))


@pytest.mark.parametrize("sparsity", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("score", ["l2", "sum", "max", "taylor"])
def test_uniform_columns_are_ranked_by_the_score(score: str, sparsity: float) -> None:
    by_slope = score == "taylor"
    found = sparsegen.prune(
        WEIGHTS, pattern="uniform", sparsity=sparsity, score=score, gradients=SLOPES if by_slope else None
    ).weights
    worth = {
        n: np.abs(w.astype(np.float64) * SLOPES[n]) if by_slope else np.abs(w) for n, w in WEIGHTS.items()
    }
    of_columns = DEFINED["l2" if by_slope else score]
    scores = {n: of_columns(-np.sort(-x, axis=1), 0) for n, x in worth.items()}
    total = sum(w.size for w in WEIGHTS.values())
    kept = columns_kept(scores, {n: len(w) for n, w in WEIGHTS.items()}, round(total * (1 - sparsity)))
    for name, weight in WEIGHTS.items():
        mask = np.zeros(weight.shape, bool)
        np.put_along_axis(mask, np.argsort(-worth[name], axis=1)[:, : kept[name]], True, axis=1)
        assert np.array_equal(found[name], np.where(mask, weight, 0))


@pytest.mark.parametrize("score", ["l2", "sum", "max"])
def test_blocks_are_ranked_by_the_score(score: str) -> None:
    weight = WEIGHTS["b"]
    found = sparsegen.prune(weight, pattern="block", block=(4, 4), sparsity=0.75, score=score).weights
    blocks = np.abs(weight).reshape(2, 4, 4, 4).transpose(0, 2, 1, 3).reshape(8, 16)
    best = np.sort(np.argsort(-DEFINED[score](blocks, 1))[:2])
    live = (found.reshape(2, 4, 4, 4).transpose(0, 2, 1, 3).reshape(8, 16) != 0).any(1)
    assert np.array_equal(np.flatnonzero(live), best)


def test_scores_differ() -> None:
    found = [
        sparsegen.prune(WEIGHTS, pattern="blocked-uniform", block=(2, 2), sparsity=0.7, score=score).weights
        for score in DEFINED
    ]
    assert len({tuple(w.tobytes() for w in weights.values()) for weights in found}) == len(DEFINED)


def test_taylor_keeps_what_the_loss_depends_on() -> None:
    found = sparsegen.prune(
        WEIGHTS, pattern="unstructured", sparsity=0.5, scope="layer", score="taylor", gradients=SLOPES
    )
    for name, weight in WEIGHTS.items():
        worth = np.abs(weight.astype(np.float64) * SLOPES[name])
        assert np.array_equal(found.weights[name] != 0, worth > np.median(worth))
    assert found.report.to_dict()["score"] == "taylor"


def test_taylor_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    found = sparsegen.prune(
        {name: torch.from_numpy(w) for name, w in WEIGHTS.items()},
        sparsity=0.5,
        score="taylor",
        gradients={name: torch.from_numpy(w) for name, w in SLOPES.items()},
    )
    same = sparsegen.prune(WEIGHTS, sparsity=0.5, score="taylor", gradients=SLOPES)
    assert all(np.array_equal(found.weights[name].numpy(), same.weights[name]) for name in WEIGHTS)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"score": "taylor"}, "give gradients"),
        ({"score": "max", "gradients": SLOPES}, "needs no gradients"),
        ({"score": "taylor", "gradients": {"a": SLOPES["a"]}}, "b: expected a gradient of its shape"),
        (
            {"score": "taylor", "gradients": SLOPES | {"b": SLOPES["a"]}},
            "b: expected a gradient of its shape",
        ),
        ({"score": "sum", "pattern": "unstructured"}, "single weights"),
        ({"score": "l3"}, "l3"),
    ],
)
def test_what_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(PruningError, match=match):
        sparsegen.prune(WEIGHTS, sparsity=0.5, **given)


def test_the_command_line(tmp_path: Path) -> None:
    weights, slopes, out = (str(tmp_path / name) for name in ("w.npz", "g.npz", "out.npz"))
    np.savez(weights, **WEIGHTS)
    np.savez(slopes, **SLOPES)
    call = ["prune", weights, "--pattern", "uniform", "--sparsity", "0.5", "--score", "taylor", "-o", out]
    assert CliRunner().invoke(cli, call).exit_code != 0
    done = CliRunner().invoke(cli, [*call, "--gradients", slopes])
    assert done.exit_code == 0 and "uniform by taylor" in done.output
    same = sparsegen.prune(WEIGHTS, sparsity=0.5, score="taylor", gradients=SLOPES).weights
    with np.load(out) as found:
        assert all(np.array_equal(found[name], same[name]) for name in WEIGHTS)
