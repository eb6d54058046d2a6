"""Operator objects: a matrix packed and uploaded for its chosen variant; calling one launches."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsegen.backends.executor import Address, Buffer, Executor, Toolchain
from sparsegen.dispatch.choice import Choice
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Array, Device
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Epilogue, Problem, SpmmProblem, TensorSpec
from sparsegen.plan.arrays import Call, Target, caller
from sparsegen.plan.binding import bind_variant
from sparsegen.tuning_db.records import Variant


class PreparedOperator:
    """What the operator objects of all operators share; make one with `sparsegen.prepare`.

    Calls are thread-safe, never tune, compile or wait, and allocate nothing but ``out``: a CUDA graph
    captures them (capture after one call in the same thread). Gradients are not recorded. Where the family has
    scratch memory (`Family.scratch_names`), launches of one thread must not overlap: a stream each for several calls
    needs an event between them, or an operator each.

    Every call takes ``out``, the result's array, of the operands' kind (by default a new one), and ``stream``, where to
    launch: a handle, or a stream of PyTorch, CuPy or the CUDA stream protocol; by default the current stream of the
    operands' library. It returns ``out``, which on a GPU is ready when the stream gets there. PyTorch and CuPy arrays
    on the operator's GPU are used in place; NumPy arrays are copied there and back (for bfloat16: float32 arrays,
    rounded). Every call raises

    - OperandError: an argument is not as it must be; the message says what was expected;
    - LaunchError: the driver refused the launch.

    Attributes:
        problem, device: what it computes, and where.
        choice: the variant, and why it was chosen.
    """

    def __init__(
        self,
        choice: Choice,
        matrix: CsrMatrix | Packed[Buffer],
        *,
        executor: Executor,
        toolchain: Toolchain,
        fixed: Mapping[str, Any],
        value_order: Array | None = None,
    ) -> None:
        """Compile (or find), pack, upload.

        Args:
            matrix: packed already, or to be packed.
            fixed: operands for every call that does not bring its own, by name.
            value_order: for each of the matrix's nonzeros its number among the values of `update_values`; by default
                these are in the matrix's own order.

        Raises:
            CompileError, LaunchError: the variant cannot be built or loaded.
            OperandError: a fixed operand of the wrong shape.
        """
        self.choice = choice
        self.problem: Problem = choice.problem
        self.device: Device = executor.device
        self.prepared = bind_variant(
            choice.config, choice.problem, matrix, executor, toolchain, value_order=value_order
        )
        specs = {spec.name: spec for spec in self.prepared.operands}
        with executor.entered():
            kept = {name: executor.upload(encoded(value, specs[name])) for name, value in fixed.items()}
        self._target = Target(self.prepared, self.device, kept)
        self._callers: dict[type, Call] = {}
        self._changing = threading.Lock()

    def _run(self, operands: tuple[Any, ...], out: Any, stream: Any) -> Any:
        """Launch with arrays of the first operand's kind; None for one that was fixed."""
        kind = type(operands[0])
        call = self._callers.get(kind)
        if call is None:
            call = self._callers[kind] = caller(kind, self._target)
        return call(operands, out, stream)

    @property
    def variant(self) -> Variant:
        """Family, config and source digest, as the database knows them."""
        return Variant(self.choice.config, self.prepared.digest)

    @property
    def source(self) -> str:
        """The CUDA source that runs."""
        return self.prepared.source

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrix on the device."""
        return self.prepared.packed.nbytes

    def explain(self) -> str:
        """What runs, and why, in words."""
        compiled, packed = self.prepared.compiled.kernel, self.prepared.packed
        facts = [f"{packed.nbytes} bytes packed"]
        if compiled.registers is not None:
            facts.append(f"{compiled.registers} registers, {compiled.spill_bytes or 0} bytes spilled")
        place = f"  on {self.device.name}: {', '.join(facts)}"
        return "\n".join((self.choice.explain(), place, f"  source: {compiled.source}"))

    def update_values(self, values: Any) -> None:
        """New values on the same pattern; calls that start after this returns see them.

        Args:
            values: nnz of them in the CSR order of the matrix that `sparsegen.prepare` was given (also where it
                multiplies by the transpose), a NumPy, PyTorch or CuPy array (or a `CsrMatrix` of the pattern); for a
                batch whose items have their own, batch × nnz.
                PyTorch tensors on the operator's GPU do not leave it: they are gathered on PyTorch's current
                stream, which orders them before later calls on that stream.

        Raises:
            OperandError: not one value for each nonzero, or the result depends on the pattern alone.
        """
        if isinstance(values, CsrMatrix):
            values = values.values
        nnz = self.prepared.packed.nnz
        own = self.problem.own_values(nnz)
        wanted = (nnz,) if own is None else own.shape
        if tuple(np.shape(values)) != wanted:
            raise OperandError(f"values: expected shape {wanted}, got {tuple(np.shape(values))}")
        with self._changing:
            if not self._gather_on_device(values):
                self.prepared.overwrite_values(self.problem.dtype.to_storage(host_values(values)))

    def _gather_on_device(self, values: Any) -> bool:
        """Gather a PyTorch tensor into the packed values where both lie; False when it is not there."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(values, torch.Tensor) or self.device.backend != "cuda":
            return False
        if values.get_device() != self.device.index:
            return False
        if self.prepared.packed.values is None:
            return False  # which is refused on the host's way
        encoded = values.detach().to(getattr(torch, str(self.problem.dtype))).contiguous()
        if encoded.numel():
            stream = torch.cuda.current_stream(self.device.index).cuda_stream
            address = Address(encoded.data_ptr(), encoded.numel() * encoded.element_size())
            self.prepared.gather_values(address, stream)
        return True


class SparseOperator(PreparedOperator):
    """C = epilogue(A · B) for one sparse A, which may be the transpose of the matrix that it was prepared with."""

    problem: SpmmProblem

    def __init__(
        self,
        choice: Choice,
        matrix: CsrMatrix | Packed[Buffer],
        *,
        executor: Executor,
        toolchain: Toolchain,
        bias: Any = None,
        value_order: Array | None = None,
    ) -> None:
        """See `PreparedOperator`.

        Args:
            bias: m values kept for every call; None to pass them with each call.

        Raises:
            OperandError: a bias of the wrong shape, or for an epilogue without one.
        """
        problem = choice.problem
        assert isinstance(problem, SpmmProblem)
        if bias is not None and not problem.epilogue.has_bias:
            raise missing_bias(problem)
        fixed = {} if bias is None else {"bias": bias}
        PreparedOperator.__init__(
            self,
            choice,
            matrix,
            executor=executor,
            toolchain=toolchain,
            fixed=fixed,
            value_order=value_order,
        )
        self._has_bias, self._keeps_bias = problem.epilogue.has_bias, bias is not None
        self._has_residual = problem.epilogue.has_residual

    def __call__(
        self, b: Any, out: Any = None, stream: Any = None, bias: Any = None, residual: Any = None
    ) -> Any:
        """Multiply; see `PreparedOperator` for ``out``, ``stream``, the result and the errors.

        Args:
            b: k × n (layout row) or n × k (layout column), contiguous, of the problem's dtype; C is m × n or n × m.
                With a batch both have one such matrix for each item, as have residuals.
            bias: m values of b's kind, for an epilogue with a bias; overrides the one given to `prepare`.
            residual: of C's shape and b's kind, for an epilogue with a residual; another array than ``out``.
        """
        if (residual is not None) != self._has_residual:
            raise missing_residual(self.problem)
        if not self._has_bias:
            if bias is not None:
                raise missing_bias(self.problem)
            return self._run((b,), out, stream)
        if bias is None and not self._keeps_bias:
            raise missing_bias(self.problem)
        return self._run((b, bias, residual) if self._has_residual else (b, bias), out, stream)

    @property
    def bias(self) -> Array | None:
        """The bias that is kept for every call, m values in storage form."""
        buffer, executor = self._target.fixed.get("bias"), self.prepared.executor
        if buffer is None:
            return None
        kept = np.empty(self.problem.m, dtype=self.problem.dtype.storage)
        with executor.entered():
            executor.download(buffer, kept)
        return kept


def missing_bias(problem: SpmmProblem) -> OperandError:
    """The error for a bias that is there and should not, or the other way round."""
    if problem.epilogue.has_bias:
        return OperandError(f"epilogue {problem.epilogue} needs bias= of shape ({problem.m},)")
    return OperandError(f"bias= was given, but the operator was prepared with epilogue={problem.epilogue}")


def missing_residual(problem: SpmmProblem) -> OperandError:
    """The error for a residual that is there and should not, or the other way round."""
    if problem.epilogue.has_residual:
        return OperandError(f"epilogue {problem.epilogue} needs residual= of shape {problem.result(0).shape}")
    return OperandError(
        f"residual= was given, but the operator was prepared with epilogue={problem.epilogue}; "
        f"{Epilogue.BIAS_RESIDUAL} adds one"
    )


def encoded(values: Any, spec: TensorSpec) -> Array:
    """An array of any library in storage form.

    Raises:
        OperandError: it has another shape.
    """
    found = host_values(values)
    if found.shape != spec.shape:
        raise OperandError(f"{spec.name}: expected shape {spec.shape}, got {found.shape}")
    return spec.dtype.to_storage(found)


def host_values(array: Any) -> Array:
    """A NumPy, PyTorch or CuPy array (or a sequence of numbers) as float32 or float64 on the host."""
    if hasattr(array, "detach"):
        array = array.detach().float().cpu().numpy()
    elif hasattr(array, "get") and not isinstance(array, np.ndarray):
        array = array.get()
    values = np.asarray(array)
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
