"""A launch brings values into a full weight as PyTorch's operations do."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest

torch = pytest.importorskip("torch")

from sparsegen import backends  # noqa: E402
from sparsegen.backends.executor import Executor  # noqa: E402
from sparsegen.matrix.generators import random_uniform  # noqa: E402
from sparsegen.plan.dense_weight import DenseWeight  # noqa: E402


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    opened = backends.open_executor(backends.find_device(request.param))
    yield opened
    opened.close()


def weight_of(
    executor: Executor, shape: tuple[int, int], density: float, dtype: str, *, by_columns: bool = False
) -> tuple[DenseWeight, int]:
    pattern = random_uniform(*shape, density, 0)
    place = torch.device("cuda" if executor.device.backend == "cuda" else "cpu")
    return DenseWeight(pattern, getattr(torch, dtype), place, by_columns=by_columns), pattern.nnz


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "density"), [((37, 53), 0.3), ((36, 53), 0.3), ((5, 1), 1.0), ((4, 4), 0.0)], ids=str
)
def test_as_by_operations(executor: Executor, dtype: str, shape: tuple[int, int], density: float) -> None:
    rows, _ = weight_of(executor, shape, density, dtype)
    weight, nnz = weight_of(executor, shape, density, dtype, by_columns=True)
    assert rows.tensor.is_contiguous() and weight.tensor.is_contiguous() == (shape != (36, 53))
    values = torch.randn(nnz).to(weight.tensor)
    rows.update(values)
    weight.update(values, keeps_places=True)
    expected = weight.tensor.clone()
    assert torch.equal(expected, rows.tensor)
    weight.update(torch.zeros_like(values), keeps_places=True)
    assert not weight.tensor.any()
    fill = weight.fill(executor)
    assert fill is not None
    fill.bound()(0, values.data_ptr())
    executor.synchronize()
    assert torch.equal(weight.tensor, expected)
    doubled = 2 * values

    def of_another_thread() -> None:
        fill.bound()(0, doubled.data_ptr())
        executor.synchronize()

    thread = Thread(target=of_another_thread)
    thread.start()
    thread.join()
    assert torch.equal(weight.tensor, 2 * expected)


def test_only_where_places_are_kept_and_values_come_in_their_order(executor: Executor) -> None:
    weight, nnz = weight_of(executor, (8, 8), 0.5, "float32")
    weight.update(torch.ones(nnz))
    assert weight.fill(executor) is None
    weight.reorder(torch.arange(nnz).flip(0).numpy())
    weight.update(torch.ones(nnz), keeps_places=True)
    assert weight.fill(executor) is None
