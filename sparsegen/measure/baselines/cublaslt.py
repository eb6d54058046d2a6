"""Dense cuBLASLt: the algorithms that its heuristics offer for a product, each called as it is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.measure.baselines.cublas import DATA_TYPE, NO_TRANSPOSE, ByColumns, Compute
from sparsegen.measure.baselines.libraries import Handle, checked, find_library
from sparsegen.operators import DType

WORKSPACE_BYTES = 64 << 20
FLOAT32 = DATA_TYPE[DType.FLOAT32]  # of the scales
TRANSPOSES = (3, 4)  # CUBLASLT_MATMUL_DESC_TRANSA, _TRANSB
MAX_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of them: its place in the heuristics' order, the bytes of its work space, and its call."""

    place: int
    workspace: int
    run: Callable[[], None]


def open_handle() -> Handle:
    """A cuBLASLt handle in the current context.

    Raises:
        LibraryUnavailableError: cuBLASLt is not installed.
    """
    return Handle(find_library("cublasLt"), "cublasLtCreate", "cublasLtDestroy")


def version(handle: Handle) -> str:
    """The library's version as one number, like 130001."""
    return str(handle.library.cublasLtGetVersion())


def algorithms(
    executor: Executor,
    handle: Handle,
    dtype: DType,
    whole: ByColumns,
    compute: Compute,
    scale: float,
    wanted: int,
) -> list[Algorithm]:
    """The first algorithms for a product; they share one work space.

    Args:
        scale: what the product is multiplied by.
        wanted: how many at the most.

    Raises:
        VendorError: the library knows none.
    """
    library, kind, (m, n, k) = handle.library, DATA_TYPE[dtype], whole.shape
    description = Handle(
        library, "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", int(compute), FLOAT32
    )
    for attribute, operation in zip(TRANSPOSES, whole.operations, strict=True):
        word = ctypes.c_int(operation)
        _set(library, "cublasLtMatmulDescSetAttribute", description, attribute, word)

    def layout(sizes: tuple[int, int], leading: int, operation: int = NO_TRANSPOSE) -> Handle:
        rows, columns = sizes if operation == NO_TRANSPOSE else sizes[::-1]
        words = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(leading))
        return Handle(library, "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", kind, *words)

    left = layout((m, k), whole.left[1], whole.operations[0])
    right = layout((k, n), whole.right[1], whole.operations[1])
    result = layout((m, n), whole.result[1])
    preference = Handle(library, "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy")
    most = ctypes.c_uint64(WORKSPACE_BYTES)
    _set(library, "cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE, most)
    found, count = (_Found * wanted)(), ctypes.c_int()
    layouts = (left, right, result, result)
    checked(
        library, "cublasLtMatmulAlgoGetHeuristic", handle.value, description.value,
        *(one.value for one in layouts), preference.value, wanted, found, ctypes.byref(count),
    )  # fmt: skip
    workspace = executor.allocate(WORKSPACE_BYTES)
    alpha, zero = ctypes.c_float(scale), ctypes.c_float(0)

    def call(one: _Found) -> Callable[[], None]:
        a, b, c = (_pointer(buffer) for buffer, _ in (whole.left, whole.right, whole.result))
        arguments = (
            handle.value, description.value, ctypes.byref(alpha), a, left.value, b, right.value,
            ctypes.byref(zero), c, result.value, c, result.value, ctypes.byref(one), _pointer(workspace),
            ctypes.c_size_t(WORKSPACE_BYTES), None,
        )  # fmt: skip
        keep = (handle, description, layouts, whole, workspace, found)

        def run(kept: object = keep) -> None:
            checked(library, "cublasLtMatmul", *arguments)

        return run

    usable = [found[place] for place in range(count.value) if not found[place].status]
    return [Algorithm(place, int(one.workspace), call(one)) for place, one in enumerate(usable)]


def _set(library: ctypes.CDLL, function: str, of: Handle, attribute: int, value: ctypes._SimpleCData) -> None:  # type: ignore[type-arg]
    """Set an attribute to a number."""
    checked(
        library,
        function,
        of.value,
        attribute,
        ctypes.byref(value),
        ctypes.c_size_t(ctypes.sizeof(value)),
    )


def _pointer(buffer: Buffer) -> ctypes.c_void_p:
    return ctypes.c_void_p(buffer.address)
