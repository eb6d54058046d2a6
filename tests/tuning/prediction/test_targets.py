"""Devices by description: complete, with sources, found by dispatch under the driver's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from job_samples import NOTHING_KNOWN
from tuning_samples import H100

from sparsegen.errors import ConfigError
from sparsegen.kernels.rates import architecture
from sparsegen.tuning.jobs.job import find_target as find_job_target
from sparsegen.tuning.prediction.targets import FOLDER, described, find_target, read_target, targets
from sparsegen.tuning_db.seeds_reader import seeds


def test_every_description_is_read_and_says_its_sources() -> None:
    assert set(targets()) == {"nvidia-h100", "nvidia-h200", "nvidia-a100", "nvidia-l40s", "nvidia-b200"}
    for name, target in targets().items():
        assert target.sources and target.name == name
        rates = target.device.expected_rates
        assert target.device.memory_bytes_per_us and target.device.clock_mhz
        assert rates.copy_bytes_per_us < target.device.memory_bytes_per_us, "less than the peak"
        # The architecture's own table agrees with the published peak within clocks that boards differ in.
        lanes = architecture(target.device.compute_capability)
        peak = lanes.tensor_flop * target.device.multiprocessors * target.device.clock_mhz
        assert 0.6 < rates.float16_flop_per_us / peak < 0.8


def test_the_packaged_measurements_are_of_described_devices() -> None:
    measured = {t.device.key: t.device for t in seeds().list_workloads()}
    known = [find_target(name).device for name in ("nvidia-h100", "nvidia-h200")]
    assert {target.key: target for target in known} == measured
    assert all(described(measured[target.key]).rates == target.rates for target in known)
    assert described(H100) is H100, "no description has its key"


def test_names_with_and_without_the_maker_and_files() -> None:
    assert find_target("l40s") is find_target("nvidia-l40s")
    assert find_target(str(FOLDER / "nvidia-b200.json")).device == find_target("b200").device
    with pytest.raises(ConfigError, match="no description of a device 'v100': there are nvidia-a100, "):
        find_target("v100")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("multiprocessors", 0, r"\$\.multiprocessors: expected an integer"),
        ("memory_bytes_per_us", "fast", r"\$\.memory_bytes_per_us: expected a finite number > 0"),
        ("compute_capability", [9], "two integers"),
        ("peaks", {}, "a member 'bfloat16_flop_per_us'"),
        ("colour", "green", "no member 'colour'"),
    ],
)
def test_a_wrong_description_is_refused(tmp_path: Path, name: str, value: object, words: str) -> None:
    text = json.loads((FOLDER / "nvidia-h200.json").read_text())
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(text | {name: value}))
    with pytest.raises(ConfigError, match=words):
        read_target(file)
    with pytest.raises(ConfigError, match="No such file"):
        find_target(str(tmp_path / "none.json"))


def test_names_are_those_that_jobs_take_too() -> None:
    h100, key = targets()["nvidia-h100"], targets()["nvidia-h100"].device.key
    for name in ("h100", "H100", "NVIDIA H100", "nvidia_h100", key):
        assert find_target(name) is h100
        assert find_job_target(name, NOTHING_KNOWN) == h100.device.typical
    assert find_target("sm_80").name == "nvidia-a100"
    assert find_job_target("SM_80", NOTHING_KNOWN).compute_capability == (8, 0)
    with pytest.raises(ConfigError, match="nvidia-h100 and nvidia-h200: name one"):
        find_target("sm_90")
    with pytest.raises(ConfigError, match=r"sm_90.*emulator, by name nvidia-a100"):
        find_job_target("h1000", NOTHING_KNOWN)
