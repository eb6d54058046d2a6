"""Images of strokes: seeded, enlarged, black or white."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.errors import ConfigError
from sparsegen.networks.model.images import stroke_images


@pytest.mark.parametrize("neurons", [1024, 4096, 65536])
def test_about_a_fourteenth_is_black_at_every_size(neurons: int) -> None:
    images = stroke_images(300 if neurons < 65536 else 40, neurons)
    assert images.dtype == np.uint8 and set(np.unique(images)) == {0, 1}
    assert 0.05 < images.mean() < 0.10
    assert (images.any(axis=1)).all()


def test_an_image_depends_on_seed_and_number_alone() -> None:
    whole = stroke_images(700, 256, seed=4)
    np.testing.assert_array_equal(stroke_images(50, 256, seed=4), whole[:50])
    assert (stroke_images(5, 256, seed=5) != whole[:5]).any()


def test_larger_images_are_the_same_strokes() -> None:
    small, large = stroke_images(20, 1024), stroke_images(20, 4096).reshape(20, 32, 2, 32, 2)
    agreement = (large.mean(axis=(2, 4)) > 0.5).reshape(20, 1024) == small
    assert agreement.mean() > 0.97


def test_widths_that_are_no_squares_are_refused() -> None:
    with pytest.raises(ConfigError, match="square"):
        stroke_images(1, 1000)
