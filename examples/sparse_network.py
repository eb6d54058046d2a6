"""A sparse network of the Graph Challenge, small: 12 layers in one launch, and categories that equal float64's.

python examples/sparse_network.py
"""

import sparsegen
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.radixnet import radixnet

NEURONS, LAYERS, IMAGES = 256, 8, 16
net = sparsegen.SparseNetwork(radixnet(NEURONS, LAYERS, bias=-0.05), family="staged_network")
y0 = stroke_images(IMAGES, NEURONS)

y, active = net(y0)  # the last layer's neurons, and which images still live
print(net)
print(f"{len(active)} of {IMAGES} images live, {(y > 0).mean():.0%} of their neurons")
exact = net.categories(y0)
print(
    f"{len(exact)} live in float64; {net.undecided} were too close to tell in float16 and were computed again"
)
print(net.explain(IMAGES).splitlines()[0])
