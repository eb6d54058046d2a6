"""The operator object: a matrix packed and uploaded for its chosen variant; calling it launches."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from sparsegen.arrays import Call, Target, caller, missing_bias
from sparsegen.dispatch import Choice
from sparsegen.errors import OperandError
from sparsegen.executor import Address, Buffer, Executor, Toolchain
from sparsegen.family import Array, Device, PackedOnDevice
from sparsegen.formats import CsrMatrix
from sparsegen.launching import PreparedVariant
from sparsegen.operators import SpmmProblem
from sparsegen.tuning_db.records import Variant


class SparseOperator:
    """C = epilogue(A · B) for one sparse A; make it with `sparsegen.prepare`.

    Calls are thread-safe, never tune, compile or wait, and allocate nothing but ``out``: a CUDA graph
    captures them (capture after one call in the same thread). Gradients are not recorded. Where the family has
    scratch memory (`Family.scratch_names`), launches of one thread must not overlap: a stream each for several calls
    needs an event between them, or an operator each.

    Attributes:
        problem, device: what it computes, and where.
        choice: the variant, and why it was chosen.
    """

    def __init__(
        self,
        choice: Choice,
        matrix: CsrMatrix | PackedOnDevice,
        *,
        executor: Executor,
        toolchain: Toolchain,
        bias: Any = None,
    ) -> None:
        """Compile (or find), pack, upload.

        Args:
            matrix: packed already, or to be packed.
            bias: m values kept for every call; None to pass them with each call.

        Raises:
            CompileError, LaunchError: the variant cannot be built or loaded.
            OperandError: a bias of the wrong shape, or for an epilogue without one.
        """
        self.choice = choice
        self.problem: SpmmProblem = choice.problem
        self.device: Device = executor.device
        self.prepared = PreparedVariant(
            choice.family, choice.problem, choice.config, matrix, executor, toolchain
        )
        self._target = Target(self.prepared, self.problem, self.device, self._upload_bias(bias, executor))
        self._callers: dict[type, Call] = {}
        self._changing = threading.Lock()

    def _upload_bias(self, bias: Any, executor: Executor) -> Buffer | None:
        if bias is None:
            return None
        if not self.problem.epilogue.has_bias:
            raise missing_bias(self.problem)
        values = host_values(bias)
        if values.shape != (self.problem.m,):
            raise OperandError(f"bias: expected shape ({self.problem.m},), got {values.shape}")
        with executor.entered():
            return executor.upload(self.problem.dtype.to_storage(values))

    def __call__(self, b: Any, out: Any = None, stream: Any = None, bias: Any = None) -> Any:
        """Multiply.

        Args:
            b: k × n (layout row) or n × k (layout column), contiguous, of the problem's dtype. PyTorch and
            CuPy
                arrays on the operator's GPU are used in place; NumPy arrays are copied there and back (for
                bfloat16: float32 arrays, rounded).
            out: the result's array, m × n or n × m, of b's kind; by default a new one.
            stream: where to launch: a handle, or a stream of PyTorch, CuPy or the CUDA stream protocol; by
                default the current stream of b's library.
            bias: m values of b's kind, for an epilogue with a bias; overrides the one given to `prepare`.

        Returns:
            ``out``; on a GPU it is ready when the stream gets there.

        Raises:
            OperandError: an argument is not as it must be; the message says what was expected.
            LaunchError: the driver refused the launch.
        """
        call = self._callers.get(type(b))
        if call is None:
            call = self._callers[type(b)] = caller(type(b), self._target)
        return call(b, out, stream, bias)

    @property
    def bias(self) -> Array | None:
        """The bias that is kept for every call, m values in storage form."""
        buffer, executor = self._target.bias, self.prepared.executor
        if buffer is None:
            return None
        kept = np.empty(self.problem.m, dtype=self.problem.dtype.storage)
        with executor.entered():
            executor.download(buffer, kept)
        return kept

    @property
    def variant(self) -> Variant:
        """Family, config and source digest, as the database knows them."""
        config = tuple(self.choice.config_dict.items())
        return Variant(self.choice.family.name, config, self.prepared.digest)

    @property
    def source(self) -> str:
        """The CUDA source that runs."""
        return self.prepared.source

    def explain(self) -> str:
        """What runs, and why, in words."""
        compiled, packed = self.prepared.compiled, self.prepared.packed
        facts = [f"{packed.nbytes} bytes packed"]
        if compiled.registers is not None:
            facts.append(f"{compiled.registers} registers, {compiled.spill_bytes or 0} bytes spilled")
        place = f"  on {self.device.name}: {', '.join(facts)}"
        return "\n".join((self.choice.explain(), place, f"  source: {compiled.source}"))

    def update_values(self, values: Any) -> None:
        """New values on the same pattern; calls that start after this returns see them.

        Args:
            values: nnz of them in CSR order, a NumPy, PyTorch or CuPy array (or a `CsrMatrix` of the
            pattern).
                PyTorch tensors on the operator's GPU do not leave it: they are gathered on PyTorch's current
                stream, which orders them before later calls on that stream.

        Raises:
            OperandError: not one value for each nonzero.
        """
        if isinstance(values, CsrMatrix):
            values = values.values
        nnz = self.prepared.packed.nnz
        if tuple(np.shape(values)) != (nnz,):
            raise OperandError(f"values: expected shape ({nnz},), got {tuple(np.shape(values))}")
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
        encoded = values.detach().to(getattr(torch, str(self.problem.dtype))).contiguous()
        if encoded.numel():
            stream = torch.cuda.current_stream(self.device.index).cuda_stream
            address = Address(encoded.data_ptr(), encoded.numel() * encoded.element_size())
            self.prepared.gather_values(address, stream)
        return True


def host_values(array: Any) -> Array:
    """A NumPy, PyTorch or CuPy array (or a sequence of numbers) as float32 or float64 on the host."""
    if hasattr(array, "detach"):
        array = array.detach().float().cpu().numpy()
    elif hasattr(array, "get") and not isinstance(array, np.ndarray):
        array = array.get()
    values = np.asarray(array)
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
