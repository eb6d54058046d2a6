"""Both gradients of a masked product at once: two streams in a capture, and kernels that leave each other room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sparsegen import api  # noqa: E402
from sparsegen.integrations.torch import BlockMaskTensor, dsd  # noqa: E402
from sparsegen.integrations.torch.blocks import concurrent_gradients as gradients  # noqa: E402
from sparsegen.integrations.torch.blocks import masked_products, product_launch  # noqa: E402
from sparsegen.integrations.torch.calls import devices, launches, side_stream  # noqa: E402
from sparsegen.integrations.torch.calls.prepared_operators import Operators  # noqa: E402
from sparsegen.integrations.torch.calls.side_stream import at_once  # noqa: E402
from sparsegen.kernels import family  # noqa: E402
from sparsegen.operators import DsdProblem, DsdTransposedProblem, DType, SddProblem  # noqa: E402
from sparsegen.plan.variant_launcher import VariantLauncher  # noqa: E402
from sparsegen.tuning.prediction.targets import find_target  # noqa: E402

H200 = find_target("nvidia-h200").device
CAPTURED = 7  # a stream


class Stream:
    """Stand-in for a stream of PyTorch's."""

    def __init__(self, number: int, log: list[tuple[Any, ...]]) -> None:
        self.number, self._log = number, log

    def wait_stream(self, other: Stream) -> None:
        self._log.append((self.number, "waits for", other.number))


class Streams:
    """The streams of a device, with a log of what happens on which."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.current = Stream(CAPTURED, self.log)
        monkeypatch.setattr(side_stream, "_sides", {})
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        handed = count(CAPTURED + 1)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(next(handed), self.log))
        monkeypatch.setattr(torch.cuda, "stream", self.entered)

    @contextmanager
    def entered(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def runs(self, what: str) -> str:
        self.log.append((self.current.number, what))
        return what


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    return Streams(monkeypatch)


FORK, JOIN = (8, "waits for", CAPTURED), (CAPTURED, "waits for", 8)


def test_the_second_runs_on_a_side_stream_that_is_joined(streams: Streams) -> None:
    device = torch.device("cuda", 0)
    for _ in range(2):
        assert at_once(lambda: streams.runs("a"), lambda: streams.runs("b"), device) == ("a", "b")
    assert streams.log == 2 * [FORK, (CAPTURED, "a"), (8, "b"), JOIN]
    assert len(side_stream._sides) == 1, "a captured stream has one side stream"


def test_a_failure_leaves_no_stream_unjoined(streams: Streams) -> None:
    def fails() -> None:
        raise RuntimeError("no memory")

    for main, beside in ((fails, lambda: None), (lambda: None, fails)):
        streams.log.clear()
        with pytest.raises(RuntimeError, match="no memory"):
            at_once(main, beside, torch.device("cuda", 0))
        assert streams.log == [FORK, JOIN] and streams.current.number == CAPTURED


@pytest.mark.parametrize("size", [512, 1024, 2048])
@pytest.mark.parametrize("problem", [SddProblem, DsdTransposedProblem, DsdProblem])
def test_kernels_that_leave_room_have_half_of_the_multiprocessors(problem: Any, size: int) -> None:
    asked = problem(size, size, size, DType.FLOAT16)
    found = family(f"tma_{asked.operator}")
    alone = found.heuristic(asked, asked.features(asked.without_pattern), H200)
    beside = found.beside_another(asked, alone, H200)
    if size == 2048:
        assert beside is None, "tiles of 256 columns fill the device"
        return
    assert beside == replace(alone, tile_n={512: 64, 1024: 128}[size], cluster=1)
    blocks = found.launch(asked, beside, {}, H200).grid[0]
    assert blocks == {512: 4 * 8, 1024: 8 * 8}[size]


def test_a_sampled_launch_has_a_block_for_each_tile() -> None:
    # The last block of the mask is cut off, and counts as a whole one.
    found, asked = family("tma_sdd"), SddProblem(1000, 900, 512, DType.FLOAT16)
    for tile_n, tiles in ((64, 16), (128, 8), (256, 4)):
        config = found.config(tile_n=tile_n, cluster=1)
        assert found.launch(asked, config, {}, H200).grid == (8 * tiles, 1, 1)


class Operator:
    """Stand-in for the result of `sparsegen.prepare` on an H200; its launches are noted."""

    def __init__(self, problem: Any, streams: Streams, config: dict[str, Any]) -> None:
        self.problem, self.device = problem, H200
        self.launcher = object.__new__(VariantLauncher)
        chosen = family(f"tma_{problem.operator}").config(**config)
        self.launcher.choice = SimpleNamespace(config=chosen)
        self.threads: set[int] = set()

        def launch(stream: int, *addresses: int) -> None:
            streams.runs(f"{problem.operator} {chosen.tile_n}")

        def bound() -> Any:
            self.threads.add(threading.get_ident())
            return launch

        self.launcher.prepared = SimpleNamespace(
            bound=bound,
            launching=threading.Lock(),
            operands=problem.operands(0),
            result=problem.result(0),
        )
        self.launcher.kept_address = lambda name: 0


def test_gradients_run_at_once_in_graphs_alone(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with kernels whose launches the calls before the capture have prepared."""
    made: list[Operator] = []

    def prepare(problem: Any, device: Any, config: Any = None, family: Any = None, **_: Any) -> Operator:
        made.append(Operator(problem, streams, config or {"tile_n": 64, "cluster": 1}))
        return made[-1]

    mask = BlockMaskTensor.from_blocks(torch.ones(8, 8, dtype=torch.bool), 128)
    captures = [False]
    monkeypatch.setattr(api, "prepare", prepare)
    monkeypatch.setattr(product_launch, "operators", Operators())
    monkeypatch.setattr(launches.calls, "known", {})
    monkeypatch.setitem(devices._gpus, torch.device("cpu"), H200)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: CAPTURED, raising=False)
    for module in (gradients, launches, masked_products):
        monkeypatch.setattr(module, "is_capturing", lambda tensor: captures[0])
    shared: dict[str, Any] = {"dtype": torch.float16, "requires_grad": True}
    x, weight = torch.ones(1024, 1024, **shared), torch.ones(1024, 1024, **shared)

    bias: Any = None

    def step() -> list[tuple[Any, ...]]:
        y = dsd(x, weight, mask, bias, scale=2.0, dense="never")
        streams.log.clear()
        y.backward(torch.ones_like(y))
        return [*streams.log]

    in_turn = [(CAPTURED, "sdd 64"), (CAPTURED, "dsd_transposed 64")]
    assert step() == in_turn
    assert [len(one.threads) for one in made] == [1] * 5, "wide ones are bound before they are captured"
    captures[0] = True
    apart = [(CAPTURED, "sdd 128"), (8, "dsd_transposed 128")]
    assert step() == [FORK, *apart, JOIN]
    captures[0], bias = False, torch.ones(1024, **shared)
    sums = lambda d: streams.runs("sums") and d.sum(0)  # noqa: E731
    monkeypatch.setattr(masked_products, "sums_like", lambda d: sums)
    assert step() == [*in_turn, (CAPTURED, "sums")]
    captures[0] = True
    inner = (9, "waits for", 8), apart[1], (9, "sums"), (8, "waits for", 9)
    assert step() == [FORK, apart[0], *inner, JOIN], "sums wait for no product"
    x.requires_grad_(False)
    bias = None
    assert step() == in_turn[1:], "a single gradient needs no other stream"
    assert len(made) == 6, "one more for the bias, of the forward product"


def test_a_first_call_that_is_captured_prepares_no_other_kernels(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []

    def launch(*tensors: Any, out: Any = None) -> Any:
        launched.append("in turn")
        return tensors[0]

    def prepared(*_: Any) -> Any:
        raise AssertionError("nothing can be prepared while a graph is captured")

    monkeypatch.setattr(launches.calls, "known", {})
    monkeypatch.setattr(masked_products, "is_capturing", lambda tensor: True)
    monkeypatch.setattr(masked_products, "_launch_both", prepared)
    for name in ("_launch_sdd", "_launch_transposed"):
        monkeypatch.setattr(masked_products, name, lambda *_: launch)
    mask = BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool), 16)
    d = torch.ones(32, 32)
    given, of_mask = (
        (d, d.clone(), d.clone(), mask.words),
        (1.0, *mask.shape, *mask.block, mask.density, "never"),
    )
    masked_products.gradient_launches(*given, of_mask, (True, True, False))(*given)
    assert launched == ["in turn"] * 2


def test_a_pool_that_hands_out_the_captured_stream_is_asked_again(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = iter((streams.current, streams.current, Stream(8, streams.log)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: next(handed))
    at_once(lambda: streams.runs("a"), lambda: streams.runs("b"), torch.device("cuda", 0))
    assert streams.log == [FORK, (CAPTURED, "a"), (8, "b"), JOIN]
