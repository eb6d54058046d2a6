"""A baseline from a user's shared object: ``--baseline name=path.so:symbol``.

The C interface, version 1, is that of examples/baseline/sparsegen_baseline.h; docs/benchmarks.md describes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import (
    Baseline,
    Implementation,
    MissingError,
    Stopwatch,
    UnsupportedError,
)
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.results.problem_facts import layout_of
from sparsegen.bench.results.results import Kind
from sparsegen.errors import ConfigError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.operators import (
    DType,
    ImageLayout,
    Layout,
    Problem,
    Readout,
    SddmmProblem,
    SparseNetworkProblem,
    SpmmProblem,
)
from sparsegen.operators.sparse_network import Activation

VERSION = 1
DONE, UNSUPPORTED = 0, 1  # return codes of `create`; any other is a failure
MESSAGE_BYTES = 512
OPERATORS = {SpmmProblem.operator: 0, SddmmProblem.operator: 1, SparseNetworkProblem.operator: 2}
ACTIVATIONS = {Activation.RELU: 0, Activation.DYING_RELU: 1, Activation.NONE: 2}
READOUTS = {Readout.NEURONS: 0, Readout.TOTALS: 1}
DTYPES = {DType.FLOAT32: 0, DType.FLOAT16: 1, DType.BFLOAT16: 2}
LAYOUTS: dict[Layout | ImageLayout, int] = {Layout.ROW: 0, Layout.COLUMN: 1}
HOST_MEMORY, CUDA_MEMORY = 0, 1


class _Task(ctypes.Structure):
    """``sparsegen_task``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("op", "dtype", "layout", "memory", "device")),
        *((name, ctypes.c_uint16) for name in ("activation", "readout")),
        *((name, ctypes.c_int64) for name in ("m", "k", "n", "nnz")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "row_offsets", "column_indices", "values", "host_row_offsets", "host_column_indices",
                "host_values", "a", "b", "c", "stream",
            )
        ),
    )  # fmt: skip


class _Baseline(ctypes.Structure):
    """``sparsegen_baseline``."""

    _fields_ = (
        ("version", ctypes.c_int32),
        ("library", ctypes.c_char_p),
        (
            "create",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.POINTER(_Task),
                ctypes.POINTER(ctypes.c_void_p),
                ctypes.c_void_p,
                ctypes.c_size_t,
            ),
        ),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


@dataclass(frozen=True)
class SharedObject(Baseline):
    """A baseline behind the C interface."""

    name: str
    path: str
    symbol: str
    kind: Kind = field(default=Kind.SPARSE, init=False)

    @classmethod
    def parse(cls, text: str) -> SharedObject:
        """The routine that ``name=path.so:symbol`` names.

        Raises:
            ConfigError: it is not of that form, or there is no such file.
        """
        name, equals, place = text.partition("=")
        path, colon, symbol = place.rpartition(":")
        if not (name and equals and path and colon and symbol):
            raise ConfigError(f"--baseline {text}: give name=path.so:symbol")
        if not Path(path).is_file():
            raise ConfigError(f"--baseline {name}: there is no file {path}")
        return cls(name, str(Path(path).resolve()), symbol)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if problem.operator in OPERATORS:
            return None  # its `create` says
        return f"the interface knows {', '.join(OPERATORS)}"

    def runs_on(self, device: Device) -> bool:
        return True

    def open(self, executor: Executor) -> Mapping[str, str]:
        library = self._load().library
        return {self.name: library.decode(errors="replace") if library else "unknown"}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        baseline, executor, problem = self._load(), bench.executor, bench.problem
        a, b, traits = _dense(bench)
        result = bench.result()
        matrix, values = bench.matrix, bench.encoded
        host = (matrix.row_offsets, matrix.column_indices, values)
        watch = Stopwatch()
        arrays = [executor.upload(array) for array in host]
        description = _Task(
            op=OPERATORS[problem.operator],
            dtype=DTYPES[problem.dtype],
            layout=LAYOUTS[layout_of(problem)],
            memory=CUDA_MEMORY if bench.device.backend == "cuda" else HOST_MEMORY,
            device=bench.device.index,
            **traits,
            **problem.sizes,  # m, k and n of all
            nnz=matrix.nnz,
            row_offsets=arrays[0].address,
            column_indices=arrays[1].address,
            values=arrays[2].address,
            host_row_offsets=host[0].ctypes.data,
            host_column_indices=host[1].ctypes.data,
            host_values=host[2].ctypes.data,
            a=a,
            b=b,
            c=result.buffer.address,
            stream=None,
        )
        handle = _Handle(baseline, description)
        executor.synchronize()
        memory = sum(array.nbytes for array in arrays)
        keep = (handle, arrays, host)

        def run(kept: object = keep) -> None:
            status = baseline.run(handle.value)
            if status:
                raise SparsegenError(f"{self.name}: run returned {status}")

        yield Implementation(self.symbol, run, result.clear, result.read, watch.lap(), memory)

    def _load(self) -> _Baseline:
        try:
            get = getattr(ctypes.CDLL(self.path), self.symbol)
        except (OSError, AttributeError) as error:
            raise MissingError(f"{self.path} cannot be used: {error}") from error
        get.restype, get.argtypes = ctypes.POINTER(_Baseline), []
        found = get()
        if not found:
            raise MissingError(f"{self.symbol} of {self.path} returned no baseline")
        baseline: _Baseline = found.contents
        if baseline.version != VERSION:
            raise MissingError(
                f"{self.path} speaks version {baseline.version} of the interface, not {VERSION}"
            )
        return baseline


def _dense(bench: Workbench) -> tuple[int | None, int, dict[str, int]]:
    """Addresses of A and B, and what else the interface says of a problem."""
    problem = bench.problem
    operands = {spec.name: bench.upload(spec.name).address for spec in problem.operands(bench.features.nnz)}
    if isinstance(problem, SparseNetworkProblem):
        traits = {"activation": ACTIVATIONS[problem.activation], "readout": READOUTS[problem.readout]}
        return operands["y"], operands["clip"], traits
    return operands.get("a"), operands["b"], {}


class _Handle:
    """Handle that `create` made, destroyed with the object."""

    def __init__(self, baseline: _Baseline, task: _Task) -> None:
        self._baseline = baseline
        self._task = task  # it may keep a pointer to it
        self.value = ctypes.c_void_p()
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        status = baseline.create(
            ctypes.byref(task), ctypes.byref(self.value), ctypes.addressof(message), MESSAGE_BYTES
        )
        if status != DONE:
            self.value = ctypes.c_void_p()
            text = message.value.decode(errors="replace") or f"create returned {status}"
            raise UnsupportedError(text) if status == UNSUPPORTED else SparsegenError(text)

    def __del__(self) -> None:
        if self.value:
            self._baseline.destroy(self.value)
