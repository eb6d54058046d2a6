"""Masks that a device makes are the host's, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.errors import LaunchError, MatrixError
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.bits import packed_rows
from sparsegen.matrix.block_mask import BlockMask, BlockMaskLayout, packed
from sparsegen.matrix.block_mask_draw import Drawn, MaskDraw, draw_blocks, random_words, smallest
from sparsegen.plan import plain_launcher
from sparsegen.plan.block_masks import BlockMaskMaker, as_signed, new_state, scratch_words
from sparsegen.plan.mask_sources import BAND, SCORED_BAND, Given, Largest, largest
from sparsegen.plan.mask_sources import given as given_blocks
from sparsegen.system.device_memory import Address
from sparsegen.system.numpy_types import Array

WAIT = "if (early) wait_for_kernel_before();"
LAYOUTS = [(1, 1), (3, 5), (8, 8), (31, 32), (32, 18), (8, 64), (33, 65), (64, 128), (130, 70), (40, 300)]
SOURCE = plain_source("block_mask.cu")


def downloaded(executor: Executor, buffer: object, words: int) -> Array:
    found = np.empty(words, dtype=np.uint64)
    executor.synchronize()
    executor.download(buffer, found)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("drawn", Drawn)
@pytest.mark.parametrize(("rows", "columns"), LAYOUTS)
def test_drawn_masks(executor: Executor, rows: int, columns: int, drawn: Drawn, early: bool) -> None:
    layout = BlockMaskLayout(rows, columns)
    maker, seed, first = BlockMaskMaker(layout, executor), 2**63 + 5, 2**32 - 2
    state, mask = new_state(executor, seed, first), executor.allocate(layout.nbytes)
    steps = iter(range(first, first + 4))
    for p in (0.3, 0.0, 0.9, 0.5):
        draw, step = MaskDraw(p, drawn), next(steps)
        executor.fill(mask, 0xFF)
        maker.bind_draw(draw, early=early)(0, state.address, mask.address)
        expected = draw_blocks(layout, draw, seed, step)
        np.testing.assert_array_equal(downloaded(executor, mask, layout.words), packed(expected))
    assert downloaded(executor, state, 2).tolist() == [seed, first + 4]


@pytest.mark.parametrize("given", Given)
@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (33, 65), (130, 70)])
def test_several_masks_in_one_launch(executor: Executor, rows: int, columns: int, given: Given) -> None:
    layout, several = BlockMaskLayout(rows, columns), 3
    live = np.random.default_rng(rows).random((several, rows, columns)) < 0.4
    made = [packed_rows(one) if given is Given.BITS else one.astype(np.uint8) for one in live]
    source, masks = executor.upload(np.concatenate(made)), executor.allocate(several * layout.nbytes)
    launch = BlockMaskMaker(layout, executor, several).bind(given_blocks(given))
    for _ in range(2):
        executor.fill(masks, 0xFF)
        launch(0, source.address, masks.address)
        found = downloaded(executor, masks, several * layout.words).reshape(several, -1)
        np.testing.assert_array_equal(found, [packed(one) for one in live])


@pytest.mark.parametrize("among", Largest)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (33, 65), (70, 130)])
def test_largest_scores(executor: Executor, rows: int, columns: int, among: Largest) -> None:
    """Few different scores, so that cuts go through equal ones; zeros of both signs are equal."""
    layout, several = BlockMaskLayout(rows, columns), 2
    rng = np.random.default_rng(columns)
    scores = rng.integers(-3, 4, (several, rows, columns)).astype(np.float32) * 0.5
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    scores[rng.random(scores.shape) < 0.1] = np.nan
    scores[rng.random(scores.shape) < 0.05] = np.inf
    scores[rng.random(scores.shape) < 0.1] = -0.0
    source, masks = executor.upload(scores), executor.allocate(several * layout.nbytes)
    lines = scores.reshape(several, -1, columns if among is Largest.ROWS else rows * columns)
    order = np.argsort(-np.nan_to_num(lines, nan=-np.inf, neginf=-np.inf), axis=-1, kind="stable")
    maker = BlockMaskMaker(layout, executor, several)
    for live in {1, -(-lines.shape[-1] // 3), lines.shape[-1]}:
        expected = np.zeros(lines.shape, bool)
        np.put_along_axis(expected, order[..., :live], True, axis=-1)
        expected &= lines > -np.inf
        executor.fill(masks, 0xFF)
        maker.bind(largest(among, live))(0, source.address, masks.address)
        found = downloaded(executor, masks, several * layout.words).reshape(several, -1)
        for words, blocks in zip(found, expected.reshape(scores.shape), strict=True):
            np.testing.assert_array_equal(words, packed(blocks))


def test_draws_follow_each_other(executor: Executor) -> None:
    """Early ones and others, of one state, with nothing in between that would wait for them."""
    layout, draw, steps = BlockMaskLayout(200, 90), MaskDraw(0.4), 30
    maker, state = BlockMaskMaker(layout, executor), new_state(executor, 12)
    masks = [executor.allocate(layout.nbytes) for _ in range(steps)]
    launches = [maker.bind_draw(draw, early=early) for early in (True, True, True, False)]
    for step, mask in enumerate(masks):
        launches[step % 4](0, state.address, mask.address)
    for step, mask in enumerate(masks):
        expected = packed(draw_blocks(layout, draw, 12, step))
        np.testing.assert_array_equal(downloaded(executor, mask, layout.words), expected)


def launched_by_hand(
    toolchain: EmulatorToolchain,
    source: str,
    drawn: Drawn,
    layout: BlockMaskLayout,
    draw: MaskDraw,
    blocks: int = 3,
) -> tuple[Array, Array]:
    """The state and the mask after an early draw of seed 9, step 1; both begin as 0xFF … where nothing is written."""
    executor = EmulatorExecutor()
    kernel = executor.load(toolchain.compile("plain", f"draw_{drawn}", source))
    state, mask = new_state(executor, 9, 1), executor.allocate(layout.nbytes)
    executor.fill(mask, 0xFF)
    scratch = executor.upload(np.zeros(scratch_words(layout), dtype=np.uint64))
    launch = Launch((blocks, 1, 1), (1024, 1, 1))
    amount = as_signed(draw.amount(layout))
    executor.launch(kernel, launch, [layout.rows, layout.columns, amount, 1, state, scratch, mask])
    return downloaded(executor, state, 2), downloaded(executor, mask, layout.words)


@pytest.mark.parametrize("blocks", [3, 1])
@pytest.mark.parametrize("drawn", Drawn)
def test_an_early_draw_writes_neither_mask_nor_state_before_it_waits(
    emulator_toolchain: EmulatorToolchain, drawn: Drawn, blocks: int
) -> None:
    """Kernels before may still read and write both."""
    ended = SOURCE.replace(WAIT, "if (early) return;")
    assert ended.count("if (early) return;") == 1
    layout = BlockMaskLayout(70, 90)
    state, mask = launched_by_hand(emulator_toolchain, ended, drawn, layout, MaskDraw(0.5, drawn), blocks)
    assert state.tolist() == [9, 1] and (mask == 2**64 - 1).all()


@pytest.mark.parametrize("blocks", [3, 1])
@pytest.mark.parametrize("drawn", Drawn)
def test_a_state_that_the_kernel_before_changes_is_drawn_from_as_it_is_then(
    emulator_toolchain: EmulatorToolchain, drawn: Drawn, blocks: int
) -> None:
    changed = SOURCE.replace(WAIT, "if (early) { state[0] = 77, state[1] = 3; __syncthreads(); }")
    layout, draw = BlockMaskLayout(70, 90), MaskDraw(0.5, drawn)
    state, mask = launched_by_hand(emulator_toolchain, changed, drawn, layout, draw, blocks)
    assert state.tolist() == [77, 4]
    np.testing.assert_array_equal(mask, packed(draw_blocks(layout, draw, 77, 3)))


def test_a_state_that_changes_between_the_bands_is_noticed(emulator_toolchain: EmulatorToolchain) -> None:
    """The last thread block may have seen what counts, and another one not."""
    torn = SOURCE.replace(
        "const Random seen = named_by(state);",
        "const Random seen = blockIdx.x == 0 ? Random(4, 4) : named_by(state);",
    )
    assert torn != SOURCE
    layout, draw = BlockMaskLayout(70, 90), MaskDraw(0.5)
    for _ in range(8):  # the first thread block is not always the last one to finish
        state, mask = launched_by_hand(emulator_toolchain, torn, Drawn.BERNOULLI, layout, draw)
        assert state.tolist() == [9, 2]
        np.testing.assert_array_equal(mask, packed(draw_blocks(layout, draw, 9, 1)))


WAITS = "  if (early) {\n    wait_for_kernel_before();\n"  # of the kernel that draws few


def few_drawn_by_hand(
    toolchain: EmulatorToolchain, source: str, layout: BlockMaskLayout
) -> tuple[Array, Array]:
    """The same as of `launched_by_hand` for few independent blocks, half of them live."""
    assert source != SOURCE
    executor, amount = EmulatorExecutor(), as_signed(MaskDraw(0.5).amount(layout))
    kernel = executor.load(toolchain.compile("plain", "draw_few", source))
    state, mask = new_state(executor, 9, 1), executor.allocate(layout.nbytes)
    executor.fill(mask, 0xFF)
    launch = Launch((1, 1, 1), (32, 1, 1))
    executor.launch(kernel, launch, [layout.rows, layout.columns, amount, 1, state, mask])
    return downloaded(executor, state, 2), downloaded(executor, mask, layout.words)


def test_an_early_draw_of_few_blocks_writes_nothing_before_it_waits(
    emulator_toolchain: EmulatorToolchain,
) -> None:
    ended = SOURCE.replace(WAITS, f"  if (early) return;\n{WAITS}")
    state, mask = few_drawn_by_hand(emulator_toolchain, ended, BlockMaskLayout(7, 30))
    assert state.tolist() == [9, 1] and (mask == 2**64 - 1).all()


def test_few_blocks_are_drawn_from_the_state_that_the_kernel_before_leaves(
    emulator_toolchain: EmulatorToolchain,
) -> None:
    changes = "__syncwarp();\n if (lane == 0) state[0] = 77, state[1] = 3;\n __syncwarp();\n"
    layout = BlockMaskLayout(7, 30)
    changed = SOURCE.replace(WAITS, f"{WAITS}    {changes}")
    state, mask = few_drawn_by_hand(emulator_toolchain, changed, layout)
    assert state.tolist() == [77, 4]
    np.testing.assert_array_equal(mask, packed(draw_blocks(layout, MaskDraw(0.5), 77, 3)))


class Refusing:
    """An executor whose launches say which scratch memory they were bound to, and which may be refused."""

    def __init__(self, compute_capability: tuple[int, int]) -> None:
        self.device = SimpleNamespace(compute_capability=compute_capability)
        self.launched: list[tuple[int, bool]] = []
        self.grids: list[tuple[int, int, int]] = []
        self.refuses = False
        self._allocated = 0

    def allocate(self, nbytes: int) -> Address:
        self._allocated += 1
        return Address(self._allocated)

    def fill(self, buffer: object, byte: int) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def bind(self, kernel: object, launch: Launch, arguments: list[object]) -> Callable[..., None]:
        scratch = next(argument for argument in arguments if isinstance(argument, Address))
        self.grids.append(launch.grid)

        def start(stream: int, *addresses: int) -> None:
            if self.refuses:
                raise LaunchError("refused")
            self.launched.append((scratch.address, launch.starts_early))

        return start


@pytest.mark.parametrize(("capability", "starts_early"), [((8, 0), False), ((9, 0), True), ((10, 0), True)])
def test_two_scratch_memories_take_turns(
    capability: tuple[int, int], starts_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws may begin while the launch before them still reads its own."""
    monkeypatch.setattr(plain_launcher, "compiled_kernels", lambda *_: [None])
    executor = Refusing(capability)
    maker = BlockMaskMaker(BlockMaskLayout(70, 90), executor)  # type: ignore[arg-type]
    draws = [maker.bind_draw(MaskDraw(0.5), early=early) for early in (True, False)]
    finish = maker.bind(given_blocks(Given.BITS))
    for launch in (draws[0], draws[0], draws[1], finish, draws[0]):
        launch(0, 1, 2)
    executor.refuses = True
    with pytest.raises(LaunchError):
        finish(0, 1, 2)
    executor.refuses = False
    finish(0, 1, 2)
    assert executor.launched == [(turn, starts_early) for turn in (1, 2, 1, 2, 1, 2)]


@pytest.mark.parametrize(("rows", "drawn_by"), [(32, 1), (128, 1), (129, 5)])
def test_one_thread_block_draws_a_small_mask_and_several_make_others(
    rows: int, drawn_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bands of given masks are made side by side, as are those of draws that count; each is bound twice."""
    monkeypatch.setattr(plain_launcher, "compiled_kernels", lambda *_: [None])
    executor, bands = Refusing((9, 0)), -(-rows // BAND)
    maker = BlockMaskMaker(BlockMaskLayout(rows, 90), executor, 3)  # type: ignore[arg-type]
    maker.bind_draw(MaskDraw(0.5))
    maker.bind_draw(MaskDraw(0.5, Drawn.EXACT_ROWS))
    maker.bind(given_blocks(Given.BITS))
    maker.bind(largest(Largest.ROWS, 4))
    scored = (-(-rows // SCORED_BAND), 3, 1)
    assert executor.grids[::2] == [(drawn_by, 1, 1), (bands, 1, 1), (bands, 3, 1), scored]


@pytest.mark.parametrize(("rows", "columns"), LAYOUTS)
def test_given_masks(executor: Executor, rows: int, columns: int) -> None:
    layout = BlockMaskLayout(rows, columns)
    maker, mask = BlockMaskMaker(layout, executor), executor.allocate(layout.nbytes)
    for density in (0.5, 0.0, 1.0, 0.1):
        live = np.random.default_rng(rows).random((rows, columns)) < density
        past = packed_rows(np.ones((rows, 64 * layout.row_words), dtype=bool)) ^ packed_rows(
            np.ones((rows, columns), dtype=bool)
        )
        for given, array in (
            (Given.BITS, packed_rows(live)),
            (Given.BITS, packed_rows(live) | past),  # bits past a row's end count for nothing
            (Given.BOOLS, live.astype(np.uint8) * 255),
        ):
            executor.fill(mask, 0xFF)
            source = executor.upload(array)
            maker.bind(given_blocks(given))(0, source.address, mask.address)
            np.testing.assert_array_equal(downloaded(executor, mask, layout.words), packed(live))


def test_a_large_mask(executor: Executor) -> None:
    layout, draw = BlockMaskLayout(1024, 1024), MaskDraw(0.5)
    state, mask = new_state(executor, 1), executor.allocate(layout.nbytes)
    BlockMaskMaker(layout, executor).bind_draw(draw)(0, state.address, mask.address)
    found = BlockMask((1024, 1024), (1, 1), downloaded(executor, mask, layout.words))
    np.testing.assert_array_equal(found.blocks(), draw_blocks(layout, draw, 1, 0))


@pytest.mark.parametrize(("rows", "columns"), [(4096, 3), (3, 4096)])
def test_as_many_lines_as_there_may_be(executor: Executor, rows: int, columns: int) -> None:
    layout, draw = BlockMaskLayout(rows, columns), MaskDraw(0.25, Drawn.EXACT_ROWS)
    state, mask = new_state(executor, 3), executor.allocate(layout.nbytes)
    BlockMaskMaker(layout, executor).bind_draw(draw)(0, state.address, mask.address)
    expected = packed(draw_blocks(layout, draw, 3, 0))
    np.testing.assert_array_equal(downloaded(executor, mask, layout.words), expected)


def test_too_many_lines(executor: Executor) -> None:
    with pytest.raises(MatrixError, match=r"at most 4096 × 4096 blocks, got 4097 × 2; take larger blocks"):
        BlockMaskMaker(BlockMaskLayout(4097, 2), executor)


@pytest.mark.parametrize("drawn", [Drawn.EXACT_ROWS, Drawn.EXACT_WHOLE])
def test_equal_words(emulator_toolchain: EmulatorToolchain, drawn: Drawn) -> None:
    """Keys of 4 bits make nearly every cut go through equal ones."""
    short = SOURCE.replace("kKeyShift = 0", "kKeyShift = 28")
    assert short != SOURCE
    executor, entry = EmulatorExecutor(), f"draw_{drawn}"
    kernel = executor.load(emulator_toolchain.compile("plain", entry, short))
    layout = BlockMaskLayout(37, 150)
    words = random_words(layout, 9, 1) >> np.uint32(28)
    for p in (0.1, 0.5, 0.95):
        live = MaskDraw(p, drawn).amount(layout)
        grouped = words if drawn == Drawn.EXACT_ROWS else words.reshape(1, -1)
        expected = smallest(grouped, live).reshape(words.shape)
        scratch = executor.upload(np.zeros(scratch_words(layout), dtype=np.uint64))
        mask = executor.allocate(layout.nbytes)
        arguments = [37, 150, live, 0, new_state(executor, 9, 1), scratch, mask]
        executor.launch(kernel, Launch((2, 1, 1), (1024, 1, 1)), arguments)
        np.testing.assert_array_equal(downloaded(executor, mask, layout.words), packed(expected))


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "entry",
    [
        *("draw_bernoulli", "draw_exact_rows", "draw_exact_whole", "finish_bits", "finish_bools"),
        *("largest_of_rows", "largest_of_whole"),
    ],
)
def test_nothing_out_of_bounds(emulator_toolchain: EmulatorToolchain, entry: str) -> None:
    files = {"largest_of_rows": "scored_mask.cu", "largest_of_whole": "largest_mask.cu"}
    band = SCORED_BAND if entry == "largest_of_rows" else BAND
    source = plain_source(files[entry]) if entry in files else SOURCE
    compiled = emulator_toolchain.compile_sanitized("plain", entry, source)
    for rows, columns in ((1, 1), (37, 150), (70, 3)):
        layout = BlockMaskLayout(rows, columns)
        live = draw_blocks(layout, MaskDraw(0.5), 4, 0)
        scratch = np.zeros(scratch_words(layout), dtype=np.uint64)
        mask = np.full(layout.words, 2**64 - 1, dtype=np.uint64)
        given: list[int | Array] = [packed_rows(live)] if entry == "finish_bits" else [live.astype(np.uint8)]
        if entry.startswith("draw"):
            draw = MaskDraw(0.5, Drawn(entry.removeprefix("draw_")))
            live = draw_blocks(layout, draw, 4, 0)
            given = [as_signed(draw.amount(layout)), int(rows < 70), np.array([4, 0], dtype=np.uint64)]
        if entry.startswith("largest"):  # as many as live, scored so
            live[:] = np.arange(columns) < (columns + 1) // 2
            kept = int(live.sum()) if entry.endswith("whole") else int(live[0].sum())
            given = [kept, live.astype(np.float32)]
        launch = Launch((-(-rows // band), 1, 1), (32 * band, 1, 1))
        *_, left, found = run_sanitized(compiled.binary, launch, [rows, columns, *given, scratch, mask])
        np.testing.assert_array_equal(found, packed(live))
        assert left[0] == 0, "the next launch counts from zero"
