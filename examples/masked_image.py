"""A convolution of the parts of an image that changed since the last frame; blocks that did not are not computed.

python examples/masked_image.py [picture.png]
"""

import sys

import numpy as np

import sparsegen
from sparsegen import masks

SIDE, CHANNELS, BLOCK = 64, 16, 16
rng = np.random.default_rng(0)
previous = rng.random((1, SIDE, SIDE, CHANNELS), dtype=np.float32)
frame = previous.copy()
frame[0, 20:36, 40:50] = rng.random((16, 10, CHANNELS))  # something moved
w = 0.1 * rng.standard_normal((CHANNELS, 3, 3, CHANNELS), dtype=np.float32)

sizes = {"height": SIDE, "width": SIDE, "channels": CHANNELS, "filters": CHANNELS, "mask_block": BLOCK}
conv = sparsegen.prepare(operator="masked_conv2d", **sizes, density=0.25, epilogue="none")
every = np.ones((1, SIDE // BLOCK, SIDE // BLOCK), bool)
changed = masks.from_difference(frame, previous, block=BLOCK, threshold=1e-3)
seeing = masks.dilate(changed, (SIDE, SIDE), BLOCK, masks.Reach((3, 3), padding=(1, 1)))  # a change is near

before = conv(previous[0], w, masks.words_of(every))
some = conv(frame[0], w, masks.words_of(seeing))
found = np.where(np.kron(seeing[0], np.ones((BLOCK, BLOCK), bool))[..., None], some, before)
whole = conv(frame[0], w, masks.words_of(every))
print(f"{changed.sum()} of {changed.size} blocks changed, {seeing.sum()} were computed")
print(f"the same as the whole image: {np.array_equal(found, whole)}")
if len(sys.argv) > 1:
    from matplotlib.image import imsave

    imsave(sys.argv[1], np.hstack([whole[..., 0], np.abs(found - before)[..., 0]]), cmap="magma")
