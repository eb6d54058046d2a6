"""Leave for much shared memory and for large clusters: a driver of our own stands in and says what it was asked for."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from tuning_samples import H100

from sparsegen.backends.cuda import launches
from sparsegen.backends.cuda.launches import (
    MAX_DYNAMIC_SHARED_SIZE_BYTES,
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    BoundLaunch,
    CudaKernel,
)
from sparsegen.kernels import families
from sparsegen.kernels.launch import Launch
from sparsegen.operators import DType, SubmanifoldConv3dProblem, SubmanifoldConv3dWeightsProblem

KIB = 1024


class FakeCuda:
    """The part of the driver that `launches` uses.

    Attributes:
        allowed: requested bytes of dynamic shared memory, in order.
        is_large, counted_large: true if clusters of more than 8 blocks are allowed, and if they were when they were
            counted.
        launched: bytes of dynamic shared memory of each launch.
    """

    def __init__(self) -> None:
        self.allowed: list[int] = []
        self.is_large = self.counted_large = False
        self.launched: list[int] = []

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:  # noqa: N802 - the driver's name
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:  # noqa: N802
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:  # noqa: N802
        if attribute == NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            assert value == 1
            self.is_large = True
        else:
            assert attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.allowed.append(value)
        return 0

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def cuLaunchKernelEx(self, configuration: ctypes.c_void_p, *given: Any) -> int:  # noqa: N802
        assert configuration.value
        found = launches._Configuration.from_address(configuration.value)
        self.launched.append(found.shared_bytes)
        return 0

    def cuOccupancyMaxActiveClusters(self, found: Any, *given: Any) -> int:  # noqa: N802
        assert self.allowed, "as many as are resident with the memory that they take"
        self.counted_large = self.is_large
        found._obj.value = 1
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(launches, "libcuda", lambda: fake)
    monkeypatch.setattr(launches, "check", lambda status, what: None)
    return fake


def kernel(static: int | None) -> CudaKernel:
    compiled: Any = SimpleNamespace(
        read=lambda: b"", binary="kernel.cubin", entry="kernel", static_shared_bytes=static
    )
    return CudaKernel(compiled)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("static", "dynamic", "asks"),
    [
        (0, 48 * KIB, False),
        (0, 48 * KIB + 16, True),
        (4 * KIB, 44 * KIB, False),
        (4 * KIB, 44 * KIB + 16, True),  # 48 KiB are for both together
        (60 * KIB, 0, False),
        (60 * KIB, 16, True),
        (None, 16, True),  # of a compiler that told no size
        (None, 0, False),
    ],
)
def test_leave_is_asked_for_before_a_launch_that_needs_it(
    early: bool, static: int | None, dynamic: int, asks: bool, cuda: FakeCuda
) -> None:
    bound = BoundLaunch(kernel(static), Launch((2, 1, 1), (32, 1, 1), dynamic, starts_early=early), [1, None])
    assert cuda.allowed == ([dynamic] if asks else []) and not cuda.launched
    bound.launch(0, ctypes.addressof(ctypes.create_string_buffer(16)))
    assert cuda.launched == [dynamic]


def test_launches_of_one_kernel_raise_its_limit_and_never_lower_it(cuda: FakeCuda) -> None:
    of_all = kernel(static=0)
    for dynamic in (64 * KIB, 50 * KIB, 100 * KIB, 100 * KIB):
        BoundLaunch(of_all, Launch((1, 1, 1), (32, 1, 1), dynamic), [])
    assert cuda.allowed == [64 * KIB, 100 * KIB]


def test_clusters_are_counted_with_leave(cuda: FakeCuda) -> None:
    launch = Launch((8, 1, 1), (32, 1, 1), 64 * KIB, persistent_cluster=4)
    BoundLaunch(kernel(static=0), launch, []).launch(0)
    assert cuda.allowed == cuda.launched == [64 * KIB]


@pytest.mark.parametrize(("blocks", "is_large"), [(4, False), (8, False), (16, True)])
def test_clusters_beyond_portable_ones_need_leave_before_they_are_counted(
    blocks: int, is_large: bool, cuda: FakeCuda
) -> None:
    launch = Launch((16, 1, 1), (32, 1, 1), 64 * KIB, persistent_cluster=blocks)
    BoundLaunch(kernel(static=0), launch, [])
    assert (cuda.is_large, cuda.counted_large) == (is_large, is_large)


@pytest.mark.parametrize("name", ["gather_conv", "gather_conv_weights"])
def test_no_config_of_points_is_launched_without_leave(name: str, cuda: FakeCuda) -> None:
    """Their stages and lists lie in dynamic memory, counts in static memory beside it."""
    family = families()[name]
    problem_type = SubmanifoldConv3dProblem if name == "gather_conv" else SubmanifoldConv3dWeightsProblem
    asked = 0
    for dtype in (DType.FLOAT16, DType.FLOAT32):
        p = problem_type(5000, 64, 64, dtype)
        start = family.heuristic(p, p.features(p.without_pattern), H100)
        for tile in (32, 64, 128):
            for stages in (2, 3, 4):
                fields = {**start.to_dict(), "tile_m": tile, "tile_n": 64, "step": 64, "stages": stages}
                config = family.config_type(**fields | {"warps_m": 2, "warps_n": 2})
                launch = family.launch(p, config, {}, H100)
                static = family.shared_bytes(p, config) - launch.shared_memory_bytes
                cuda.allowed.clear()
                BoundLaunch(kernel(static), launch, [])
                is_large = launch.shared_memory_bytes + static > 48 * KIB
                assert cuda.allowed == ([launch.shared_memory_bytes] if is_large else [])
                asked += is_large
    assert asked
