"""Operator objects: what users call. What launches is made above (`sparsegen.plan`) and seen here as a `Launcher`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from sparsegen.system.device_bound import DeviceBound
from sparsegen.system.numpy_types import Array


class Device(Protocol):
    """The part of `sparsegen.kernels.base.Device` that operator objects expose: where they run."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def backend(self) -> str: ...

    @property
    def index(self) -> int: ...


class Choice(Protocol):
    """The part of `sparsegen.Choice` that operator objects expose: how their variant was chosen."""

    @property
    def how(self) -> str: ...

    @property
    def why(self) -> str: ...

    @property
    def family(self) -> Any: ...

    @property
    def config(self) -> Any: ...

    @property
    def expected_us(self) -> float | None: ...

    @property
    def dense_us(self) -> float | None: ...

    @property
    def use_dense(self) -> bool: ...

    def explain(self) -> str: ...


class Variant(Protocol):
    """The variant that runs; see `sparsegen.tuning_db.records.Variant`."""

    @property
    def family(self) -> str: ...

    @property
    def config(self) -> Any: ...

    @property
    def source_digest(self) -> str: ...


class Launcher(Protocol):
    """A problem bound to a matrix on a device: it takes arrays and launches.

    Attributes:
        kept: names of the operands that calls need not bring, since they were given beforehand.
        variant, source: None where nothing of sparsegen's runs.
        nbytes: bytes of the matrix on the device.
    """

    @property
    def choice(self) -> Choice: ...

    @property
    def device(self) -> Device: ...

    @property
    def kept(self) -> Collection[str]: ...

    @property
    def variant(self) -> Variant | None: ...

    @property
    def source(self) -> str | None: ...

    @property
    def nbytes(self) -> int: ...

    def run(self, operands: tuple[object, ...], out: object, stream: object) -> Any:
        """Launch with arrays of the first operand's kind, in the order of `Problem.operands`; None for one that is
        kept.
        """

    def update_values(self, values: object) -> None:
        """See `Operator.update_values`."""

    def kept_operand(self, name: str) -> Array | None:
        """The operand that is kept, in storage form; None if it is not."""

    def explain(self) -> str:
        """See `Operator.explain`."""


class Operator(DeviceBound):
    """Base class of all operator objects; make one with `sparsegen.prepare`.

    Calls are thread-safe, never tune, compile or wait, and allocate nothing but ``out``: a CUDA graph captures them
    (capture after one call in the same thread). Gradients are not recorded. Where the family has scratch memory
    (`Family.scratch_names`), launches of one thread must not overlap: a stream each for several calls needs an event
    between them, or an operator each.

    Every call takes ``out``, the result's array, of the operands' kind (by default a new one), and ``stream``, where to
    launch: a handle, or a stream of PyTorch, CuPy or the CUDA stream protocol; by default the current stream of the
    operands' library. It returns ``out``, which on a GPU is ready when the stream gets there. PyTorch and CuPy arrays
    on the operator's GPU are used in place; NumPy arrays are copied there and back (for bfloat16: float32 arrays,
    rounded). Every call raises

    - OperandError: an argument is not as it must be; the message says what was expected; - LaunchError: the driver
    refused the launch.

    Attributes:
        problem: the problem that it computes.
        launcher: the launcher of its variant or of the dense product.
    """

    problem: Any  # a problem of the operator's own class, which is above this one
    __call__: Callable[..., Any]  # defined by each operator, with its operands by name

    def __init__(self, problem: object, launcher: Launcher) -> None:
        """The operator of a problem that the launcher is bound to."""
        self.problem = problem
        self.launcher = launcher
        self._run = launcher.run

    def __repr__(self) -> str:
        runs = self.explain().partition(" ")[0]
        return f"<{type(self).__name__}: {self.problem}, {runs} on {self.device.name}>"

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self.launcher.device

    @property
    def choice(self) -> Choice:
        """The variant, and why it was chosen."""
        return self.launcher.choice

    @property
    def variant(self) -> Variant | None:
        """Family, config and source digest, as the database knows them; None where the dense product runs."""
        return self.launcher.variant

    @property
    def source(self) -> str | None:
        """The CUDA source that runs; None where the dense product runs."""
        return self.launcher.source

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix on the device."""
        return self.launcher.nbytes

    def explain(self) -> str:
        """Describes what runs, and why."""
        return self.launcher.explain()

    def update_values(self, values: object) -> None:
        """New values on the same pattern; calls that start after this returns see them.

        Calls in other threads meanwhile compute with all the old values or all the new ones. A PyTorch tensor on the
        operator's GPU alone comes in the order of PyTorch's current stream: calls on other streams, in other threads
        too, are to be ordered by an event, or they may find some of both.

        Args:
            values: nnz of them in the CSR order of the matrix that `sparsegen.prepare` was given (also where it
                multiplies by the transpose), a NumPy, PyTorch or CuPy array (or a `CsrMatrix` of the pattern); for a
                batch whose elements have their own, batch × nnz.
                PyTorch tensors on the operator's GPU do not leave it: they are gathered on PyTorch's current
                stream, which orders them before later calls on that stream.

        Raises:
            OperandError: not one value for each nonzero, a `CsrMatrix` of another pattern, or the result depends on the
                pattern alone.
        """
        self.launcher.update_values(values)
