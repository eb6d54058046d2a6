"""One process of `test_torch_distributed_network`: started by torchrun, on the emulator, with gloo.

Its argument is a folder, where a file named after its rank says that all was right: lines of two processes that share
a pipe may mix.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch.distributed as dist

from sparsegen.errors import ConfigError, DeviceMemoryError
from sparsegen.integrations.torch.networks.distributed_network import DistributedNetwork
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.inputs import BitInputs
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.sparse_network import SparseNetwork


def main(told: Path) -> None:
    images = stroke_images(31, 64)
    local = SparseNetwork(radixnet(64, 6, bias=-0.1), device="emulator")
    network = local if dist.get_rank() == 0 else None
    right, active = local(images)
    assert 0 < active.size < 31
    for memory in (None, "60 kB"):
        totals = DistributedNetwork(network, 31, memory=memory, device="emulator")
        assert totals.world_size == 2
        np.testing.assert_array_equal(totals.totals(BitInputs.of(images)), local.totals(images))
        np.testing.assert_array_equal(totals.categories(images), active)
    neurons = DistributedNetwork(network, 31, "neurons", device="emulator")
    found, living = neurons(images)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(living, active)
    # One input: a process has none.
    np.testing.assert_array_equal(neurons(images[:1])[0], right[:1])
    try:
        DistributedNetwork(network, 31, memory=100, device="emulator")
    except (DeviceMemoryError, RuntimeError) as error:
        assert isinstance(error, DeviceMemoryError) == (dist.get_rank() == 0), error
    else:
        raise AssertionError("100 bytes were enough")
    try:
        DistributedNetwork(None, 31, device="emulator")
    except (ConfigError, RuntimeError):
        (told / f"rank {dist.get_rank()}").touch()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(Path(sys.argv[1]))
    dist.destroy_process_group()
    sys.exit(0)
