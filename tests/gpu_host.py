"""A host with GPUs as Linux shows one: made-up files in the place of /proc/driver/nvidia and of the nodes in /dev."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sparsegen.backends.cuda import identity

FAKE_DRIVER = Path(__file__).parent / "backends" / "fake_cuda.cpp"
UUIDS = tuple(f"GPU-{d * 8}-{d * 4}-{d * 4}-{d * 4}-{d * 12}" for d in "123456789")  # of fake_cuda.cpp: two
INFORMATION = """\
Model: \t\t Fake GPU
IRQ:   \t\t 27
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.61.00.01
Bus Type: \t PCIe
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Excluded:\t No
"""


class GpuHost:
    """The files of a host, which tests change.

    Attributes:
        proc, dev, mps: in the place of the constants of `identity`.
    """

    def __init__(self, folder: Path, uuids: Sequence[str] = UUIDS[:2]) -> None:
        self.proc, self.dev, self.mps = (folder / name for name in ("proc", "dev", "mps"))
        (self.proc / "gpus").mkdir(parents=True)
        self.dev.mkdir()
        self.set_version("580.159.03")
        for name in ("nvidiactl", "nvidia-uvm", "null"):
            (self.dev / name).touch()
        for number, uuid in enumerate(uuids):
            self.set_gpu(number, uuid)
            (self.dev / f"nvidia{number}").touch()

    def set_version(self, version: str) -> None:
        text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}\nGCC version:  gcc\n"
        (self.proc / "version").write_text(text)

    def set_gpu(self, number: int, uuid: str) -> None:
        gpu = self.proc / "gpus" / f"0000:{number + 1:02x}:00.0"
        gpu.mkdir(exist_ok=True)
        (gpu / "information").write_text(INFORMATION.format(uuid=uuid, bus=gpu.name, minor=number))

    def remove_gpu(self, number: int) -> None:
        shutil.rmtree(self.proc / "gpus" / f"0000:{number + 1:02x}:00.0")
        (self.dev / f"nvidia{number}").unlink()

    def take_place(self) -> None:
        """Have `identity` look here, in this process."""
        identity.PROC, identity.DEV, identity.MPS = self.proc, self.dev, self.mps


def make_driver(folder: Path) -> None:
    """Compile the made-up driver into a folder, for LD_LIBRARY_PATH."""
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", FAKE_DRIVER]
    subprocess.run(command, check=True)
