"""Loads a shipped folder with PyTorch alone and calls it: seconds, and whether bits are equal. See `shipped`."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch

SECONDS = 60.0  # after which a process that hangs says where, and ends


def main(folder: Path) -> dict[str, Any]:
    assert importlib.util.find_spec("sparsegen") is None, "sparsegen is on the path of what should do without"
    example = torch.load(folder / "example.pt")
    x, wanted = (example[name].to(example["place"]) for name in ("x", "y"))
    _synchronize(x)
    began = time.perf_counter()
    model = runpy.run_path(str(folder / "load.py"))["load"]()
    loaded = time.perf_counter()
    with torch.no_grad():
        result = model(x)
        _synchronize(x)
        called = time.perf_counter()
        again = model(x)
    return {
        "load_s": round(loaded - began, 3),
        "first_call_s": round(called - loaded, 3),
        "equal_bits_elsewhere": torch.equal(result, wanted) and torch.equal(again, wanted),
    }


def _synchronize(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    torch._C._set_print_stack_traces_on_fatal_signal(True)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    print(json.dumps(main(Path(sys.argv[1]))))
