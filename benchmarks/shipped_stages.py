"""A shipped model's stages, each in a process of its own; `shipped` runs them, and says which of them broke.

    python -m benchmarks.shipped_stages ship FOLDER compiled cuda float16 32 2048 64
    python -m benchmarks.shipped_stages timed FOLDER compiled cuda float16 32 2048 64

A process prints facts as soon as it knows them, a line of JSON each, so that a crash loses those alone that were to
follow; on a crash it prints the stacks of its native frames too.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.graph_capture import captured
from benchmarks.study import times_in_turn, torch_place
from sparsegen.backends import find_device
from sparsegen.integrations.torch import SparseLinear, ship
from sparsegen.tuning_db.records import Called

SPARSITY = 0.9
FOLDER = "shipped"
EXAMPLE = "example.pt"
SECONDS = 200.0  # most that a process may take
READER = Path(__file__).with_name("shipped_reader.py")  # imports PyTorch alone
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A model of square layers, for some tokens.

    Attributes:
        program: the form that it is shipped in.
        device: name of sparsegen's device.
    """

    program: str
    device: str
    dtype: str
    layers: int
    width: int
    tokens: int

    def facts(self) -> Facts:
        """Fields of a row."""
        return {
            "layers": self.layers,
            "width": self.width,
            "tokens": self.tokens,
            "dtype": self.dtype,
            "sparsity": SPARSITY,
            "program": self.program,
        }

    @property
    def words(self) -> list[str]:
        """The command line's."""
        numbers = self.layers, self.width, self.tokens
        return [self.program, self.device, self.dtype, *map(str, numbers)]

    @classmethod
    def of(cls, words: Sequence[str]) -> Asked:
        """Reads `words`."""
        program, device, dtype, *numbers = words
        layers, width, tokens = map(int, numbers)
        return cls(program, device, dtype, layers, width, tokens)

    @property
    def place(self) -> torch.device:
        found: torch.device = torch_place(find_device(self.device))
        return found

    def model(self) -> nn.Sequential:
        """Square layers with bias and ReLU, all of them sparse; the same ones in every process."""
        torch.manual_seed(0)
        made = []
        for _ in range(self.layers):
            dense = nn.Linear(self.width, self.width)
            layer = SparseLinear.from_dense(dense, sparsity=SPARSITY, run_dense="never")
            layer.activation = layer.activation.parse("relu")
            made.append(layer)
        model = nn.Sequential(*made).requires_grad_(False).eval()
        return model.to(self.place, getattr(torch, self.dtype))

    def inputs(self) -> Tensor:
        torch.manual_seed(1)
        return torch.randn(self.tokens, self.width).to(self.place, getattr(torch, self.dtype))


def stages(asked: Asked, folder: Path) -> Facts:
    """Facts of all stages; ``failed`` among them if one broke.

    Args:
        folder: an empty one.
    """
    found: Facts = {}
    without = {key: value for key, value in os.environ.items() if not key.startswith("SPARSEGEN_")}
    paths = [path for path in sys.path if path and not Path(path, "sparsegen").is_dir()]
    without["PYTHONPATH"] = os.pathsep.join(paths)
    own = "-m", "benchmarks.shipped_stages"
    for name, words, environment in (
        ("ship", [*own, "ship", str(folder), *asked.words], os.environ),
        ("elsewhere", [str(READER), str(folder / FOLDER)], without),
        ("timed", [*own, "timed", str(folder), *asked.words], os.environ),
    ):
        facts = _facts_of([sys.executable, "-X", "faulthandler", *words], environment)
        if "failed" in facts:
            facts["failed"] = f"{found.get('failed', '')}{name}: {facts['failed']}"
        found |= facts
        if name == "ship" and "failed" in facts:
            break
    return found


def _facts_of(command: Sequence[str], environment: Mapping[str, str]) -> Facts:
    """Returns the facts that a process prints until its end, which may be a crash."""
    place = Path(__file__).parents[1]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=place
    ) as process:
        try:
            out, said = process.communicate(timeout=SECONDS)
            end = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            out, said = process.communicate()
            end = None
    found: Facts = {}
    for line in out.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    if end != 0:
        word = f"longer than {SECONDS:g} s" if end is None else _named(end)
        begins = max(0, said.find("SIGSEGV"))  # PyTorch's words of the thread that crashed stand first
        found["failed"] = f"{word}: {said[begins : begins + 3000]}\n...\n{said[begins + 3000 :][-2500:]}"
    return found


def _named(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def told(**facts: object) -> None:
    """Print facts now."""
    print(json.dumps(facts), flush=True)


def shipping(asked: Asked, folder: Path) -> None:
    """Write the model's folder, with inputs and what the model gives for them."""
    model, x = asked.model(), asked.inputs()
    wanted = model(x)
    began = time.perf_counter()
    shipped = ship(model, x, folder / FOLDER, program=asked.program)
    told(ship_s=round(time.perf_counter() - began, 2))
    told(families=sorted({launch.family for launch in shipped.launches}))
    example = {"x": x.cpu(), "y": wanted.cpu(), "place": str(asked.place)}
    torch.save(example, folder / FOLDER / EXAMPLE)


def timed(asked: Asked, folder: Path) -> None:
    """Hold what is loaded against the model itself, and call both in turn."""
    model, x = asked.model(), asked.inputs()
    load = runpy.run_path(str(folder / FOLDER / "load.py"))["load"]
    loaded = load(run_single_threaded=True) if asked.program == "compiled" else load()
    told(equal_bits_here=torch.equal(loaded(x), model(x)))
    if asked.place.type == "cuda":
        for facts in times(lambda: model(x), lambda: loaded(x), asked.place, ("own", "shipped")):
            told(**facts)


def times(
    one: Callable[[], Tensor], other: Callable[[], Tensor], place: torch.device, names: tuple[str, str]
) -> Iterator[Facts]:
    """Microseconds in turn: called from Python, behind a busy queue, and as CUDA graphs."""
    for words, called in (("host", Called.HOST), ("device", Called.DEVICE), ("graph", Called.DEVICE)):
        calls = [one, other] if words != "graph" else [captured(call, place)[0] for call in (one, other)]
        yield {
            f"{name}_{words}_us": round(us, 2)
            for name, us in zip(names, times_in_turn(calls, called=called), strict=True)
        }


def main(stage: str, folder: str, *words: str) -> None:
    faulthandler.dump_traceback_later(SECONDS - 5, exit=True)
    torch._C._set_print_stack_traces_on_fatal_signal(True)
    with torch.no_grad():
        {"ship": shipping, "timed": timed}[stage](Asked.of(words), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
