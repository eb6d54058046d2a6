"""The zero-copy callers, against stand-ins for PyTorch and CuPy: what is checked, what is launched."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tuning_samples import H100

from sparsegen.backends.emulator import device as emulator_device
from sparsegen.backends.executor import Address
from sparsegen.errors import OperandError
from sparsegen.operators import (
    Epilogue,
    Layout,
    Problem,
    SddmmProblem,
    SoftmaxProblem,
    SpmmProblem,
    TensorSpec,
)
from sparsegen.operators.base.dtype import WordType
from sparsegen.plan.arrays import Call, Target, caller, empty_tensors, encoded

M, K, N, NNZ = 8, 16, 32, 11
PROBLEM = SpmmProblem(M, K, N)
CURRENT, RESULT = 77, 0x9000


class Variant:
    """Records its launches."""

    def __init__(self, problem: Problem) -> None:
        self.operands, self.result = problem.operands(NNZ), problem.result(NNZ)
        self.launched: list[tuple[int, ...]] = []
        self.launching = threading.Lock()

    def bound(self) -> Any:
        def launch(stream: int, *addresses: int) -> None:
            assert self.launching.locked(), "new values could come into the launch"
            self.launched.append((stream, *addresses))

        return launch


class TorchDevice(str):
    """The part of ``torch.device`` that the caller may use."""

    @property
    def type(self) -> str:
        return self.partition(":")[0]


class Tensor:
    """The part of ``torch.Tensor`` that the caller may use."""

    def __init__(
        self, shape: Any, dtype: str = "f32", device: int = 0, address: int = 0x1000, contiguous: bool = True
    ) -> None:
        self.shape, self.dtype, self.device, self.address = (
            shape,
            dtype,
            TorchDevice(f"cuda:{device}"),
            address,
        )
        self.index, self.contiguous = device, contiguous

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.index

    def is_contiguous(self) -> bool:
        return self.contiguous

    def stride(self) -> tuple[int, ...]:
        return (1, 7)


class Torch:
    """The part of ``torch`` that the caller may use; records the stream in force when a tensor was made."""

    Tensor = Tensor
    float32, float16, bfloat16 = "f32", "f16", "bf16"
    contiguous_format = "contiguous"

    def __init__(self) -> None:
        self.made_on: list[int] = []
        self.current = CURRENT
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: self.current)
        self.cuda = SimpleNamespace(
            stream=self.stream,
            ExternalStream=lambda handle, device: handle,
            current_stream=lambda index: SimpleNamespace(cuda_stream=self.current),
        )

    def device(self, kind: str, index: int) -> str:
        return f"{kind}:{index}"

    def inference_mode(self, on: bool) -> Any:
        return nullcontext()

    def empty(self, size: int, *, dtype: str, device: str) -> Any:
        storage = SimpleNamespace(resize_=lambda nbytes: None)
        return SimpleNamespace(expand=lambda shape: Tensor(shape, dtype), untyped_storage=lambda: storage)

    def empty_like(self, like: Tensor, *, memory_format: str) -> Tensor:
        assert memory_format == self.contiguous_format
        self.made_on.append(self.current)
        return Tensor(like.shape, like.dtype, address=RESULT)

    @contextmanager
    def stream(self, handle: int) -> Any:
        before, self.current = self.current, handle
        yield
        self.current = before


class CupyArray:
    """The part of ``cupy.ndarray`` that the caller may use."""

    def __init__(self, shape: Any, dtype: Any = "f4", device: int = 0, address: int = 0x1000) -> None:
        self.shape, self.dtype, self._c_contiguous, self.strides = shape, np.dtype(dtype), True, (1, 7)
        self.data = SimpleNamespace(ptr=address, device_id=device)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    module = Torch()
    monkeypatch.setitem(sys.modules, "torch", module)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    return module


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = SimpleNamespace(
        ndarray=CupyArray,
        empty=lambda shape, dtype: CupyArray(shape, dtype, address=RESULT),
        cuda=SimpleNamespace(
            get_current_stream=lambda: SimpleNamespace(ptr=CURRENT), ExternalStream=_nothing
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return module


@contextmanager
def _nothing(*_: Any) -> Any:
    yield


def call_for(kind: type, problem: Problem = PROBLEM, **fixed: Any) -> tuple[Call, Variant]:
    variant: Any = Variant(problem)
    return caller(kind, Target(variant, H100, fixed)), variant


def test_torch_runs_on_the_current_stream(torch: Torch) -> None:
    call, variant = call_for(Tensor)
    out = call((Tensor((K, N)),), None, None)
    assert out.shape == (M, N) and variant.launched == [(CURRENT, 0x1000, RESULT)]
    assert torch.made_on == [CURRENT]


def test_torch_runs_on_a_given_stream_and_allocates_there(torch: Torch) -> None:
    call, variant = call_for(Tensor)
    call((Tensor((K, N)),), None, 5)
    assert variant.launched == [(5, 0x1000, RESULT)] and torch.made_on == [5] and torch.current == CURRENT


@pytest.mark.parametrize("shape", [(5,), (3, 4), (0, 7), (2, 1, 3)], ids=str)
def test_new_tensors_are_contiguous_and_like_those_of_empty(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        empty = empty_tensors(torch, shape, torch.float16, torch.device("cpu"))
    assert empty.args[0].untyped_storage().nbytes() == 0, "nothing stays in the memory of a graph to be"
    one, other = empty(), empty()
    expected = torch.empty(shape, dtype=torch.float16)
    for made in (one, other):
        assert (made.shape, made.stride(), made.dtype) == (expected.shape, expected.stride(), expected.dtype)
        assert (
            not made.is_inference()
            and not made.requires_grad
            and made.untyped_storage().nbytes() == expected.nbytes
        )
    assert one.fill_(1).numel() == 0 or one.data_ptr() != other.data_ptr()


def test_torch_writes_a_given_out_and_allocates_nothing(torch: Torch) -> None:
    call, variant = call_for(Tensor)
    out = Tensor((M, N), address=0x2000)
    assert call((Tensor((K, N)),), out, None) is out
    assert variant.launched == [(CURRENT, 0x1000, 0x2000)] and torch.made_on == []


def test_torch_without_the_raw_accessor(torch: Torch) -> None:
    del torch._C._cuda_getCurrentRawStream
    call, variant = call_for(Tensor)
    call((Tensor((K, N)),), None, None)
    assert variant.launched == [(CURRENT, 0x1000, RESULT)]


def test_a_subclass_is_a_tensor(torch: Torch) -> None:
    class Parameter(Tensor):
        pass

    call, variant = call_for(Parameter)
    call((Parameter((K, N)),), None, None)
    assert len(variant.launched) == 1


REFUSED = [
    (Tensor((K, N + 1)), rf"b: expected shape \({K}, {N}\), got \({K}, {N + 1}\)"),
    (Tensor((K, N), "f16"), "b: expected dtype f32, got f16"),
    (Tensor((K, N), device=1), "b: expected device cuda:0, got cuda:1"),
    (Tensor((K, N), device=-1), "b: expected device cuda:0, got cuda:-1"),
    (Tensor((K, N), contiguous=False), r"contiguous.*strides \(1, 7\)"),
    (Tensor((K, N), address=0x1004), "aligned to 16 bytes, got 0x1004"),
]


@pytest.mark.parametrize(("b", "words"), REFUSED, ids=[words[:20] for _, words in REFUSED])
def test_torch_refuses(torch: Torch, b: Tensor, words: str) -> None:
    call, variant = call_for(Tensor)
    with pytest.raises(OperandError, match=words):
        call((b,), None, None)
    with pytest.raises(OperandError, match="c: expected"):
        call((Tensor((K, N)),), Tensor((M, 1)), None)
    with pytest.raises(OperandError, match=r"c: expected a torch\.Tensor"):
        call((Tensor((K, N)),), np.zeros((M, N)), None)
    with pytest.raises(OperandError, match=r"b: expected a torch\.Tensor, got ndarray"):
        call((np.zeros((K, N)),), None, None)
    assert variant.launched == []


def test_alignment_is_as_the_rows_need_it(torch: Torch) -> None:
    """A view that begins at an odd row of a matrix with odd rows is as good as any."""
    call, variant = call_for(Tensor, replace(PROBLEM, n=3))
    call((Tensor((K, 3), address=0x100C),), None, None)
    assert len(variant.launched) == 1


def test_torch_bias(torch: Torch) -> None:
    problem = replace(PROBLEM, epilogue=Epilogue.BIAS, layout=Layout.COLUMN)
    b, bias = Tensor((N, K)), Tensor((M,), address=0x3000)
    call, variant = call_for(Tensor, problem)
    call((b, bias), None, None)
    assert variant.launched == [(CURRENT, 0x1000, 0x3000, RESULT)]
    with pytest.raises(OperandError, match="bias: expected an array of shape"):
        call((b, None), None, None)
    with pytest.raises(OperandError, match="bias: expected shape"):
        call((b, Tensor((M + 1,))), None, None)
    kept, variant = call_for(Tensor, problem, bias=Address(0x4000))
    kept((b, None), None, None)
    kept((b, bias), None, None)
    assert [launch[2] for launch in variant.launched] == [0x4000, 0x3000]


def test_cupy(cupy: Any) -> None:
    call, variant = call_for(CupyArray)
    b = CupyArray((K, N))
    assert call((b,), None, None).shape == (M, N)
    call((b,), CupyArray((M, N), address=0x2000), 5)
    assert variant.launched == [(CURRENT, 0x1000, RESULT), (5, 0x1000, 0x2000)]
    wrong = [
        CupyArray((K, 1)),
        CupyArray((K, N), "f2"),
        CupyArray((K, N), device=1),
        CupyArray((K, N), address=8),
    ]
    for array, words in zip(wrong, ("shape", "dtype", "device", "aligned"), strict=True):
        with pytest.raises(OperandError, match=words):
            call((array,), None, None)
    b._c_contiguous = False
    with pytest.raises(OperandError, match="contiguous"):
        call((b,), None, None)
    assert len(variant.launched) == 2


def test_cupy_bias(cupy: Any) -> None:
    problem = replace(PROBLEM, epilogue=Epilogue.BIAS_RELU)
    call, variant = call_for(CupyArray, problem, bias=Address(0x4000))
    call((CupyArray((K, N)), None), None, None)
    call((CupyArray((K, N)), CupyArray((M,), address=0x3000)), None, None)
    assert [launch[2] for launch in variant.launched] == [0x4000, 0x3000]
    with pytest.raises(OperandError, match="bias: expected an array of shape"):
        call_for(CupyArray, problem)[0]((CupyArray((K, N)), None), None, None)


@pytest.mark.parametrize("kind", [Tensor, CupyArray])
def test_operands_of_other_operators(kind: Any, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("torch" if kind is Tensor else "cupy")
    call, variant = call_for(kind, SddmmProblem(M, N, K))
    a, b = kind((M, K)), kind((N, K), address=0x2000)
    assert call((a, b), None, None).shape == (NNZ,)
    call((a, b), kind((NNZ,), address=0x7004), None)  # written by elements: any address will do
    with pytest.raises(OperandError, match="b: expected shape"):
        call((a, a), None, None)
    assert variant.launched == [(CURRENT, 0x1000, 0x2000, RESULT), (CURRENT, 0x1000, 0x2000, 0x7004)]
    softmax, variant = call_for(kind, SoftmaxProblem(M, N), scale=Address(0x4000))
    softmax((kind((NNZ,)), None), None, None)
    assert variant.launched == [(CURRENT, 0x1000, 0x4000, RESULT)]
    with pytest.raises(OperandError, match="x: expected an address aligned to 16 bytes"):
        softmax((kind((NNZ,), address=0x1004), None), None, None)
    with pytest.raises(OperandError, match="y: expected an address aligned to 16 bytes"):
        softmax((kind((NNZ,)), None), kind((NNZ,), address=0x1004), None)


@pytest.mark.parametrize("kind", [Tensor, CupyArray])
def test_operands_of_batches(kind: Any, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("torch" if kind is Tensor else "cupy")
    softmax, variant = call_for(kind, SoftmaxProblem(M, N, batch=3), scale=Address(0x4000))
    assert softmax((kind((3, NNZ)), None), None, None).shape == (3, NNZ)
    assert variant.launched == [(CURRENT, 0x1000, 0x4000, RESULT)]
    with pytest.raises(OperandError, match=rf"x: expected shape \(3, {NNZ}\), got \({NNZ},\)"):
        softmax((kind((NNZ,)), None), None, None)
    with pytest.raises(OperandError, match="x: expected an address aligned to 16 bytes"):
        softmax((kind((3, NNZ), address=0x1008), None), None, None)
    sampled, _ = call_for(kind, SddmmProblem(M, N, K, batch=3))
    operands = (kind((3, M, K)), kind((3, N, K)))
    assert sampled(operands, kind((3, NNZ), address=0x2004), None).shape == (3, NNZ), "values need no vectors"
    with pytest.raises(OperandError, match=rf"b: expected shape \(3, {N}, {K}\)"):
        sampled((operands[0], kind((2, N, K))), None, None)


def test_other_types_and_devices_are_refused(torch: Torch) -> None:
    with pytest.raises(OperandError, match=r"got builtins\.list"):
        call_for(list)
    variant: Any = Variant(PROBLEM)
    with pytest.raises(OperandError, match="takes NumPy arrays"):
        caller(Tensor, Target(variant, emulator_device(), {}))


def test_words_are_kept_as_they_are() -> None:
    """Such as a band of attention, whose distances no float32 holds."""
    spec = TensorSpec("band", (3,), WordType.INT32)
    found = encoded(np.array([-(1 << 30) + 1, 7, 0], np.int32), spec)
    assert found.dtype == np.int32 and found.tolist() == [-(1 << 30) + 1, 7, 0]
    with pytest.raises(OperandError, match=r"band: expected shape \(3,\), got \(2,\)"):
        encoded(np.zeros(2, np.int32), spec)
