"""Dense cuBLASLt: the algorithms that its heuristics offer for a product, each called as it is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.measure.baselines.cublas import DATA_TYPE, NO_TRANSPOSE, ByColumns, Compute
from sparsegen.measure.baselines.libraries import Handle, checked, find_library
from sparsegen.operators import DType

WORKSPACE_BYTES = 64 << 20
FLOAT32 = DATA_TYPE[DType.FLOAT32]  # type of the scales
TRANSPOSES = (3, 4)  # CUBLASLT_MATMUL_DESC_TRANSA, _TRANSB
MAX_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
TILES, STAGES = 6, 13  # CUBLASLT_ALGO_CAP_TILE_IDS, _STAGES_IDS
TILE, STAGE = 1, 6  # CUBLASLT_ALGO_CONFIG_TILE_ID, _STAGES_ID
ALGORITHM_WORDS = 8  # words of 64 bits in a cublasLtMatmulAlgo_t
MOST_ALGORITHMS, MOST_CHOICES = 256, 1024


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * ALGORITHM_WORDS),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of them: what it is in words, the bytes of its work space, and its call."""

    detail: str
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


class Product:
    """A product as the library sees it. Its algorithms share one work space.

    Args:
        scale: factor on the product.
    """

    def __init__(
        self,
        executor: Executor,
        handle: Handle,
        dtype: DType,
        whole: ByColumns,
        compute: Compute,
        scale: float,
    ) -> None:
        self._handle, self._library, self._whole, self._scale = handle, handle.library, whole, scale
        self._types = (int(compute), FLOAT32, *[DATA_TYPE[dtype]] * 4)  # types of sums, scales, A, B, C and D
        create, destroy = (f"cublasLtMatmulDesc{what}" for what in ("Create", "Destroy"))
        self._description = Handle(self._library, create, destroy, int(compute), FLOAT32)
        for attribute, operation in zip(TRANSPOSES, whole.operations, strict=True):
            word = ctypes.c_int(operation)
            _set(self._library, "cublasLtMatmulDescSetAttribute", self._description, attribute, word)
        (m, n, k), kind = whole.shape, DATA_TYPE[dtype]
        result = self._layout(kind, (m, n), whole.result[1])
        self._layouts = (
            self._layout(kind, (m, k), whole.left[1], whole.operations[0]),
            self._layout(kind, (k, n), whole.right[1], whole.operations[1]),
            result,
            result,
        )
        self._workspace = executor.allocate(WORKSPACE_BYTES)

    def _layout(
        self, kind: int, sizes: tuple[int, int], leading: int, operation: int = NO_TRANSPOSE
    ) -> Handle:
        rows, columns = sizes if operation == NO_TRANSPOSE else sizes[::-1]
        words = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(leading))
        create, destroy = (f"cublasLtMatrixLayout{what}" for what in ("Create", "Destroy"))
        return Handle(self._library, create, destroy, kind, *words)

    def offered(self, most: int) -> list[Algorithm]:
        """The first algorithms of the library's heuristics, in their order.

        Raises:
            VendorError: it knows none.
        """
        create, destroy = (f"cublasLtMatmulPreference{what}" for what in ("Create", "Destroy"))
        preference = Handle(self._library, create, destroy)
        workspace = ctypes.c_uint64(WORKSPACE_BYTES)
        _set(self._library, "cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE, workspace)
        found, count = (_Found * most)(), ctypes.c_int()
        checked(
            self._library, "cublasLtMatmulAlgoGetHeuristic", self._handle.value, self._description.value,
            *(one.value for one in self._layouts), preference.value, most, found, ctypes.byref(count),
        )  # fmt: skip
        usable = [found[place] for place in range(count.value) if not found[place].status]
        return [self._algorithm(f"algorithm {place}", one) for place, one in enumerate(usable, 1)]

    def numbers(self) -> list[int]:
        """The numbers of all algorithms for such types, whether they compute this product or not."""
        found, count = (ctypes.c_int * MOST_ALGORITHMS)(), ctypes.c_int()
        checked(
            self._library, "cublasLtMatmulAlgoGetIds", self._handle.value, *self._types,
            MOST_ALGORITHMS, found, ctypes.byref(count),
        )  # fmt: skip
        return list(found[: count.value])

    def configs(self, number: int) -> Iterator[Algorithm]:
        """An algorithm with each of its tiles and stages with which it computes the product, k not split."""
        one = (ctypes.c_uint64 * ALGORITHM_WORDS)()
        arguments = (self._handle.value, *self._types, number, one)
        if self._library.cublasLtMatmulAlgoInit(*arguments):
            return
        for tile in self._choices(one, TILES) or (0,):
            for stages in self._choices(one, STAGES) or (0,):
                for attribute, value in ((TILE, tile), (STAGE, stages)):
                    word = ctypes.c_uint32(value)
                    self._library.cublasLtMatmulAlgoConfigSetAttribute(
                        one, attribute, ctypes.byref(word), ctypes.c_size_t(4)
                    )
                found = _Found(algorithm=one)
                refused = self._library.cublasLtMatmulAlgoCheck(
                    self._handle.value, self._description.value, *(layout.value for layout in self._layouts),
                    one, ctypes.byref(found),
                )  # fmt: skip
                if not refused and found.workspace <= WORKSPACE_BYTES:
                    found.algorithm = one
                    yield self._algorithm(f"algorithm {number}, tile {tile}, stages {stages}", found)

    def _choices(self, one: ctypes.Array[ctypes.c_uint64], capability: int) -> list[int]:
        """Returns the values that an algorithm's capability may have; empty if it is no choice."""
        found, written = (ctypes.c_uint32 * MOST_CHOICES)(), ctypes.c_size_t()
        refused = self._library.cublasLtMatmulAlgoCapGetAttribute(
            one, capability, found, ctypes.c_size_t(ctypes.sizeof(found)), ctypes.byref(written)
        )
        return [] if refused else list(found[: written.value // 4])

    def _algorithm(self, detail: str, one: _Found) -> Algorithm:
        alpha, zero = ctypes.c_float(self._scale), ctypes.c_float(0)
        left, right, result, _ = (layout.value for layout in self._layouts)
        a, b, c = (
            _pointer(buffer) for buffer, _ in (self._whole.left, self._whole.right, self._whole.result)
        )
        arguments = (
            self._handle.value, self._description.value, ctypes.byref(alpha), a, left, b, right,
            ctypes.byref(zero), c, result, c, result, ctypes.byref(one), _pointer(self._workspace),
            ctypes.c_size_t(WORKSPACE_BYTES), None,
        )  # fmt: skip

        def run(kept: object = (self, one)) -> None:
            checked(self._library, "cublasLtMatmul", *arguments)

        return Algorithm(detail, int(one.workspace), run)


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
