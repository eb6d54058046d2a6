"""`masked_conv2d`: what is right, for masks of either kind; what it refuses; results that are updated in place."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import sparsegen
from sparsegen import masks
from sparsegen.errors import ConfigError, OperandError
from sparsegen.matrix.spatial_mask import Reach, dilate
from sparsegen.operators import ConvEpilogue, DType, ImageLayout, MaskedConv2dProblem, MaskOf, Rest
from sparsegen.settings import Settings
from sparsegen.system.numpy_types import Array


@pytest.fixture(autouse=True)
def _own_cache(emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    monkeypatch.setenv("SPARSEGEN_DB", str(emulator_settings.cache / "none.db"))


SHAPES = (
    {"filter_size": "3x3"},
    {"filter_size": "4x2", "padding": "2x1", "stride": "1x2", "mask_block": "3x5"},
    {"filter_size": "3x1", "padding": "2x0", "dilation": "2x3", "groups": 2, "stride": 2, "mask_block": 4},
)


def problem(**fields: object) -> MaskedConv2dProblem:
    return MaskedConv2dProblem.of((11, 14), **{"channels": 4, "filters": 6, "mask_block": 4, **fields})


def by_loops(p: MaskedConv2dProblem, x: Array, w: Array) -> Array:
    """The convolution alone, output by output."""
    found = np.zeros((p.out_height, p.out_width, p.filters))
    of_group, per_group = p.group_channels, p.filters // p.groups.count
    taps = list(itertools.product(range(p.filter_size.rows), range(p.filter_size.columns)))
    for row, column, filter_number in np.ndindex(found.shape):
        first = filter_number // per_group * of_group
        for r, s in taps:
            at = row * p.stride.rows - p.padding.rows + r * p.dilation.rows
            beside = column * p.stride.columns - p.padding.columns + s * p.dilation.columns
            if 0 <= at < p.height and 0 <= beside < p.width:
                pixel = x[at, beside, first : first + of_group]
                found[row, column, filter_number] += pixel @ w[filter_number, r, s]
    return found


@pytest.mark.parametrize("mask_of", MaskOf)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_reference_is_the_convolution_by_its_definition(
    shape: dict[str, object], mask_of: MaskOf
) -> None:
    p = problem(**shape, mask_of=mask_of, epilogue="bias_residual", density=0.3)
    given = p.random_operands(np.random.default_rng(3), 0)
    x = given["x"].astype(np.float64)
    if mask_of is MaskOf.ANY_INPUT:
        dead = ~p.live(given["mask"])
        assert x[dead].all(), "what does not count is there"
        x[dead] = 0
    exact = by_loops(p, x, given["w"].astype(np.float64)) + given["bias"]
    if mask_of is MaskOf.OUTPUT:
        exact *= p.live(given["mask"])[..., None]
    found = p.reference(p.without_pattern, given)
    np.testing.assert_allclose(found.exact, exact + given["residual"], atol=1e-12)
    assert (found.magnitude >= np.abs(found.exact) - 1e-6).all()


@pytest.mark.parametrize("mask_of", MaskOf)
def test_with_planes_the_same_numbers_lie_elsewhere(mask_of: MaskOf) -> None:
    p = problem(mask_of=mask_of, epilogue="bias_residual", density=0.3, batch=2, rest="kept")
    planes = replace(p, layout=ImageLayout.NCHW)
    given = p.random_operands(np.random.default_rng(3), 0)
    elsewhere = given | {name: ImageLayout.NCHW.stored(given[name]) for name in ("x", "residual")}
    assert elsewhere["x"].shape == planes.operands(0)[0].shape == (2, 4, 11, 14)
    assert planes.result(0).shape == (2, 6, 11, 14) == elsewhere["residual"].shape
    expected, found = (of.reference(of.without_pattern, on) for of, on in ((p, given), (planes, elsewhere)))
    np.testing.assert_array_equal(ImageLayout.NCHW.by_pixels(found.exact), expected.exact)
    np.testing.assert_array_equal(ImageLayout.NCHW.by_pixels(found.magnitude), expected.magnitude)
    drawn = planes.random_operands(np.random.default_rng(4), 0)
    if mask_of is MaskOf.INPUT:
        pixels = ImageLayout.NCHW.by_pixels(drawn["x"])
        for image, words in zip(pixels, drawn["mask"], strict=True):
            assert not image[~p.live(words)].any() and image[p.live(words)].all()


def test_one_output_of_planes_is_computed_alone_too() -> None:
    p = problem(epilogue="bias_residual", layout="nchw", density=0.9)
    given = p.random_operands(np.random.default_rng(3), 0)
    whole = p.reference(p.without_pattern, given)
    for row in (0, 77, 153):
        alone = p.lone_row(p.without_pattern, given, row, np.random.default_rng(0))
        found = alone.problem.reference(alone.matrix, alone.operands)
        np.testing.assert_allclose(found.exact.ravel(), whole.exact.ravel()[alone.places])


def test_epilogues_are_told_apart() -> None:
    kinds = {e: problem(epilogue=e) for e in ConvEpilogue}
    given = kinds[ConvEpilogue.BIAS_RESIDUAL].random_operands(np.random.default_rng(0), 0)
    found = {e: p.reference(p.without_pattern, given).exact for e, p in kinds.items()}
    live = kinds[ConvEpilogue.NONE].live(given["mask"])
    summed = found[ConvEpilogue.BIAS][live]
    np.testing.assert_allclose(summed, found[ConvEpilogue.NONE][live] + given["bias"])
    np.testing.assert_allclose(found[ConvEpilogue.BIAS_RELU][live], np.maximum(summed, 0))
    np.testing.assert_allclose(found[ConvEpilogue.BIAS_SILU][live], summed / (1 + np.exp(-summed)))
    assert not found[ConvEpilogue.BIAS][~live].any(), "what the mask leaves out is zero"


def test_what_is_kept_is_nan() -> None:
    wanted = problem(rest=Rest.KEPT, density=0.2)
    given = wanted.random_operands(np.random.default_rng(1), 0)
    exact = wanted.reference(wanted.without_pattern, given).exact
    np.testing.assert_array_equal(np.isnan(exact[..., 0]), ~wanted.live(given["mask"]))


def test_of_the_input_whole_units_are_kept() -> None:
    p = problem(mask_of=MaskOf.INPUT, rest=Rest.KEPT)
    blocks = np.zeros((1, *p.mask_shape), dtype=np.bool_)
    blocks[0, 0, 0] = True  # reaches row and column 4, in the first unit of 8 x 8
    computed = p.is_computed(masks.words_of(blocks).ravel())
    assert computed[:8, :8].all() and computed.sum() == 64
    reached = dilate(blocks, (11, 14), 4, Reach((3, 3), padding=(1, 1)), out_block=8)
    np.testing.assert_array_equal(computed[::8, ::8], reached[0])


def test_masks_and_images_agree() -> None:
    p = problem(mask_of=MaskOf.INPUT, density=0.3, batch=3)
    given = p.random_operands(np.random.default_rng(0), 0)
    for image, words in zip(given["x"], given["mask"], strict=True):
        live = p.live(words)
        assert not image[~live].any() and image[live].all()


@pytest.mark.parametrize("mask_of", MaskOf)
@pytest.mark.parametrize("rest", Rest)
def test_one_output_is_a_problem_of_its_own(mask_of: MaskOf, rest: Rest) -> None:
    p = problem(mask_of=mask_of, rest=rest, epilogue="bias_silu", density=0.2, stride="2x1", padding="1x2")
    rng = np.random.default_rng(2)
    given = p.random_operands(rng, 0)
    whole = p.reference(p.without_pattern, given)
    for row in p.checkable_rows(p.without_pattern):
        lone = p.lone_row(p.without_pattern, given, int(row), rng)
        alone = lone.problem.reference(lone.matrix, lone.operands)
        np.testing.assert_allclose(alone.exact.ravel(), whole.exact.ravel()[lone.places], atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"groups": 4}, "filters = 6 is no multiple of groups = 4"),
        ({"filter_size": "7x7", "dilation": 3, "padding": 0}, "filter of 7x7 with dilation 3x3 does not fit"),
        ({"filter_size": "9x9"}, 'no filter size: write "3x5", rows and columns, each from 1 to 7'),
        ({"padding": -1}, "no padding"),
        ({"stride": "2x"}, "no stride"),
        ({"mask_block": 0}, "no block of a mask"),
        ({"groups": 0}, "no number of groups"),
        ({"density": 0}, "no density"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        problem(**fields)


# --- operator objects, on the emulator ---


def prepared(p: MaskedConv2dProblem) -> sparsegen.MaskedConv2dOperator:
    return sparsegen.prepare(problem=p, device="emulator", family="tile_conv")


def test_a_mask_made_from_scores_names_what_is_computed() -> None:
    p = problem()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, dtype=np.float32) for s in ((11, 14, 4), (6, 3, 3, 4)))
    scores = np.zeros((1, 11, 14), np.float32)
    scores[0, 5, 5] = 1.0
    blocks = masks.reduce_mask(scores, 4, 0.5)
    y = prepared(p)(x, w, masks.words_of(blocks).ravel())
    assert not y[:4].any() and not y[8:].any() and y[4:8, 4:8].all()
    np.testing.assert_allclose(y[4:8, 4:8], by_loops(p, x, w)[4:8, 4:8], atol=1e-5)


def test_masks_are_taken_as_words_of_makes_them() -> None:
    p = problem(batch=2)
    given = p.random_operands(np.random.default_rng(0), 0)
    operator = prepared(p)
    blocks = np.random.default_rng(1).random((2, *p.mask_shape)) < 0.4
    words = masks.words_of(blocks)
    wanted = operator(given["x"], given["w"], words.reshape(2, -1))
    for mask in (words, words.ravel()):
        np.testing.assert_array_equal(operator(given["x"], given["w"], mask), wanted)
    with pytest.raises(OperandError, match=r"pass sparsegen\.masks\.words_of\(mask\)"):
        operator(given["x"], given["w"], blocks)
    with pytest.raises(OperandError, match="mask: expected shape"):
        operator(given["x"], given["w"], words[:-1])


def test_what_is_kept_is_left_as_it_was() -> None:
    p = problem(rest=Rest.KEPT, density=0.4)
    given = p.random_operands(np.random.default_rng(0), 0)
    operator = prepared(p)
    out = np.full((11, 14, 6), 7.0, np.float32)
    operator(given["x"], given["w"], given["mask"], out=out)
    live = p.live(given["mask"])
    assert (out[~live] == 7.0).all() and not (out[live] == 7.0).any()
    with pytest.raises(OperandError, match="pass the array that has them as out="):
        operator(given["x"], given["w"], given["mask"])


def test_operands_that_the_epilogue_does_not_take_are_refused() -> None:
    p = problem(epilogue="bias")
    given = p.random_operands(np.random.default_rng(0), 0)
    operator = prepared(p)
    with pytest.raises(OperandError, match=r"takes a bias \(6 values\) and no residual"):
        operator(given["x"], given["w"], given["mask"])
    with pytest.raises(OperandError, match="mask: expected"):
        operator(given["x"], given["w"], given["mask"][:-1], bias=given["bias"])


def test_the_same_fields_in_any_words() -> None:
    assert problem(filter_size=3, stride=(1, 2)) == problem(filter_size="3x3", stride="1x2")
    assert str(problem(dtype=DType.FLOAT16)).startswith(
        "masked_conv2d height=11 width=14 channels=4 filters=6"
    )
