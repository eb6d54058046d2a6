"""`prepare_attention` in the emulator: dense attention with a mask, whatever the heads, dtype and thread."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import sparsegen
from sparsegen import masks
from sparsegen.attention.steps import MOST_SCORES_BYTES, at_once
from sparsegen.backends.executor import Executor
from sparsegen.errors import ConfigError, MatrixError, NoVariantError, OperandError
from sparsegen.operators import DType

pytestmark = pytest.mark.usefixtures("on_emulator")
QUERIES, KEYS, HEAD_DIM, HEADS = 37, 52, 24, 3
TOLERANCE = {DType.FLOAT32: 2e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 4e-2}


@pytest.fixture(scope="module")
def mask() -> Any:
    found = scipy.sparse.random(QUERIES, KEYS, 0.2, format="lil", random_state=3, dtype=np.float32)
    found[[0, 5, QUERIES - 1]] = 0  # queries that see nothing
    return found.tocsr()


def operands(heads: int | None, dtype: str = "float32", seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    lead = () if heads is None else (heads,)
    kind = np.float16 if dtype == "float16" else np.float32
    return [rng.standard_normal((*lead, rows, HEAD_DIM)).astype(kind) for rows in (QUERIES, KEYS, KEYS)]


def dense_attention(mask: Any, q: Any, k: Any, v: Any, scale: float = HEAD_DIM**-0.5) -> Any:
    seen = sparsegen.as_csr(mask).with_values(np.ones(mask.nnz, np.float32)).to_scipy().toarray() != 0
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    exponents = np.where(seen, q @ np.swapaxes(k, -1, -2) * scale, -np.inf)
    largest = np.maximum(exponents.max(-1, keepdims=True), -1e300)
    powers = np.exp(exponents - largest)
    return powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300) @ v


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("heads", [None, 1, HEADS])
@pytest.mark.parametrize("implementation", sparsegen.AttentionImplementation)
def test_it_is_dense_attention_with_a_mask(
    mask: Any, heads: int | None, dtype: DType, implementation: sparsegen.AttentionImplementation
) -> None:
    if implementation is not sparsegen.AttentionImplementation.STEPS and dtype is DType.FLOAT32:
        pytest.skip("one launch takes elements of 16 bits")
    attention = sparsegen.prepare_attention(
        mask, heads=heads, head_dim=HEAD_DIM, dtype=dtype, implementation=implementation
    )
    q, k, v = operands(heads, dtype)
    out = attention(q, k, v)
    assert out.shape == q.shape and out.dtype == q.dtype
    np.testing.assert_allclose(out, dense_attention(mask, q, k, v), rtol=0, atol=TOLERANCE[dtype])
    assert not out[..., [0, 5, QUERIES - 1], :].any(), "no keys, no values"
    again = np.full_like(out, np.nan)
    assert attention(q, k, v, again) is again and np.array_equal(again, out)


def test_nothing_is_left_of_the_last_call(mask: Any) -> None:
    attention = sparsegen.prepare_attention(mask, heads=HEADS, head_dim=HEAD_DIM)
    for seed in range(3):
        given = operands(HEADS, seed=seed)
        np.testing.assert_allclose(attention(*given), dense_attention(mask, *given), rtol=0, atol=2e-5)


@pytest.mark.parametrize("scale", [0.5, 0.0, -1.0])
def test_another_scale(mask: Any, scale: float) -> None:
    attention = sparsegen.prepare_attention(mask, head_dim=HEAD_DIM, scale=scale)
    given = operands(None)
    np.testing.assert_allclose(attention(*given), dense_attention(mask, *given, scale), rtol=0, atol=5e-5)


def test_the_values_of_the_mask_play_no_part(mask: Any) -> None:
    other = mask.copy()
    other.data[:] = 0  # stored zeros are places too
    given = operands(None)
    one, same = (sparsegen.prepare_attention(m, head_dim=HEAD_DIM)(*given) for m in (mask, other))
    assert np.array_equal(one, same)


@pytest.mark.parametrize(
    "made", [masks.band(64, 8, 0.8), masks.sliding_window(64, 9, 2), masks.blocks(64, 8, 1, 1)]
)
def test_masks_of_the_generators(made: sparsegen.CsrMatrix) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 64, 16)).astype(np.float32) for _ in range(3))
    out = sparsegen.prepare_attention(made, heads=2, head_dim=16)(q, k, v)
    np.testing.assert_allclose(out, dense_attention(made, q, k, v, 0.25), rtol=0, atol=2e-5)
    np.testing.assert_allclose(out[:, 0], v[:, 0], rtol=1e-6, err_msg="the first query sees itself alone")


def test_threads_do_not_meet(mask: Any) -> None:
    attention = sparsegen.prepare_attention(mask, heads=HEADS, head_dim=HEAD_DIM)
    wrong: list[float] = []

    def work(seed: int) -> None:
        given = operands(HEADS, seed=seed)
        right = dense_attention(mask, *given)
        for _ in range(5):
            wrong.append(float(np.abs(attention(*given) - right).max()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 20 and max(wrong) < 2e-5


def test_bound_launches_of_two_threads_use_memory_of_their_own(mask: Any) -> None:
    """Runs both threads' launches as a GPU would at the same time: head by head in turns."""
    attention = sparsegen.prepare_attention(mask, head_dim=HEAD_DIM)
    bounds: list[Any] = [attention.bound()]
    thread = threading.Thread(target=lambda: bounds.append(attention.bound()))
    thread.start()
    thread.join()
    assert bounds[0] is attention.bound() and bounds[0] is not bounds[1]
    own = [buffer.address for buffer in attention._kept if hasattr(buffer, "address")]
    products = {
        id(part.packed.arrays[part.packed.values]) for part in attention._kept if hasattr(part, "packed")
    }
    assert len(set(own)) == 2 and len(products) == 2
    given = operands(None)
    executor = attention.executor
    results = []
    for bound in bounds:
        sent = [executor.upload(array) for array in given]
        q, k, v = (buffer.address for buffer in sent)
        bound(0, q, k, v, q)  # over the queries
        results.append(np.empty_like(given[0]))
        executor.download(sent[0], results[-1])
    assert np.array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], dense_attention(mask, *given), rtol=0, atol=2e-5)


def test_calls_allocate_nothing_after_a_threads_first(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = sparsegen.prepare_attention(mask, heads=HEADS, head_dim=HEAD_DIM)
    given = operands(HEADS)
    out = attention(*given)
    executor: Executor = attention.executor

    def refused(*_: Any) -> None:
        raise AssertionError("allocated")

    for name in ("allocate", "upload"):
        monkeypatch.setattr(executor, name, refused)
    assert np.array_equal(attention(*given, np.empty_like(out)), out)


def test_masks_without_nonzeros() -> None:
    for shape in ((0, 5), (5, 0), (4, 6)):
        empty = scipy.sparse.csr_array(shape, dtype=np.float32)
        attention = sparsegen.prepare_attention(empty, heads=2, head_dim=8)
        q, k = np.ones((2, shape[0], 8), np.float32), np.ones((2, shape[1], 8), np.float32)
        out = attention(q, k, k)
        assert out.shape == q.shape and not out.any()


def test_it_says_what_runs(mask: Any) -> None:
    attention = sparsegen.prepare_attention(mask, heads=HEADS, head_dim=HEAD_DIM)
    said = attention.explain()
    assert said.startswith("attention of 3 heads, 37 queries × 52 keys, head_dim 24, float32: 4 launches, ")
    assert list(attention.choices) == ["scores", "softmax", "product"]
    for choice in attention.choices.values():
        assert choice.family.name in said
    assert attention.work_bytes >= 2 * 4 * mask.nnz


def test_launches_do_not_depend_on_the_number_of_heads(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(6)
    right = dense_attention(mask, *given)
    launches: list[tuple[int, ...]] = []
    for heads_at_once in (None, 3, 1):
        attention = sparsegen.prepare_attention(mask, heads=6, head_dim=HEAD_DIM, heads_at_once=heads_at_once)
        assert attention.heads_at_once == (heads_at_once or 6)
        bind = attention.executor.bind

        def counting(kernel: Any, launch: Any, arguments: Any, bind: Any = bind) -> Any:
            bound = bind(kernel, launch, arguments)
            return lambda *a: launches.append(launch.grid) or bound(*a)

        launches.clear()
        with monkeypatch.context() as patched:
            patched.setattr(attention.executor, "bind", counting)
            np.testing.assert_allclose(attention(*given), right, rtol=0, atol=2e-5)
        turns = 6 // attention.heads_at_once
        assert len(launches) == 4 * turns and f"{4 * turns} launches" in attention.explain()
        assert ("at a time" in attention.explain()) == (turns > 1)
        packed = attention.work_bytes - attention.heads_at_once * 4 * mask.nnz
        assert packed % attention.heads_at_once == 0 and packed >= attention.heads_at_once * 4 * mask.nnz
    for wrong in (0, 4, 12):
        with pytest.raises(ConfigError, match=rf"heads_at_once = {wrong} is no divisor of 6 heads"):
            sparsegen.prepare_attention(mask, heads=6, head_dim=HEAD_DIM, heads_at_once=wrong)


def test_how_many_heads_run_at_once() -> None:
    limit = MOST_SCORES_BYTES
    assert at_once(8, 4) == at_once(8, limit // 8) == 8
    assert at_once(8, limit // 8 + 1) == at_once(8, limit // 4) == 4
    assert at_once(7, limit // 3) == at_once(1, limit) == at_once(8, 2 * limit) == at_once(0, 4) == 1
    assert at_once(12, limit // 5) == 4 and at_once(1 << 20, 0) == 1 << 15


def test_wrong_operands_are_refused(mask: Any) -> None:
    attention = sparsegen.prepare_attention(mask, heads=HEADS, head_dim=HEAD_DIM)
    q, k, v = operands(HEADS)
    with pytest.raises(OperandError, match="another array than v"):
        attention(q, k, v, v)
    for given, words in (
        ((q[0], k, v), r"q: expected shape \(3, 37, 24\), got \(37, 24\)"),
        ((q, q, v), r"k: expected shape \(3, 52, 24\), got \(3, 37, 24\)"),
        ((q, k, v[..., :8]), "v: expected shape"),
        ((q, k, v.astype(np.float16)), "v: expected dtype float32, got float16"),
        ((q, k, None), "v: expected an array of shape .*, got none"),
        (([1.0], k, v), r"got builtins\.list"),
        ((q, k, v, k), "out: expected shape"),
        ((q, k[:, ::-1], v), "k: expected a contiguous"),
    ):
        with pytest.raises(OperandError, match=words):
            attention(*given)


def test_wrong_options_are_refused(mask: Any) -> None:
    prepare: Any = sparsegen.prepare_attention
    for options, words in (
        ({"head_dim": 0}, "head_dim = 0 is below 1"),
        ({"head_dim": 8, "heads": 0}, "heads = 0 is below 1"),
        ({"head_dim": 8, "scale": float("nan")}, "scale = nan: expected a finite number"),
        ({"head_dim": 8, "dtype": "float64"}, "dtype = 'float64' is none of"),
        ({"head_dim": 8, "on_miss": "dense"}, "dense products are chosen by dense="),
    ):
        with pytest.raises(ConfigError, match=words):
            prepare(mask, **options)
    with pytest.raises(NoVariantError, match="nothing was measured for sddmm"):
        prepare(mask, head_dim=8, on_miss="error")
    with pytest.raises(MatrixError):
        prepare(np.ones((2, 3, 4), np.float32), head_dim=8)


def test_it_is_neither_pickled_nor_copied(mask: Any) -> None:
    for implementation, dtype in (("steps", "float32"), ("fused", "float16")):
        attention = sparsegen.prepare_attention(
            mask, head_dim=HEAD_DIM, implementation=implementation, dtype=dtype
        )
        with pytest.raises(OperandError, match="neither pickled nor copied: prepare it again"):
            copy.deepcopy(attention)
