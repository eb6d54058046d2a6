"""Masks of spatial blocks on PyTorch tensors are those of NumPy arrays, in graphs of torch.compile too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuda_graphs import captured  # noqa: E402

from sparsegen import masks  # noqa: E402
from sparsegen.masks import Reach  # noqa: E402

SCORES = np.random.default_rng(0).standard_normal((2, 19, 21)).astype(np.float32)
LIVE = np.random.default_rng(1).random((2, 5, 6)) < 0.2
BLOCKS = np.array([[0, 1, 2], [1, 4, 5], [1, 4, 5], [-1, -1, -1], [0, 5, 0]])
BOXES = np.array([[0, 1, 2, 6, 7], [1, 10, 15, 30, 22], [1, 3, 3, 3, 9]])
REACH = Reach((3, 5), stride=(2, 1), padding=(1, 3), dilation=(1, 2))
CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "max": (lambda x: masks.reduce_mask(x, (4, 4), 1.3), SCORES),
    "mean": (lambda x: masks.reduce_mask(x, (4, 5), 0.1, "mean"), SCORES),
    "difference": (lambda x: masks.from_difference(x, x * 0, (4, 4), 1.5), SCORES),
    "blocks": (lambda x: masks.from_blocks(x, (2, 5, 6)), BLOCKS),
    "boxes": (lambda x: masks.from_boxes(x, (2, 19, 21), (4, 4)), BOXES),
    "dilation": (lambda x: masks.dilate(x, (19, 21), (4, 4), REACH), LIVE),
    "pyramid": (lambda x: masks.pyramid(x, (19, 21), (4, 4), [REACH, REACH])[1][0], LIVE),
    "words": (lambda x: masks.words_of(x), np.random.default_rng(2).random((2, 3, 130)) < 0.5),
}


@pytest.mark.parametrize("name", CALLS)
def test_tensors(name: str) -> None:
    call, given = CALLS[name]
    expected, found = call(given), call(torch.from_numpy(given))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy().view(expected.dtype), expected)


@pytest.mark.parametrize("name", CALLS)
def test_compiled_whole(name: str) -> None:
    call, given = CALLS[name]
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    assert torch.equal(compiled(torch.from_numpy(given)), call(torch.from_numpy(given)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_in_a_cuda_graph(name: str) -> None:
    call, given = CALLS[name]
    expected, x = call(given), torch.from_numpy(given).cuda()
    static = torch.zeros_like(x)
    graph, found = captured(lambda: call(static))
    static.copy_(x)
    graph.replay()
    np.testing.assert_array_equal(found.cpu().numpy().view(expected.dtype), expected)
