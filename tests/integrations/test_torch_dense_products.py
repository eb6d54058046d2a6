"""Dense products in the place of sparse ones: the same results, one full weight, gradients and new values."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from call_costs import steps_of  # noqa: E402
from torch import nn  # noqa: E402

from sparsegen.dispatch.chosen import Choice  # noqa: E402
from sparsegen.errors import ConfigError, DeviceUnavailableError, OperandError  # noqa: E402
from sparsegen.integrations.torch import SparseLinear, SparsePattern  # noqa: E402
from sparsegen.integrations.torch.calls import dense_products  # noqa: E402
from sparsegen.integrations.torch.calls.dense_products import DensePrepared, SharedWeight  # noqa: E402
from sparsegen.integrations.torch.pattern.pattern import Product  # noqa: E402
from sparsegen.measure import race  # noqa: E402
from sparsegen.plan.binding import BoundVariant  # noqa: E402
from sparsegen.plan.dense_weight import DenseWeight  # noqa: E402

OUT, IN = 24, 40


@pytest.fixture(autouse=True)
def on_the_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    torch.manual_seed(1)


def layer(run_dense: str, **kind: Any) -> SparseLinear:
    return SparseLinear.from_dense(nn.Linear(IN, OUT, **kind), sparsity=0.75, run_dense=run_dense)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_and_gradients_are_those_of_the_layer_with_zeros(dtype: str) -> None:
    sparse = layer("always", dtype=getattr(torch, dtype))
    same = sparse.to_dense()
    x = torch.randn(2, 3, IN, dtype=same.weight.dtype)
    y = sparse(x.requires_grad_())
    torch.testing.assert_close(y, same(x))
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(dx, torch.autograd.grad(same(x).square().sum(), x)[0])
    dense = {key[0] for key, p in sparse.pattern._prepared.items() if isinstance(p, DensePrepared)}
    assert dense == {Product.FORWARD, Product.TRANSPOSED}
    sparse(x).sum().backward()
    assert sparse.values.grad.shape == sparse.values.shape


def test_one_full_weight_serves_all_products_and_follows_the_values() -> None:
    sparse = layer("always").requires_grad_(False)
    for tokens in (1, 2, 5):
        sparse(torch.randn(tokens, IN))
    weights = {id(p.weight) for p in sparse.pattern._prepared.values()}
    assert len(weights) == 1 and sparse.pattern.dense_bytes == 4 * OUT * IN
    assert f"full weight of {4 * OUT * IN} bytes" in repr(sparse)
    x = torch.randn(2, IN)
    before = sparse(x)
    sparse.values.mul_(2)
    torch.testing.assert_close(sparse(x) - sparse.bias, 2 * (before - sparse.bias))
    with torch.inference_mode():
        torch.testing.assert_close(sparse(x), sparse.to_dense()(x))
    sparse.values.zero_()
    torch.testing.assert_close(sparse(x), sparse.bias.expand(2, OUT), msg="after a call in inference mode")


def test_training_steps_take_effect() -> None:
    sparse = layer("always")
    optimizer = torch.optim.SGD(sparse.parameters(), lr=0.1)
    x = torch.randn(3, IN)
    for _ in range(2):
        optimizer.zero_grad()
        sparse(x).square().sum().backward()
        optimizer.step()
        torch.testing.assert_close(sparse(x), sparse.to_dense()(x))


def test_the_full_weight_goes_with_the_last_product() -> None:
    sparse = layer("always")
    sparse(torch.randn(2, IN))
    assert sparse.pattern.dense_bytes
    sparse.pattern.forget()
    gc.collect()
    assert sparse.pattern.dense_bytes == 0


def test_the_word_goes_with_the_pattern() -> None:
    never = layer("never")
    never(torch.randn(2, IN))
    assert not any(isinstance(p, DensePrepared) for p in never.pattern._prepared.values())
    for copied in (copy.deepcopy(never), pickle.loads(pickle.dumps(never))):
        assert copied.pattern.run_dense == "never"
    other = layer("always")
    other.load_state_dict(never.state_dict())
    assert other.pattern.run_dense == "always" and other.pattern.nnz == never.pattern.nnz
    with pytest.raises(ConfigError, match="auto, never, always"):
        SparsePattern(torch.ones(2, 2), run_dense="often")


def test_prepared_layers_run_dense_on_request() -> None:
    sparse = layer("auto")
    prepared = sparse.prepared(6, dense="always")
    x = torch.randn(2, 3, IN)
    torch.testing.assert_close(prepared(x), sparse.to_dense()(x).detach())
    assert "dense, " in repr(prepared) and prepared.nbytes == 4 * OUT * IN
    assert sparse.prepared(6).operator.variant is not None, (
        "nothing is known of dense products on the emulator"
    )


def test_a_call_like_one_before_takes_few_steps_and_is_checked_all_the_same() -> None:
    sparse, dense = layer("always").requires_grad_(False), nn.Linear(IN, OUT).requires_grad_(False)
    x = torch.randn(2, 3, IN)
    with torch.inference_mode():
        ours, theirs = steps_of(lambda: sparse(x)), steps_of(lambda: dense(x))
        assert ours.python.total() - theirs.python.total() <= 5, ours
        assert ours.c.total() - theirs.c.total() <= 22, ours
        torch.testing.assert_close(sparse(x), sparse.to_dense()(x))
        sparse.bias.data = torch.zeros(OUT + 1)
        with pytest.raises(OperandError, match=f"bias: expected shape {OUT}"):
            sparse(x)


@pytest.fixture
def filled_by_launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Full weights get values that train by launches, as on a GPU; their streams."""
    made, launched = SharedWeight.__init__, []
    launch = SharedWeight._launch_fill

    def init(self: SharedWeight, *given: Any) -> None:
        made(self, *given)
        self._may_fill = True

    def noted(self: SharedWeight, address: int, stream: int) -> None:
        launched.append(stream)
        launch(self, address, stream)

    monkeypatch.setattr(SharedWeight, "__init__", init)
    monkeypatch.setattr(SharedWeight, "_launch_fill", noted)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return launched


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_that_train_are_brought_by_a_launch_alone(filled_by_launches: list[int], dtype: str) -> None:
    sparse = layer("always", dtype=getattr(torch, dtype))
    for call in range(5):
        x = torch.randn(2, 3, IN, dtype=sparse.values.dtype, requires_grad=True)
        y, same = sparse(x), sparse.to_dense()
        torch.testing.assert_close(y, same(x))
        (dx,) = torch.autograd.grad(y.square().sum(), x)
        torch.testing.assert_close(dx, torch.autograd.grad(same(x).square().sum(), x)[0])
        assert len(filled_by_launches) == max(0, 2 * call), (
            "forwards and backwards, but for the first of each"
        )
        sparse.values.data.mul_(1.5)  # which PyTorch does not count
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.to_dense()(x))
    sparse.requires_grad_(False)
    x = x.detach()
    sparse(x)
    before = len(filled_by_launches)
    torch.testing.assert_close(sparse(x), sparse.to_dense()(x))
    assert len(filled_by_launches) == before, "frozen values lie there"


def test_without_a_compiler_pytorch_brings_values(
    filled_by_launches: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*given: Any) -> None:
        raise DeviceUnavailableError("no compiler")

    monkeypatch.setattr(DenseWeight, "fill", none)
    sparse, x = layer("always"), torch.randn(3, IN)
    for _ in range(3):
        torch.testing.assert_close(sparse(x), sparse.to_dense()(x))
        sparse.values.data.mul_(2)
    assert not filled_by_launches and caplog.text.count("no compiler") == 1


def test_no_kernel_is_loaded_while_a_graph_is_captured(
    filled_by_launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse, x = layer("always"), torch.randn(3, IN)
    monkeypatch.setattr(dense_products, "is_capturing", lambda tensor: True)
    for _ in range(3):
        torch.testing.assert_close(sparse(x), sparse.to_dense()(x))
    assert not filled_by_launches
    monkeypatch.undo()


def test_steps_of_a_call_that_trains(filled_by_launches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, dense, x = layer("always"), nn.Linear(IN, OUT), torch.randn(3, IN)
    monkeypatch.setattr(SharedWeight, "_launch_fill", lambda self, address, stream: None)
    ours, theirs = steps_of(lambda: sparse(x)), steps_of(lambda: dense(x))
    assert ours.python.total() - theirs.python.total() <= 11, ours
    assert ours.c.total() - theirs.c.total() <= 26, ours


def alive() -> Counter[type]:
    """Counts the weights of either kind."""
    gc.collect()
    return Counter(type(o) for o in gc.get_objects() if type(o) in (DenseWeight, BoundVariant))


def test_what_lost_a_probe_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No full weight is left if sparse won; the packed one goes if dense won."""
    for times, won in (((1.0, 9.0), "sparse"), ((9.0, 1.0), "dense")):
        monkeypatch.setattr(race, "pair_us", lambda *given, times=times: times)
        monkeypatch.setattr(Choice, "is_open", property(lambda self: True))
        before = alive()
        sparse = layer("auto").requires_grad_(False)
        sparse(torch.randn(6, IN))
        [prepared] = sparse.pattern._prepared.values()
        assert isinstance(prepared, DensePrepared) == (won == "dense")
        assert bool(sparse.pattern.dense_bytes) == (won == "dense")
        assert alive() - before == {DenseWeight if won == "dense" else BoundVariant: 1}
        del prepared, sparse
