"""`KernelMap`, `submanifold_conv3d` and `SubmanifoldConv3d`: what they compute, gradients, graphs, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuda_graphs import captured  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sparsegen.errors import ConfigError, MatrixError, OperandError  # noqa: E402
from sparsegen.integrations.torch import KernelMap, SubmanifoldConv3d, submanifold_conv3d  # noqa: E402
from sparsegen.integrations.torch.points import submanifold, whole_vectors  # noqa: E402
from sparsegen.integrations.torch.points.kernel_maps import places_for  # noqa: E402
from sparsegen.matrix.kernel_map import kernel_map  # noqa: E402
from sparsegen.operators import (  # noqa: E402
    DType,
    FilterVolume,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
)
from sparsegen.tuning.prediction.targets import find_target  # noqa: E402

SIDE = 5
SIZES = [(3, 3, 3), (1, 3, 5)]


def scene(dtype: Any = torch.float32, device: str = "cpu") -> tuple[Any, Any, Any]:
    """Points of two scenes in any order, their features, and where they lie in full grids."""
    torch.manual_seed(0)
    is_point = torch.rand(2, SIDE, SIDE, SIDE) < 0.4
    cells = is_point.nonzero()
    cells = cells[torch.randperm(len(cells))]
    x = torch.randn(len(cells), 4, dtype=dtype)
    return cells.int().to(device), x.to(device), cells.to(device)


def dense(x: Any, weight: Any, bias: Any, cells: Any) -> Any:
    """The convolution of full grids, at the points."""
    grid = x.new_zeros(2, SIDE, SIDE, SIDE, x.shape[1]).index_put(tuple(cells.t()), x)
    padding = tuple(side // 2 for side in weight.shape[1:4])
    found = functional.conv3d(
        grid.permute(0, 4, 1, 2, 3), weight.permute(0, 4, 1, 2, 3), bias, padding=padding
    )
    return found.permute(0, 2, 3, 4, 1)[tuple(cells.t())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_it_is_the_dense_convolution_at_the_points(place: str, size: tuple[int, ...], dtype: Any) -> None:
    coordinates, x, cells = scene(dtype)
    weight, bias = (torch.randn(6, *size, 4) / 8).to(dtype), torch.randn(6).to(dtype)
    points = KernelMap.of(coordinates, size)
    y = submanifold_conv3d(x, weight, points, bias, relu=True)
    exact = dense(x.double(), weight.double(), bias.double(), cells).relu()
    assert y.dtype is dtype and y.shape == (len(x), 6)
    rough = 2e-2 if dtype is torch.bfloat16 else 2e-3
    torch.testing.assert_close(y.double(), exact, rtol=rough, atol=rough)


def test_gradients(place: str) -> None:
    coordinates, x, cells = scene()
    layer = SubmanifoldConv3d(4, 6)
    x.requires_grad_()
    points = KernelMap.of(coordinates)
    weights = torch.randn(len(x), 6)
    found = torch.autograd.grad((layer(x, points) * weights).sum(), [x, layer.weight, layer.bias])
    wide = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
    exact = torch.autograd.grad((dense(*wide, cells) * weights.double()).sum(), wide)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_odd_channels_are_padded_where_that_takes_less_time(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []

    def noted(problem: Any, *rest: Any) -> Any:
        ran.append((problem.channels, problem.filters))
        return run(problem, *rest)

    run = submanifold._run
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(submanifold, "_run", noted)
    monkeypatch.setattr(submanifold, "padded", whole_vectors.padded.__wrapped__)
    monkeypatch.setattr(whole_vectors, "is_faster_padded", lambda *_: True)
    coordinates, x, cells = scene()
    drawn = torch.cat([x, x[:, :1]], 1), torch.randn(7, 3, 3, 3, 5) / 8, torch.randn(7)
    ours = [t.to(dtype).requires_grad_() for t in drawn]
    wide = [t.detach().double().requires_grad_() for t in ours]
    y = submanifold_conv3d(ours[0], ours[1], KernelMap.of(coordinates), ours[2])
    exact, seed = dense(*wide, cells), torch.randn(len(x), 7).to(dtype)
    torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=1e-2)
    y.backward(seed)
    exact.backward(seed.double())
    for own, right in zip(ours, wide, strict=True):
        torch.testing.assert_close(own.grad.double(), right.grad, rtol=2e-2, atol=2e-2)
    assert ran == [(8, 7), (8, 5), (8, 8)]


def test_what_is_padded() -> None:
    """Odd channels of many points; no channels that vectors divide, and no point or two."""
    h200 = find_target("nvidia-h200").device
    many = SubmanifoldConv3dProblem(192395, 9, 39, DType.FLOAT16)
    found = whole_vectors.padded(many, h200)
    assert found is not None and found.channels == 16
    single = whole_vectors.padded(replace(many, dtype=DType.FLOAT32), h200)
    assert single is not None and single.channels == 12
    weights = whole_vectors.padded(SubmanifoldConv3dWeightsProblem(203627, 50, 82, DType.BFLOAT16), h200)
    assert weights is not None and (weights.channels, weights.filters) == (56, 88)
    assert whole_vectors.padded(replace(many, channels=16), h200) is None
    assert whole_vectors.padded(replace(many, points=64, filter_volume=FilterVolume(1, 1, 1)), h200) is None


def test_gradients_of_gradients() -> None:
    coordinates, x, _ = scene(torch.float64)
    weight, bias = (
        torch.randn(3, 3, 3, 3, 4).double().requires_grad_(),
        torch.randn(3).double().requires_grad_(),
    )
    points, x = KernelMap.of(coordinates), x.requires_grad_()

    def run(x: Any, weight: Any, bias: Any) -> Any:
        return submanifold_conv3d(x, weight, points, bias)

    assert torch.autograd.gradcheck(run, (x, weight, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (x, weight, bias), fast_mode=True)


def test_the_operators_are_ones_that_pytorch_trusts() -> None:
    coordinates, x, _ = scene()
    words = KernelMap.of(coordinates).words
    weight, dy = torch.randn(6, 3, 3, 3, 4), torch.randn(len(x), 6)
    for name, given in {
        "kernel_map": (coordinates, [3, 3, 3], [1, 1, 1]),
        "submanifold_conv3d": (x, weight, words, None, 0.3, False),
        "submanifold_conv3d_weights": (x, dy, words, [3, 3, 3], 0.3),
    }.items():
        torch.library.opcheck(getattr(torch.ops.sparsegen, name).default, given)


def test_maps_of_the_host_and_of_the_emulator(place: str) -> None:
    coordinates, _, _ = scene()
    coordinates[3, 0] = -1
    made = KernelMap.of(coordinates, (3, 1, 5), (2, 1, 1))
    assert made.places == places_for(len(coordinates)) and made.points == len(coordinates)
    rows = np.full((made.places, 4), -1, np.int32)
    rows[: made.points] = coordinates.numpy()
    assert np.array_equal(made.words.numpy(), kernel_map(rows, (3, 1, 5), (2, 1, 1)))


def test_a_point_without_a_batch_reads_nothing_and_is_read_by_none(place: str) -> None:
    coordinates, x, _ = scene()
    weight = torch.randn(6, 3, 3, 3, 4)
    kept = torch.arange(len(x)) % 3 > 0
    alone = submanifold_conv3d(x[kept], weight, KernelMap.of(coordinates[kept]))
    coordinates[~kept, 0] = -1
    y = submanifold_conv3d(x, weight, KernelMap.of(coordinates))
    torch.testing.assert_close(y[kept], alone, rtol=1e-5, atol=1e-5)
    assert not y[~kept].any()


def test_points_that_are_equal_are_refused(place: str) -> None:
    coordinates, x, _ = scene()
    weight = torch.randn(6, 3, 3, 3, 4)
    twice = torch.cat((coordinates, coordinates[7:9], torch.full((2, 4), -1, dtype=torch.int32)))
    count = len(coordinates)
    with pytest.raises(
        MatrixError, match=rf"2 points lie where an earlier one does, the first is point {count} "
    ):
        KernelMap.of(twice)
    made = KernelMap.of(twice, refuse_equal=False)
    assert made.repeated().tolist() == [count, count + 1]
    y = submanifold_conv3d(torch.cat((x, torch.randn(4, 4))), weight, made)
    alone = submanifold_conv3d(x, weight, KernelMap.of(coordinates))
    torch.testing.assert_close(y[:count], alone)  # the first of each alone is read
    torch.testing.assert_close(y[count : count + 2], alone[7:9])


def test_scenes_of_about_equal_size_have_equal_places() -> None:
    for points in (1, 31, 256, 1000, 100_000):
        places = places_for(points)
        assert points <= places <= max(points * 1.125 + 1, points + 32)
    assert len({places_for(points) for points in range(65_536, 131_072, 97)}) <= 9


def test_what_does_not_fit_is_refused() -> None:
    coordinates, x, _ = scene()
    points, weight = KernelMap.of(coordinates), torch.randn(6, 3, 3, 3, 4)
    with pytest.raises(OperandError, match="coordinates: expected int32"):
        KernelMap.of(coordinates.long())
    with pytest.raises(MatrixError, match="filters have a middle tap"):
        KernelMap.of(coordinates, 2)
    with pytest.raises(MatrixError, match="one odd number up to 7"):
        SubmanifoldConv3d(4, 6, 9)
    for channels in ((0, 6), (4, -1)):
        with pytest.raises(ConfigError, match=r"_channels = .* is below 1"):
            SubmanifoldConv3d(*channels)
    with pytest.raises(OperandError, match="kernel_map = None is no KernelMap"):
        submanifold_conv3d(x, weight, None)
    with pytest.raises(OperandError, match="as the kernel map has"):
        submanifold_conv3d(x[:-1], weight, points)
    with pytest.raises(OperandError, match="weight: expected shape filters × 3 × 3 × 3 × 4"):
        submanifold_conv3d(x, weight[:, :1], points)
    with pytest.raises(OperandError, match="bias: expected shape 6"):
        submanifold_conv3d(x, weight, points, torch.zeros(5))
    with pytest.raises(OperandError, match="relu=True needs a bias"):
        submanifold_conv3d(x, weight, points, relu=True)


@pytest.mark.gpu
def test_a_network_of_layers_is_captured_with_its_map() -> None:
    coordinates, x, cells = scene(torch.float16, "cuda")
    layers = nn.ModuleList([SubmanifoldConv3d(4, 16), SubmanifoldConv3d(16, 8)]).cuda().half()

    def run() -> Any:
        points = KernelMap.of(coordinates)
        return layers[1](torch.relu(layers[0](x, points)), points)

    with torch.no_grad():
        graph, y = captured(run)
        x.normal_()
        coordinates[:5, 0] = -1  # fewer points
        graph.replay()
        torch.cuda.synchronize()
        wide = [layer.weight.double() for layer in layers], [layer.bias.double() for layer in layers]
        kept = coordinates[:, 0] >= 0
        first = dense(x.double()[kept], wide[0][0], wide[1][0], cells[kept]).relu()
        exact = dense(first, wide[0][1], wide[1][1], cells[kept])
        torch.testing.assert_close(y[kept].double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_a_compiled_network_trains_as_the_plain_one() -> None:
    coordinates, x, cells = scene(torch.float32, "cuda")
    layer = SubmanifoldConv3d(4, 6).cuda()
    points = KernelMap.of(coordinates)
    compiled = torch.compile(lambda x: torch.relu(layer(x, points)).square().sum(), backend="aot_eager")
    x.requires_grad_()
    compiled(x).backward()
    wide = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
    dense(*wide, cells).relu().square().sum().backward()
    for one, other in zip((x, layer.weight, layer.bias), wide, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-3)


def test_autocast_casts_as_for_a_dense_layer() -> None:
    layer = SubmanifoldConv3d(5, 6)
    points = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 2], [0, 1, 2, 2]], dtype=torch.int32)
    kernel_map = KernelMap.of(points)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(torch.randn(3, 5), kernel_map)
    assert found.dtype == torch.bfloat16
