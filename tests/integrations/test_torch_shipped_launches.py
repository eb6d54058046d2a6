"""Every family's products in one library: the operator of PyTorch gives the bits of the operator object."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sparsegen  # noqa: E402
from sparsegen import kernels  # noqa: E402
from sparsegen.backends.emulator import device as emulator_device  # noqa: E402
from sparsegen.errors import ConfigError, OperandError  # noqa: E402
from sparsegen.integrations.torch.shipping.libraries import write_library  # noqa: E402
from sparsegen.matrix.formats import CsrMatrix, as_csr  # noqa: E402
from sparsegen.operators import DType, Epilogue, Layout, SparseOperator, SpmmProblem  # noqa: E402
from sparsegen.plan.shipping.launches import ShippedLaunch, shipped_launch  # noqa: E402
from sparsegen.plan.shipping.library import namespace_of  # noqa: E402
from sparsegen.plan.variant_launcher import variant_launcher  # noqa: E402
from sparsegen.tuning.prediction.targets import find_target  # noqa: E402

M, K, N = 96, 128, 24
BIAS = np.linspace(-1, 1, M, dtype=np.float32)


def problem_of(family: Any) -> SpmmProblem | None:
    """A linear layer's product that a family computes."""
    for dtype in (DType.FLOAT32, DType.FLOAT16):
        problem = SpmmProblem(M, K, N, dtype, Layout.COLUMN, Epilogue.BIAS_RELU)
        if family.computes(problem):
            return problem
    return None


FAMILIES = {
    name: problem
    for name, family in kernels.families().items()
    if family.problem_type is SpmmProblem and (problem := problem_of(family)) is not None
}


def test_all_families_but_those_of_other_layouts_are_shipped() -> None:
    problem = SpmmProblem(M, K, N, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS_RELU)
    for name, family in kernels.families().items():
        if family.problem_type is SpmmProblem and name not in FAMILIES:
            assert any("row-major" in c.sentence for c in family.scope(problem) if not c.holds), name
    assert "tma_block_spmm" in FAMILIES


@pytest.fixture(scope="module")
def matrix() -> CsrMatrix:
    """One or two nonzeros of every four columns, as some families need."""
    rng = np.random.default_rng(0)
    order = rng.random((M, K // 4, 4)).argsort(-1)
    live = (order == 0) | ((order == 1) & (rng.random((M, K // 4, 1)) < 0.4))
    return as_csr(np.where(live, rng.uniform(-1, 1, live.shape), 0).reshape(M, K).astype(np.float32))


@pytest.fixture(scope="module")
def operators(matrix: CsrMatrix) -> dict[str, SparseOperator]:
    made = {}
    for name, problem in FAMILIES.items():
        kind = {"dtype": problem.dtype.value, "layout": "column", "epilogue": "bias_relu", "family": name}
        made[name] = sparsegen.prepare(matrix, n=N, device="emulator", dense="never", **kind)
    return made


@pytest.fixture(scope="module")
def shipped(
    operators: dict[str, SparseOperator], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, dict[str, ShippedLaunch]]]:
    """The operator of a library with all of them, and the launches by their families."""
    launches = {
        name: shipped_launch(variant_launcher(one), [emulator_device()]) for name, one in operators.items()
    }
    folder, listed = tmp_path_factory.mktemp("library"), list(launches.values())
    write_library(listed, folder)
    yield getattr(torch.ops, namespace_of(listed)).linear, launches


def operands(problem: SpmmProblem) -> tuple[Any, Any]:
    dtype = getattr(torch, problem.dtype.value)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, K, generator=generator).to(dtype), torch.from_numpy(BIAS).to(dtype)


@pytest.mark.parametrize("name", FAMILIES)
def test_bits_are_equal(name: str, shipped: Any, operators: dict[str, SparseOperator]) -> None:
    operator, launches = shipped
    x, bias = operands(FAMILIES[name])
    weight = torch.from_numpy(launches[name].packed)
    number = list(launches).index(name)
    for _ in range(2):  # scratch memory is as the first launch left it
        found = operator(x, weight, bias, number)
        wanted = operators[name](x.numpy(), bias=bias.numpy())
        assert np.array_equal(found.numpy(), np.asarray(wanted))


def test_pytorch_finds_no_fault_with_the_operator(shipped: Any) -> None:
    operator, launches = shipped
    name = next(iter(launches))
    x, bias = operands(FAMILIES[name])
    torch.library.opcheck(operator.default, (x, torch.from_numpy(launches[name].packed), bias, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, b: (x[1:], w, b, 0), "b: expected 24 × 128, as in the example inputs"),
        (lambda x, w, b: (x.double(), w, b, 0), "b: expected the dtype"),
        (lambda x, w, b: (x, w[1:], b, 0), "belong to another launch"),
        (lambda x, w, b: (x, w, None, 0), "another number of operands"),
        (lambda x, w, b: (x, w, b[1:], 0), "bias: expected 96"),
        (lambda x, w, b: (x, w, b, 1000), "there is none of this number"),
    ],
)
def test_other_operands_are_refused(change: Any, message: str, shipped: Any) -> None:
    operator, launches = shipped
    name = next(iter(launches))
    x, bias = operands(FAMILIES[name])
    with pytest.raises(RuntimeError, match=message):
        operator(*change(x, torch.from_numpy(launches[name].packed), bias))


def test_threads_may_call_at_the_same_time(shipped: Any) -> None:
    operator, launches = shipped
    name = next(name for name, launch in launches.items() if launch.scratch_bytes)
    x, bias = operands(FAMILIES[name])
    weight, number = torch.from_numpy(launches[name].packed), list(launches).index(name)
    inputs = [x * (i + 1) for i in range(8)]
    wanted = [operator(one, weight, bias, number) for one in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: operator(one, weight, bias, number), inputs))
    assert all(map(torch.equal, found, wanted))


def test_misaligned_and_strided_operands_are_copied(shipped: Any) -> None:
    operator, launches = shipped
    name = next(iter(launches))
    x, bias = operands(FAMILIES[name])
    weight = torch.from_numpy(launches[name].packed)
    wanted = operator(x, weight, bias, 0)
    shifted = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(N, K).copy_(x)
    assert torch.equal(operator(shifted, weight, bias, 0), wanted)
    assert torch.equal(operator(x.t().contiguous().t(), weight, bias, 0), wanted)


def test_tensor_maps_and_scratch_are_among_what_is_shipped(shipped: Any) -> None:
    launches = shipped[1]
    assert any(launch.maps for launch in launches.values())
    assert any(launch.scratch_bytes for launch in launches.values())
    for name, launch in launches.items():
        family = kernels.family(name)
        assert len(launch.arguments) == len(family.arguments(launch.problem)), name


def test_a_variant_that_another_gpu_cannot_run_is_refused(operators: dict[str, SparseOperator]) -> None:
    launcher = variant_launcher(operators["tma_block_spmm"])
    with pytest.raises(ConfigError, match=r"tma_block_spmm .* cannot run on NVIDIA A100"):
        shipped_launch(launcher, [emulator_device(), find_target("a100").device])


def test_results_that_are_written_in_parts_are_refused() -> None:
    operator = sparsegen.prepare(
        operator="sdd", m=64, k=64, n=64, block="16x16", dtype="float16", rest="kept", device="emulator"
    )
    with pytest.raises(OperandError, match="written in parts"):
        shipped_launch(variant_launcher(operator), [emulator_device()])
