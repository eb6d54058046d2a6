"""The baselines through PyTorch and our steps of attention, on tiny rows on the CPU, each result checked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsegen.backends import emulator_device, open_executor
from sparsegen.bench.baseline.baseline import UnsupportedError
from sparsegen.bench.baseline.inputs import Inputs, InputsMaker
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines import baselines
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Blobs, Drawn, Independent, Pattern, RadixNet, SlidingWindow
from sparsegen.bench.run.reference import RowReference, bound_for
from sparsegen.matrix.features import Features
from sparsegen.operators import (
    Activation,
    Block,
    BlockAttentionProblem,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    FactorType,
    Layout,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    PagedAttentionProblem,
    PageSize,
    Problem,
    Readout,
    SddmmProblem,
    SddProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SparseNetworkProblem,
    SpmmProblem,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
)
from sparsegen.settings import Settings

HALF = DType.FLOAT16
ATTENTION, MASK = SparseAttentionProblem(32, 32, 16, HALF, batch=2), SlidingWindow(32, 32, 8, 2)
BLOCKS = BlockAttentionProblem.of(
    (48, 64), kv_heads=2, group=2, head_dim=16, dtype=HALF, block="16x16", masks="items_and_heads", batch=2
)
SOFTMAX, RANDOM = SoftmaxProblem(24, 32, HALF), Independent(24, 32, 0.5)
NETWORK = SparseNetworkProblem(6 * 64, 67, 40, HALF, Activation.DYING_RELU, Readout.TOTALS)
LAYERS = RadixNet(6 * 64, 67, 64, 6)
CONV = SpmmProblem(24, 32, 49, epilogue=Epilogue.BIAS_RELU)
MASKED = MaskedConv2dProblem.of(
    (19, 22), channels=4, filters=6, mask_block="4x5", padding="2x1", epilogue="bias", batch=2
)
NARROW = DsdProblem(
    64, 128, 48, DType.BFLOAT16, Block(32, 32), w_layout=Layout.COLUMN, factor_type=FactorType.E4M3
)
NARROW_SDD = SddProblem(64, 128, 48, block=Block(32, 32), factor_type=FactorType.E5M2_E4M3)
PAGES = PagedAttentionProblem(3, 70, 2, 2, 16, HALF, PageSize(16), batch=2)
PRODUCT = DsdProblem(64, 128, 128, HALF, Block(16, 32))
WEIGHTS = DsdTransposedProblem(64, 128, 128, HALF, Block(32, 16))
SAMPLED = SddProblem(64, 128, 128, HALF, Block(32, 16))
MASKED_WEIGHTS = MaskedConv2dWeightsProblem.of(
    (19, 22), channels=4, filters=6, images=2, mask_block="4x5", padding="2x1", stride="2x1", groups=2
)
STRIDED = replace(MASKED, stride="2x1", dilation="1x2", groups=2, rest="kept", layout="nchw", epilogue="none")


def made(folder: Path, problem: Problem, pattern: Pattern) -> Inputs:
    case = Case("t", "t", problem, (problem.dtype,), pattern, "")
    return InputsMaker(folder).make(case, problem.dtype)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    ("name", "problem", "pattern", "implementations"),
    [
        ("copy", SOFTMAX, RANDOM, 1),
        ("copy", SoftmaxBackwardProblem(24, 32), RANDOM, 1),
        ("torch-gather", SubmanifoldConv3dProblem(40, 8, 16, HALF), Drawn(40, 8), 1),
        ("torch-gather", SubmanifoldConv3dWeightsProblem(40, 8, 16), Drawn(40, 8), 1),
        ("torch-softmax", SOFTMAX, RANDOM, 1),
        ("torch-softmax", SoftmaxProblem(24, 32), RANDOM, 1),
        ("torch-sdpa", ATTENTION, MASK, 1),  # of these backends the CPU has this one
        ("torch-sdpa-causal", ATTENTION, MASK, 2),
        ("torch-flex", ATTENTION, MASK, 1),
        ("sparsegen-steps", ATTENTION, MASK, 1),
        ("sparsegen-steps", SparseAttentionProblem(32, 32, 16), MASK, 1),
        ("torch-csr-layers", replace(NETWORK, dtype=DType.FLOAT32), LAYERS, 1),
        ("torch-csr-layers", replace(NETWORK, dtype=DType.FLOAT32, readout=Readout.NEURONS), LAYERS, 1),
        ("csr-network", replace(NETWORK, dtype=DType.FLOAT32), LAYERS, 1),
        (
            "csr-network",
            replace(NETWORK, dtype=DType.FLOAT32, activation=Activation.NONE, readout=Readout.NEURONS),
            replace(LAYERS, alive=True),
            1,
        ),
        ("cublas-layers", NETWORK, LAYERS, 1),
        ("cublas-layers", replace(NETWORK, activation=Activation.NONE), replace(LAYERS, alive=True), 1),
        ("torch-scaled-mm", NARROW, Drawn(64, 128), 2),
        ("torch-scaled-mm", NARROW_SDD, Drawn(64, 128), 2),
        ("torch-scaled-mm", replace(NARROW_SDD, rest="kept", dtype=HALF), Drawn(64, 128), 2),
        ("torch-dropout", PRODUCT, Drawn(64, 128), 1),
        ("torch-dropout", replace(PRODUCT, dtype=DType.BFLOAT16, w_layout=Layout.COLUMN), Drawn(64, 128), 1),
        ("torch-dropout", SAMPLED, Drawn(64, 128), 1),
        ("torch-dropout", replace(SAMPLED, rest="kept", w_layout=Layout.COLUMN), Drawn(64, 128), 1),
        ("triton-blocks", PRODUCT, Drawn(64, 128), 2),
        ("triton-blocks", replace(PRODUCT, w_layout=Layout.COLUMN), Drawn(64, 128), 2),
        ("triton-blocks", WEIGHTS, Drawn(64, 128), 2),
        ("triton-blocks", replace(WEIGHTS, y_layout=Layout.COLUMN), Drawn(64, 128), 2),
        ("triton-blocks", SAMPLED, Drawn(64, 128), 2),
        ("triton-blocks", replace(SAMPLED, w_layout=Layout.COLUMN), Drawn(64, 128), 2),
        ("torch-flex-blocks", BLOCKS, Drawn(48, 64), 1),
        ("torch-flex-blocks", replace(BLOCKS, span="causal:20+5", order="tokens"), Drawn(48, 64), 1),
        ("torch-flex-blocks", replace(BLOCKS, masks="nobody", batch=1), Drawn(48, 64), 1),
        ("torch-sdpa-whole", BLOCKS, Drawn(48, 64), 2),  # of these backends the CPU has two
        ("torch-sdpa-whole", replace(BLOCKS, keys=48, span="causal", order="tokens"), Drawn(48, 48), 2),
        ("torch-sdpa-pages", PAGES, Drawn(3, 70), 2),
        ("torch-sdpa-pages", replace(PAGES, chosen="all", order="heads", batch=1), Drawn(3, 70), 2),
        ("torch-linear", CONV, RANDOM, 3),
        ("torch-linear", SpmmProblem(24, 32, 48, HALF, Layout.COLUMN, Epilogue.BIAS_RELU), RANDOM, 2),
        ("torch-linear", SpmmProblem(24, 32, 48, epilogue=Epilogue.BIAS), RANDOM, 2),
        ("torch-conv2d", MASKED, Drawn(19, 22), 1),
        ("torch-conv2d", replace(STRIDED, mask_of="input"), Drawn(19, 22), 1),
        ("torch-conv2d", replace(STRIDED, mask_of="any_input"), Drawn(19, 22), 1),
        ("torch-conv2d-weights", MASKED_WEIGHTS, Drawn(19, 22), 1),
        ("torch-conv2d-weights", MASKED_WEIGHTS, Blobs(19, 22, spacing=2), 1),
        ("torch-gather-conv", MASKED, Drawn(19, 22), 1),
        ("torch-gather-conv", STRIDED, Drawn(19, 22), 1),
        ("kernel-gather-conv", MASKED, Drawn(19, 22), 1),
        ("kernel-gather-conv", replace(STRIDED, layout="nhwc"), Drawn(19, 22), 1),
        (
            "kernel-gather-conv",
            replace(MASKED, channels=8, filters=16, dtype=HALF),
            Blobs(19, 22, spacing=2),
            1,
        ),
        ("torch-im2col", MASKED, Drawn(19, 22), 1),
        ("torch-im2col", replace(STRIDED, groups=1), Drawn(19, 22), 1),
    ],
    ids=str,
)
def test_every_way_is_right(
    name: str,
    problem: Problem,
    pattern: Pattern,
    implementations: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    emulator_settings: Settings,
) -> None:
    if name not in ("sparsegen-steps", "csr-network"):
        pytest.importorskip("torch")
    if name == "triton-blocks":
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # before its kernels are first imported
        pytest.importorskip("triton")
        if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
            pytest.skip("Triton's interpreter makes numbers of arrays, which this NumPy refuses")
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    inputs, baseline = made(tmp_path, problem, pattern), baselines()[name]
    executor = open_executor(emulator_device())
    assert baseline.refusal(problem, inputs.features) is None
    baseline.open(executor)
    bound = bound_for(baseline.kind, baseline.arithmetic(problem), problem.dtype)
    bench = Workbench(inputs, executor, str(tmp_path / "t.db"))  # holds the operands
    reference = RowReference(inputs, executor)
    found = list(baseline.implementations(bench))
    assert len({implementation.detail for implementation in found}) == len(found) == implementations
    for implementation in found:
        implementation.clear()

        def error(implementation=implementation):  # type: ignore[no-untyped-def]
            if implementation.own_error is not None:
                return implementation.own_error()
            return reference.worst_error(implementation.read(), bound)

        assert not error() <= 1, "what was cleared is wrong"
        implementation.run()
        assert error() <= 1, implementation.detail


def test_what_attention_in_steps_is_made_of() -> None:
    """These are tuned where its rows are: what `prepare_attention` looks up."""
    scores, softmax, product = baselines()["sparsegen-steps"].parts(ATTENTION, 100)
    assert scores == SddmmProblem(32, 32, 16, HALF, batch=2)
    assert softmax == SoftmaxProblem(32, 32, HALF, batch=2)
    assert isinstance(product, SpmmProblem) and (product.n, product.batch, product.value_sets) == (16, 2, 2)


def test_padding_that_takes_too_much() -> None:
    wide = SoftmaxProblem(1 << 20, 1 << 20)
    few = Features.of(Independent(64, 64, 0.5).matrix())
    long = replace(few, m=1 << 20, row_max=1 << 12)
    refusal = baselines()["torch-softmax"].refusal(wide, long)
    assert refusal == "the padded rows would take 16 GiB"


def test_a_backend_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from sparsegen.bench.baselines._attention import Heads
    from sparsegen.bench.baselines.torch_sdpa import Asked, backend_implementations

    inputs = made(tmp_path, ATTENTION, MASK)
    heads = Heads(Workbench(inputs, open_executor(emulator_device())))
    with pytest.raises(UnsupportedError, match="cudnn: "):
        list(backend_implementations(Asked(heads, {"is_causal": True}), ("CUDNN_ATTENTION",)))


def test_flex_attention_is_compiled_for_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from sparsegen.bench.baselines.torch_flex import compiled

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))

    def add_one_if_compiled(x: Any) -> Any:
        return x + int(torch.compiler.is_compiling())

    for row in range(torch._dynamo.config.recompile_limit + 2):
        assert compiled(add_one_if_compiled)(torch.zeros(row + 1)).tolist() == [1] * (row + 1)


@pytest.mark.parametrize(
    ("problem", "refusal"),
    [
        (replace(NARROW, factor_type="same"), "it computes products with masks of 8-bit factors"),
        (replace(NARROW, factor_type="e5m2"), "cuBLASLt multiplies no two e5m2 factors"),
        (replace(NARROW, w_layout="row"), "cuBLASLt takes 8-bit factors along the contraction"),
        (replace(NARROW, n=40), "it takes sizes of whole 16 elements"),
    ],
    ids=str,
)
def test_8bit_products_that_cublaslt_has_not(problem: DsdProblem, refusal: str) -> None:
    features = problem.features(problem.without_pattern)
    assert baselines()["torch-scaled-mm"].why_not(problem, features) == refusal
    same = replace(problem, factor_type="e4m3")
    assert baselines()["cublas"].why_not(same, features) == "cublasGemmEx has no 8-bit factors"


def test_live_blocks_as_block_compressed_sparse_rows() -> None:
    torch = pytest.importorskip("torch")
    from sparsegen.bench.baselines.torch_masked_bsr import in_blocks

    live = torch.tensor([[True, False, True], [False, False, False], [False, True, True]])
    dense = torch.randn(6, 12).t().contiguous().t()  # which need not lie by rows
    found = in_blocks(dense, live, (2, 4))
    masked = torch.where(live.repeat_interleave(2, 0).repeat_interleave(4, 1), dense, 0)
    assert found._nnz() == 4 and torch.equal(found.to_dense(), masked)


@pytest.mark.parametrize(
    ("name", "problem", "refusal"),
    [
        ("torch-dropout", WEIGHTS, "the gradient by the weights reads what dropout has left: cublas"),
        ("torch-masked-bsr", replace(PRODUCT, dtype=DType.FLOAT32), "it takes float16 and bfloat16"),
        ("torch-masked-bsr", replace(SAMPLED, m=72), "it takes sizes of whole blocks"),
        ("torch-masked-bsr", NARROW, "torch-scaled-mm stands beside 8-bit factors"),
        ("triton-blocks", replace(SAMPLED, batch=2), "a call of it computes one batch element"),
        ("triton-blocks", CONV, "it stands beside products with masks"),
        (
            "triton-blocks",
            replace(PRODUCT, m=256, block=Block(256, 32)),
            "blocks up to 128 × 128, and n of whole 64",
        ),
        ("cublaslt", NARROW, "torch-scaled-mm calls it for 8-bit factors"),
    ],
    ids=str,
)
def test_masked_products_that_others_have_not(name: str, problem: Problem, refusal: str) -> None:
    assert baselines()[name].why_not(problem, Features.of(RANDOM.matrix())) == refusal
