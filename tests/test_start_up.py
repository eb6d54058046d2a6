"""Modules that a command or a call does not need are not imported: imports were most of a short command's time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_host import GpuHost, make_driver
from patience import LONG

ROOT = Path(__file__).parents[1]
LAYER = ROOT / "examples" / "pruned_mlp_layer.npz"
HEAVY = ("alembic", "jinja2", "matplotlib", "optuna", "rich", "scipy", "sqlalchemy", "torch")

RUN = """
import json, sys
from sparsegen.cli.main import cli
sys.argv[0] = "sparsegen"
heavy = sys.argv.pop(1).split(",")
try:
    cli()
except SystemExit as end:
    assert not end.code, end.code
finally:
    loaded = {name.partition(".")[0] for name in sys.modules}
    print(json.dumps(sorted(loaded & set(heavy))), file=sys.stderr)
"""


def imported_for(tmp_path: Path, *arguments: str) -> set[str]:
    """Returns the heavy packages that a command imports, in a process of its own."""
    environment = os.environ | {
        "SPARSEGEN_DB": str(tmp_path / "tuning.db"),
        "SPARSEGEN_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, ",".join(HEAVY), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (("--help",), set()),
        (("lookup", "--matrix", str(LAYER), "-n", "64", "--device", "emulator"), set()),
        (("source", "--matrix", str(LAYER), "-n", "64", "--device", "emulator"), {"jinja2"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_imports_what_it_needs(tmp_path: Path, command: tuple[str, ...], needed: set[str]) -> None:
    assert imported_for(tmp_path, *command) <= needed


IMPORT = """
import sys
before = set(sys.modules)
import sparsegen
print(*sorted(set(sys.modules) - before))
"""


def test_importing_sparsegen_imports_the_standard_library_alone() -> None:
    """And of its own modules those that find the others: some milliseconds."""
    command = [sys.executable, "-c", IMPORT]
    loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    own = {name for name in loaded if name.partition(".")[0] == "sparsegen"}
    assert own <= {"sparsegen", "sparsegen.source_tree", "sparsegen.system", "sparsegen.system.lazy_names"}
    assert {name.partition(".")[0] for name in set(loaded) - own} <= sys.stdlib_module_names


def test_a_database_of_this_version_is_read_without_sqlalchemy(tmp_path: Path) -> None:
    from sparsegen.tuning_db.store import Store

    Store.open(tmp_path / "tuning.db").close()
    command = ("lookup", "--matrix", str(LAYER), "-n", "64", "--device", "emulator")
    assert imported_for(tmp_path, *command) == set()


MOST_MODULES = 142  # modules of a first look-up, most of them ours: each takes a millisecond on a slow host
FAMILIES = """
import sys
import sparsegen
from sparsegen.kernels import families
from sparsegen.matrix.generators import random_uniform

before = len(sys.modules)
sparsegen.lookup(random_uniform(64, 64, 0.1, 0), n=16, device="emulator")
loaded = set(sys.modules)
print(len(loaded) - before)
found = {name.rpartition(".")[2] for name in loaded if name.startswith("sparsegen.kernels.")}
print(*sorted(found & families().keys()))
print(*(name for name in loaded if name.startswith("sparsegen.operators.")))
"""


def test_a_look_up_imports_no_other_operators_nor_families_of_them(tmp_path: Path) -> None:
    from sparsegen.kernels import families
    from sparsegen.operators import OPERATORS

    done = subprocess.run(
        [sys.executable, "-c", FAMILIES],
        cwd=ROOT,
        env=os.environ | {"SPARSEGEN_DB": str(tmp_path / "t.db"), "SPARSEGEN_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    count, *lines = done.stdout.splitlines()
    assert int(count) <= MOST_MODULES
    imported, operators = (set(line.split()) for line in lines)
    assert "csr_spmm" in imported and "sparsegen.operators.spmm" in operators
    others = {kind.__module__ for name, kind in OPERATORS.items() if name != "spmm"}
    assert others and not others & operators
    assert {families()[name].problem_type.operator for name in imported} == {"spmm"}


DRIVER = """
import sys
from sparsegen.backends.cuda import early_init
begun = []
early_init.begin = lambda: begun.append("sparsegen.dispatch.choice" in sys.modules)
import sparsegen
from sparsegen import lookup
from sparsegen.errors import DeviceUnavailableError
from sparsegen.matrix.generators import random_uniform

matrix = random_uniform(8, 8, 0.5, 0)
lookup(matrix, n=4, device="emulator")
assert not begun, "somebody who asks for no GPU may not want the driver in this process"
"""
ASKED = """
for _ in range(2):
    try:
        lookup(matrix, n=4, device=DEVICE)
    except DeviceUnavailableError:
        pass
assert len(begun) == 1, begun
"""


@pytest.mark.parametrize("device", ['"cuda:0"', "None"])
def test_a_call_for_a_gpu_starts_the_driver_once_and_an_import_does_not(tmp_path: Path, device: str) -> None:
    environment = os.environ | {"SPARSEGEN_DB": str(tmp_path / "t.db"), "SPARSEGEN_DRIVER": "direct"}
    environment.pop("SPARSEGEN_DEVICE", None)
    script = DRIVER + ASKED.replace("DEVICE", device)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_driver_starts_beside_what_a_look_up_imports(tmp_path: Path) -> None:
    first = DRIVER.replace('lookup(matrix, n=4, device="emulator")\n', "")
    script = first + ASKED.replace("DEVICE", '"cuda"') + "assert begun == [False], begun\n"
    environment = os.environ | {"SPARSEGEN_DB": str(tmp_path / "t.db"), "SPARSEGEN_DRIVER": "direct"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


HOST = """
import sys
from pathlib import Path
from sparsegen.backends.cuda import early_init, identity

place = Path(sys.argv.pop(1))
identity.PROC, identity.DEV, identity.MPS = place / "proc", place / "dev", place / "mps"
"""
LOOK_UP = (
    HOST
    + """
import sparsegen
from sparsegen.matrix.generators import random_uniform

print(sparsegen.lookup(random_uniform(64, 64, 0.1, 0), n=16, device="cuda:1").explain())
print(early_init.is_loaded(), len(early_init._begun), "pycuda" in sys.modules, file=sys.stderr)
"""
)
COMMAND = (
    HOST
    + """
from sparsegen.cli.main import cli
try:
    cli(prog_name="sparsegen")
finally:
    print(early_init.is_loaded(), len(early_init._begun), "pycuda" in sys.modules, file=sys.stderr)
"""
)
ASKED_IT, ASKED_NOTHING = "True 1 False", "False 0 False"  # the library, threads, PyCUDA


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a made-up driver, which has two GPUs."""
    folder = tmp_path_factory.mktemp("driver")
    make_driver(folder)
    return folder


class Gpus:
    """A host with the driver's two GPUs, and an empty cache."""

    def __init__(self, folder: Path, driver: Path) -> None:
        self.host, self._folder = GpuHost(folder), folder
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": str(driver),
            "SPARSEGEN_DRIVER": "direct",
            "SPARSEGEN_CACHE": str(folder / "cache"),
            "SPARSEGEN_DB": str(folder / "tuning.db"),
        }

    def run(self, script: str, *words: str, **environment: str) -> tuple[str, str]:
        """Runs a process; returns its output, and its last line on standard error."""
        done = subprocess.run(
            [sys.executable, "-c", script, self._folder, *words],
            cwd=ROOT,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr.splitlines()[-1]


@pytest.fixture
def gpus(tmp_path: Path, driver: Path) -> Gpus:
    return Gpus(tmp_path, driver)


def test_a_look_up_of_a_gpu_that_is_remembered_asks_no_driver(gpus: Gpus) -> None:
    first, second, third = gpus.run(LOOK_UP), gpus.run(LOOK_UP), gpus.run(LOOK_UP, CUDA_VISIBLE_DEVICES="1,0")
    assert (first[1], second[1], third[1]) == (ASKED_IT, ASKED_NOTHING, ASKED_IT)
    assert first[0] == second[0] and "_spmm" in first[0]
    gpus.host.set_version("590.10")
    assert gpus.run(LOOK_UP)[1] == ASKED_IT


@pytest.mark.gpu
def test_a_look_up_of_a_gpu_that_is_there(tmp_path: Path) -> None:
    """The host's own files tell enough, or no description is kept."""
    script = """
import sys
from sparsegen.backends.cuda import early_init
from sparsegen.backends.cuda.identity import identity
print(identity() is None)
""" + LOOK_UP.replace(HOST, "").replace("cuda:1", "cuda:0")
    own = {"SPARSEGEN_CACHE": str(tmp_path / "cache"), "SPARSEGEN_DB": str(tmp_path / "tuning.db")}
    command, environment = [sys.executable, "-c", script], os.environ | own
    ran = [
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (process.stdout for process in ran)
    assert first == second
    if first.startswith("True"):
        pytest.skip("this host does not say which GPUs its driver numbers")
    assert ran[1].stderr.splitlines()[-1] == ASKED_NOTHING


@pytest.mark.parametrize("command", ["lookup", "source"])
def test_a_command_that_looks_up_asks_no_driver_where_a_gpu_is_remembered(command: str, gpus: Gpus) -> None:
    words = (command, "--matrix", str(LAYER), "-n", "64", "--device", "cuda:1")
    first, second = gpus.run(COMMAND, *words), gpus.run(COMMAND, *words)
    assert (first[1], second[1]) == (ASKED_IT, ASKED_NOTHING)
    assert first[0] == second[0]


@pytest.mark.parametrize("command", ["lookup", "source"])
def test_a_command_on_the_emulator_starts_no_driver(command: str, gpus: Gpus) -> None:
    words = (command, "--matrix", str(LAYER), "-n", "64")
    assert gpus.run(COMMAND, *words, "--device", "emulator")[1] == ASKED_NOTHING
    assert gpus.run(COMMAND, *words, SPARSEGEN_DEVICE="emulator")[1] == ASKED_NOTHING


EXIT = """
from sparsegen.backends.cuda import early_init
early_init.EXIT_SECONDS = WAIT
early_init.begin()
"""


def test_an_exit_waits_for_a_driver_that_is_coming_up(gpus: Gpus) -> None:
    """Its library would be torn down around the thread."""
    script = EXIT.replace("WAIT", str(LONG))
    assert gpus.run(script, FAKE_CUDA_INIT_MS="300")[1] == "the driver is up"


def test_an_exit_leaves_a_driver_alone_that_hangs(gpus: Gpus) -> None:
    script = EXIT.replace("WAIT", "0.1") + "import sys; print('not waited for', file=sys.stderr)"
    assert gpus.run(script, FAKE_CUDA_INIT_MS=str(1000 * 10 * int(LONG)))[1] == "not waited for"


NEAREST = """
import sys
from sparsegen.dispatch.choice import choose
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import SpmmProblem
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds

of = Workload.of(SpmmProblem(1024, 768, 128), random_uniform(1024, 768, 0.1, 0))
print(choose(of, seeds().list_workloads()[0].device, seeds()).how, "numpy.ma" in sys.modules)
"""


def test_what_is_near_is_weighed_without_masked_arrays() -> None:
    """NumPy's median imports them, which is a tenth of a first look-up."""
    done = subprocess.run(
        [sys.executable, "-c", NEAREST], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["nearest", "False"]
