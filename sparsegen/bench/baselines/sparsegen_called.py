"""Our calls as users of PyTorch make them, who get the dense product if that is faster: one by one, and in a graph.

As with every baseline the GPU waits while the host queues the call: what the host takes is not in the time.

They look up in the user's own database, as every call without ``db=`` does, without the results of a run's tuning.

Operators with ``dense="auto"`` choose between our kernels and the dense computation, by estimates or by a probe of the
first call: `sparsegen.prepare` for ``spmm``, the functions `masked_conv2d`, `dsd`, `sdd` and `dsd_transposed`, and
autograd's operator for gradients of convolutions by the weights. What a function does not compute, such as a result
over another, and all other operators are prepared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import sparsegen
from sparsegen import kernels
from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Implementation, Stopwatch, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, TorchBaseline, import_torch, to_tensor, wait
from sparsegen.bench.baselines._torch_conv import filters_of
from sparsegen.bench.results.results import DEFAULT, IN_GRAPH, Kind
from sparsegen.dispatch.options import Dense
from sparsegen.matrix.features import Features
from sparsegen.measure.decision import decisions
from sparsegen.operators import (
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    FactorType,
    Float8,
    Layout,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    Problem,
    Rest,
    SddProblem,
)
from sparsegen.tuning_db.records import Called as Way
from sparsegen.tuning_db.records import Task

Product = DsdProblem | SddProblem | DsdTransposedProblem
Call = Callable[[Any], Any]  # takes a tensor that may be written to, and gives the result


@dataclass(frozen=True, slots=True)
class Called:
    """Call of ours as users make it.

    Attributes:
        detail: description of what runs.
        call: returns the result as a tensor, as the problem stores it.
        memory_bytes: bytes that we keep on the device.
        is_dense: True if a library's dense product or convolution runs.
    """

    detail: str
    call: Call
    memory_bytes: int
    is_dense: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """A captured call with what its graph reads: tensors, and the arrays of our operator."""

    graph: Any
    called: Called

    def __call__(self) -> None:
        self.graph.replay()


@dataclass(frozen=True)
class AsCalled(TorchBaseline):
    """One of our baselines that go through our Python interface.

    Attributes:
        way: how it is called.
        run: gives the call to time, which puts its result into the tensor.
    """

    name: str
    way: Way
    run: Callable[[Called, TensorResult], Callable[[], object]]
    kind: Kind = field(default=Kind.OURS, init=False)
    takes_variations = True

    def open(self, executor: Executor) -> Mapping[str, str]:
        versions = super().open(executor)
        import_torch().backends.cudnn.allow_tf32 = False  # it is on by default for convolutions alone
        return versions

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not any(family.computes(problem) for family in kernels.families_of(problem.operator)):
            return f"sparsegen has no kernel for such a {problem.operator}"
        if problem.value_sets > 1:
            return "it is given the values of one batch element"
        return None

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem, watch = bench.problem, Stopwatch()
        called = _called(bench, self.way)
        spec = problem.result(bench.features.nnz)
        assert isinstance(spec.dtype, DType), "a result is of numbers"
        result = TensorResult(bench, spec.shape, spec.dtype)
        result.tensor = called.call(result.tensor)  # probes, and compiles
        wait()
        elapsed, run = watch.lap(), self.run(called, result)
        ran = Kind.DENSE if called.is_dense else None
        yield Implementation(
            called.detail, run, result.clear, result.read, elapsed, called.memory_bytes, ran=ran
        )


def one_by_one(called: Called, result: TensorResult) -> Callable[[], object]:
    """Returns the call itself."""

    def run() -> None:
        result.tensor = called.call(result.tensor)

    return run


def in_graph(called: Called, result: TensorResult) -> Callable[[], object]:
    """Captures the call and returns the graph's replay.

    Raises:
        UnsupportedError: there is no GPU.
    """
    torch = import_torch()
    if not torch.cuda.is_available():
        raise UnsupportedError("a graph is captured on a GPU")
    with torch.cuda.stream(torch.cuda.Stream()):  # PyTorch requires a side stream before a capture
        called.call(result.tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result.tensor = called.call(result.tensor)
    return Replay(graph, called)


def _operator(bench: Workbench) -> Called:
    """`sparsegen.prepare` and its operator object, with arguments by their places and names in the call."""
    problem = bench.problem
    takes = inspect.signature(problem.operator_type.__call__).parameters
    given: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for spec in problem.operands(bench.features.nnz):
        if spec.name in takes or not given:  # the first one has a name of its own in some calls
            given[spec.name] = _argument(bench, spec.name, spec.dtype)
        else:
            kept[spec.name] = float(bench.operand(spec.name)[0])
    matrix = bench.matrix if problem.has_pattern else None
    operator = sparsegen.prepare(matrix, problem, device=bench.device, **kept)
    first, *others = given
    dtype = problem.result(bench.features.nnz).dtype
    keeps_rest = problem.result(bench.features.nnz).is_updated
    is_on_gpu = bench.device.backend == "cuda"
    named = {name: given[name] for name in others}

    def call(out: Any) -> Any:
        if keeps_rest:  # the part outside the mask stays as it was
            target = out if is_on_gpu else out.numpy()
            operator(given[first], **named, out=target)
            return out
        found = operator(given[first], **named)
        return found if is_on_gpu else to_tensor(found).to(getattr(import_torch(), str(dtype)))

    return Called(operator.explain().splitlines()[0], call, operator.nbytes, operator.variant is None)


def _argument(bench: Workbench, name: str, kind: Any) -> Any:
    """An operand as users have it: a tensor on the GPU; for the emulator NumPy's, bfloat16 as float32."""
    stored = bench.operand(name)
    if bench.device.backend != "cuda":
        is_missing = kind is DType.BFLOAT16 or isinstance(kind, Float8)
        return np.array(kind.from_storage(stored) if is_missing else stored)
    if isinstance(kind, DType):
        return to_tensor(stored, kind)
    tensor = to_tensor(stored)
    return tensor.view(getattr(import_torch(), str(kind))) if isinstance(kind, Float8) else tensor


def _called(bench: Workbench, way: Way) -> Called:
    """Ours as PyTorch's users call it for the problem."""
    if isinstance(bench.problem, MaskedConv2dProblem):
        return _convolution(bench, way)
    if isinstance(bench.problem, MaskedConv2dWeightsProblem):
        return _gradient(bench, bench.problem, way)
    if isinstance(bench.problem, Product) and _has_function(bench.problem):
        return _product(bench, bench.problem, way)
    return _operator(bench)


def _has_function(problem: Product) -> bool:
    """True if a function of `sparsegen.integrations.torch` computes a product; it scales by a number."""
    p = problem
    if p.batch > 1 or p.factor_type is not FactorType.SAME:
        return False
    if isinstance(p, DsdTransposedProblem):
        return p.y_layout is Layout.COLUMN
    if isinstance(p, SddProblem):
        return p.rest is Rest.FILLED
    return p.epilogue in (Epilogue.NONE, Epilogue.BIAS, Epilogue.BIAS_RELU)


def _product(bench: Workbench, problem: Product, way: Way) -> Called:
    """`dsd`, `sdd` or `dsd_transposed` of `sparsegen.integrations.torch`."""
    from sparsegen.integrations.torch import BlockMaskTensor, dsd, dsd_transposed, sdd

    p = problem
    given = {spec.name: bench.operand(spec.name) for spec in p.operands(0)}
    tensors = {
        name: to_tensor(array, p.dtype) for name, array in given.items() if name not in ("mask", "scale")
    }
    words = to_tensor(given["mask"].reshape(-1))
    block = p.block.rows, p.block.columns
    mask = BlockMaskTensor((p.m, p.k), block, words, p.density.share)
    scale = float(given["scale"].reshape(-1)[0]) if "scale" in given else 1.0
    if isinstance(p, DsdTransposedProblem):
        run = partial(dsd_transposed, tensors["x"], tensors["d"], mask, scale=scale)
    else:
        shape = (p.k, p.n) if p.w_layout is Layout.ROW else (p.n, p.k)
        stored = tensors["w"].reshape(shape)
        weight = stored.t() if p.w_layout is Layout.ROW else stored
        if isinstance(p, SddProblem):
            run = partial(sdd, tensors["d"], weight, mask, scale=scale)
        else:
            relu = p.epilogue is Epilogue.BIAS_RELU
            run = partial(dsd, tensors["x"], weight, mask, tensors.get("bias"), scale=scale, relu=relu)
    run()
    pays = _runs_ours(Task.PRODUCT, way)
    ran = "the masked kernel" if pays else "the dense product"
    return Called(f"{p.operator}, dense=auto: {ran}", lambda _: run(), 0, not pays)


def _runs_ours(task: Task, way: Way) -> bool:
    """True if the latest decision of a task, in this row's process, is for our kernel."""
    known = [decision for decided, _, decision in decisions() if decided is task]
    return not known or known[-1].ours_runs(way)


def _gradient(bench: Workbench, problem: MaskedConv2dWeightsProblem, way: Way) -> Called:
    """The operator of autograd for the gradient by the weights, of images with channels innermost."""
    from sparsegen.integrations.torch.convolution.masked_conv_operators import masked_conv2d_weights

    p, shape = problem, problem.result(0).shape
    x, dy = (to_tensor(bench.operand(name), p.dtype).permute(0, 3, 1, 2) for name in ("x", "dy"))
    words = to_tensor(bench.operand("mask").view(np.int64).reshape(p.images * p.forward.mask_shape[0], -1))
    sides = p.filter_size, p.stride, p.padding, p.dilation, p.mask_block
    given = x, dy, words, *((side.rows, side.columns) for side in sides), p.groups.count, p.density.share

    def call(out: object) -> Any:
        found = masked_conv2d_weights(*given, str(Dense.AUTO))
        return found.permute(0, 2, 3, 1).reshape(shape)

    call(None)
    pays = _runs_ours(Task.CONVOLUTION, way)
    ran = "the masked kernel" if pays else "the dense gradient"
    return Called(f"masked_conv2d_weights, dense=auto: {ran}", call, 0, not pays)


def _convolution(bench: Workbench, way: Way) -> Called:
    """`sparsegen.integrations.torch.masked_conv2d`, with a mask of bools.

    Raises:
        UnsupportedError: the function does not compute it.
    """
    from sparsegen.integrations.torch import masked_conv2d
    from sparsegen.integrations.torch.convolution.conv_choice import decided, policy_for

    p = bench.problem_as(MaskedConv2dProblem)
    if p.rest is not Rest.FILLED or p.epilogue.has_residual:
        raise UnsupportedError("the function fills what the mask leaves out, and adds no residual")
    if p.epilogue.has_bias and p.epilogue.value not in ("bias", "bias_relu"):
        raise UnsupportedError("the function adds a bias, perhaps with ReLU")
    stored = to_tensor(bench.operand("x"), p.dtype).reshape(
        -1, *p.layout.shape(p.height, p.width, p.channels)
    )
    images = stored if p.layout.has_planes else stored.permute(0, 3, 1, 2)
    filters = filters_of(bench)
    bias = to_tensor(bench.operand("bias"), p.dtype) if p.epilogue.has_bias else None
    block = p.mask_block
    words = bench.operand("mask").reshape(p.batch, -1)
    live = to_tensor(np.stack([p.live(mask)[:: block.rows, :: block.columns] for mask in words]))

    def call(out: object) -> Any:
        found = masked_conv2d(
            images,
            filters,
            live,
            bias,
            block=(block.rows, block.columns),
            stride=(p.stride.rows, p.stride.columns),
            padding=(p.padding.rows, p.padding.columns),
            dilation=(p.dilation.rows, p.dilation.columns),
            groups=p.groups.count,
            mask_of=p.mask_of,
            density=p.density.share,
            relu=p.epilogue.value == "bias_relu",
        )
        found = found if p.layout.has_planes else found.permute(0, 2, 3, 1)
        return found.reshape(p.result(0).shape)

    call(None)
    decision = decided(p, images.device, policy_for(Dense.AUTO, images))
    pays = decision is None or decision.ours_runs(way)
    ran = "the masked kernel" if pays else "the dense convolution"
    return Called(f"masked_conv2d, dense=auto: {ran}", call, 0, not pays)


BASELINES = (AsCalled(DEFAULT, Way.HOST, one_by_one), AsCalled(IN_GRAPH, Way.DEVICE, in_graph))
