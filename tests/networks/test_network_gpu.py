"""Networks in batches, within a budget and on all GPUs: what one launch gives, whichever way inputs and results go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsegen.networks import packing
from sparsegen.networks.images import stroke_images
from sparsegen.networks.inputs import BitInputs
from sparsegen.networks.placement import Placement
from sparsegen.networks.radixnet import radixnet
from sparsegen.networks.sparse_network import SparseNetwork


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [-0.3, 0.05])
@pytest.mark.parametrize("readout", ["totals", "neurons"])
def test_results_are_those_of_one_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, readout: str, bias: float
) -> None:
    monkeypatch.setattr(packing, "TURN_BYTES", 1 << 14)
    config = {"sharing": "layers", "run": 4} | ({"first_check": 5, "checks": 2} if bias < 0 else {})
    net = SparseNetwork(
        radixnet(1024, 24, bias=bias),
        device="cuda",
        db=tmp_path / "tuning.db",
        family="streamed_network",
        config=config,
    )
    y0 = stroke_images(3001, 1024)
    right = net.totals(y0) if readout == "totals" else net(y0)[0]
    living = np.count_nonzero(right.reshape(len(y0), -1).any(axis=1))
    assert 0 < living < len(y0) or (bias > 0 and living == len(y0))
    for memory, devices in ((None, "all"), ("12 MiB", None), ("1800 kB", None), ("1800 kB", "all")):
        plan = net.group(len(y0), readout, Placement.of(memory, devices, "cuda")).packed.plan
        assert plan.batch < len(y0) and (plan.segments > 2) == (memory == "1800 kB")
        for given in (BitInputs.of(y0), y0.astype(np.float16)):
            found = (
                net.totals(given, memory=memory, devices=devices)
                if readout == "totals"
                else net(given, memory=memory, devices=devices)[0]
            )
            np.testing.assert_array_equal(found, right)
    net.release()
