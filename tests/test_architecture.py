"""Imports run one way, and what only one module may touch is touched nowhere else (docs/architecture.md)."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {  # as pyproject.toml maps them
    "sparsegen": ROOT / "sparsegen",
    "sparsegen.templates": ROOT / "templates",
    "sparsegen.tuning_db": ROOT / "tuning_db",
    "sparsegen.cli": ROOT / "cli",
}

MOST_ROOMS = 26
MOST_ANY = 8  # in 1,000 lines

# From the ground up; a module imports from its own layer and from those above it in this list.
LAYERS = (
    {"errors", "source_tree"},
    {"arguments"},
    {"settings", "system"},
    {"matrix"},
    {"masks"},
    {"pruning"},
    {"operators"},
    {"kernels"},
    {"render", "templates", "backends", "tuning_db"},
    {"dispatch"},
    {"plan"},
    {"verify"},
    {"measure", "testing"},
    {"tuning"},
    {"api"},
    {"attention", "networks"},
    {"integrations", "bench"},
    {"report"},
    {"cli"},
    {"__main__"},
)
# Groups of integrations/torch that each imports from, besides itself; `__init__` imports from all.
TORCH_GROUPS = {
    "calls": set(),
    "pattern": {"calls"},
    "blocks": {"calls"},
    "convolution": {"calls"},
    "points": {"calls"},
    "networks": set(),
    "attention": {"calls", "pattern", "blocks"},
    "models": {"calls", "convolution", "pattern"},
    "shipping": {"attention", "blocks", "calls", "convolution", "pattern"},
}
NEVER = (  # who, whom; in the order of the layers it could
    ("tuning.tuner", {"dispatch.choice"}),
    ("tuning.search", {"dispatch.choice"}),
    ("tuning.loop", {"dispatch.choice"}),
    ("tuning_db", {"render", "backends"}),
    ("render", {"backends", "tuning_db"}),
    ("backends", {"render", "tuning_db"}),
)
ONLY = {  # third party -> the modules that may import it
    "jinja2": {"render", "report.build"},
    "pycuda": {"backends.cuda"},
    "optuna": {
        "tuning.search",
        "tuning.replay",
        "tuning.samplers",
    },
    "matplotlib": {"report.canvas"},
    "sqlalchemy": {"tuning_db"},
    "alembic": {"tuning_db"},
    "click": {"cli"},
    "rich": {"cli"},
    "ray": {"tuning.engines.ray_cluster", "tuning.engines.ray_worker"},
    "pynvml": {"backends.cuda", "cli.doctor"},
}
# Packages that run what somebody calls, and those that they ask.
DECIDERS = {"api", "attention", "dispatch", "integrations", "measure", "networks", "plan", "tuning_db"}
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@cache
def files() -> dict[str, Path]:
    """Every module's name, without ``sparsegen.``, and where it is."""
    found = {}
    for package, folder in PACKAGES.items():
        for file in folder.rglob("*.py"):
            parts = [*package.split("."), *file.relative_to(folder).with_suffix("").parts]
            found[".".join(part for part in parts[1:] if part != "__init__")] = file
    return found


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """All of a module's syntax tree."""
    return tuple(ast.walk(ast.parse(files()[name].read_text(), str(files()[name]))))


@cache
def imports(name: str) -> frozenset[str]:
    """The full names of the modules that a module imports, wherever in the file."""
    found: set[str] = set()
    for node in nodes(name):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name}: relative import"
            members = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(m if m.removeprefix("sparsegen.") in files() else node.module for m in members)
    return frozenset(found)


@cache
def own_imports(name: str) -> frozenset[str]:
    """Those of this project, without ``sparsegen.``."""
    own = {module.removeprefix("sparsegen.") for module in imports(name) if module.startswith("sparsegen.")}
    return frozenset(own - {name})


def is_within(name: str, allowed: set[str]) -> bool:
    """True if a module is one of these, or part of one of these packages."""
    return any(name == one or name.startswith(f"{one}.") for one in allowed)


def layer(name: str) -> int:
    top = name.split(".")[0]
    return next(rank for rank, names in enumerate(LAYERS) if top in names)


NAMES = sorted(files().keys() - {""})  # sparsegen/__init__.py is the facade: it names everything, lazily


def test_the_walk_sees_every_package() -> None:
    assert {"kernels.spmm.csr_spmm", "tuning.search", "tuning_db.store", "cli.main", "templates"} <= set(
        NAMES
    )
    assert "sqlalchemy" in imports("tuning_db.models") and "kernels" in own_imports("dispatch.choice")


def test_every_package_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join([package, *file.parent.relative_to(folder).parts])
        for package, folder in PACKAGES.items()
        for file in folder.rglob("__init__.py")
    }
    assert sorted(listed) == sorted(found)


def test_the_top_level_is_small() -> None:
    """The package's top shows the architecture: few files and folders of source."""
    rooms = {path.stem for path in (ROOT / "sparsegen").iterdir() if path.suffix == ".py"}
    rooms |= {path.parent.name for path in (ROOT / "sparsegen").glob("*/__init__.py")}
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)


def test_every_module_has_a_layer() -> None:
    tops = {name.split(".")[0] for name in NAMES}
    assert tops == set().union(*LAYERS), "LAYERS has to name every module, and none that is gone"


def test_imports_run_down() -> None:
    """No module imports from a layer above its own."""
    upward = {(name, other) for name in NAMES for other in own_imports(name) if layer(other) > layer(name)}
    assert not upward


def test_groups_for_pytorch_stand_on_each_other() -> None:
    place = "integrations.torch."
    arrows: dict[str, set[str]] = {name: set() for name in TORCH_GROUPS}
    for name in NAMES:
        if name.startswith(place):
            group, *_ = name.removeprefix(place).split(".")
            found = {o.removeprefix(place).split(".")[0] for o in own_imports(name) if o.startswith(place)}
            arrows[group] |= found - {group}
    assert arrows == TORCH_GROUPS


@pytest.mark.parametrize(("who", "whom"), NEVER)
def test_neighbours_that_never_meet(who: str, whom: set[str]) -> None:
    met = {
        (name, other)
        for name in NAMES
        if is_within(name, {who})
        for other in own_imports(name)
        if is_within(other, whom)
    }
    assert not met


@pytest.mark.parametrize("package", ONLY)
def test_third_parties_have_one_home(package: str) -> None:
    users = {name for name in NAMES if package in {module.split(".")[0] for module in imports(name)}}
    strangers = {name for name in users if not is_within(name, ONLY[package])}
    assert users or package == "pycuda"
    assert not strangers


def test_kernels_are_pure() -> None:
    """A family can be declared, constrained and rendered on any machine."""
    allowed = {
        "errors",
        "arguments",
        "settings",
        "matrix",
        "operators",
        "kernels",
        "system.compared",
        "system.device_memory",
        "system.integers",
        "system.loggers",
        "system.numpy_types",
        "system.threads",
    }
    for name in NAMES:
        if is_within(name, {"kernels"}):
            assert all(is_within(other, allowed) for other in own_imports(name)), name


def test_no_import_cycles() -> None:
    """A submodule may import its own package; a package that imports its submodules is one with them."""
    graph = {name: {o for o in own_imports(name) if not name.startswith(f"{o}.")} for name in NAMES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_only_settings_reads_the_environment() -> None:
    """Others may hand the whole of it to a child process."""
    readers = set()
    for name in NAMES:
        for node in nodes(name):
            if isinstance(node, ast.Subscript | ast.Attribute) and _is_environ(node.value):
                readers.add(name)
            if isinstance(node, ast.Attribute | ast.Name) and _last(node) == "getenv":
                readers.add(name)
    assert readers <= {"settings"}


def test_only_the_command_line_prints() -> None:
    printing = {
        name
        for name in NAMES
        for node in nodes(name)
        if isinstance(node, ast.Call) and _last(node.func) == "print" and isinstance(node.func, ast.Name)
    }
    assert all(is_within(name, {"cli"}) for name in printing), printing


def _is_environ(node: ast.expr) -> bool:
    return _last(node) == "environ"


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_who_runs_is_decided_in_one_place() -> None:
    """Dispatch compares times, a probe its own two; all others are given a `Decision`."""
    compared, asked, made, types = set(), set(), set(), set()
    for name in NAMES:
        has_decision = "dispatch.decision" in own_imports(name) | {name}
        for node in nodes(name):
            if is_within(name, DECIDERS) and _orders_times(node):
                compared.add(name)
            elif isinstance(node, ast.ClassDef) and node.name == "Decision":
                types.add(name)
            elif isinstance(node, ast.Attribute) and node.attr in ("is_at_most", "is_won", "ours_wins"):
                asked.add(name)
            elif has_decision and isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                made |= {name} if called in ("Decision", "Decision.always") else set()
    assert compared == {
        "dispatch.choice",  # variants
        "dispatch.dense_or_sparse",
        "dispatch.dense_time",  # layouts of a dense product
        "dispatch.padded_dense",  # its operands as they are, and padded copies
        "dispatch.pruned_times",  # sums of the times of what runs
        "dispatch.untried",  # families
        "integrations.torch.calls.copied_operands",  # memory orders, and channels
        "measure.baselines.session",  # of a library's routines the fastest
        "measure.clock",
        "measure.ranking",
        "networks.packed.memory_plan",  # what is copied while something else is computed
        "tuning_db.incumbent",  # a winner and its successor
        "tuning_db.ranking",
        "tuning_db.records",
    }
    assert asked == {"dispatch.chosen", "dispatch.dense_or_sparse", "measure.decision", "tuning_db.records"}
    assert made == {"dispatch.chosen", "measure.decision"} and types == {"dispatch.decision"}


def _orders_times(node: ast.AST) -> bool:
    """True if a node says which of several is less or first, by microseconds."""
    if isinstance(node, ast.Compare):
        orders = any(isinstance(op, ORDERS) for op in node.ops)
    else:
        orders = isinstance(node, ast.Call) and _last(node.func) in ("min", "sorted")
    named = (
        (_last(one) for one in ast.walk(node) if isinstance(one, ast.Attribute | ast.Name)) if orders else ()
    )
    return any(name == "us" or name.endswith("_us") for name in named)


def test_only_measuring_packages_use_the_clock() -> None:
    """Layers, attention and models are timed by the race, as all else by `measure.clock`."""
    may = {"measure", "tuning", "bench"}
    users = {name for name in NAMES if "measure.clock" in own_imports(name)}
    assert users and not {name for name in users if not is_within(name, may)}
    racers = {name for name in NAMES if "measure.race" in own_imports(name) and not is_within(name, may)}
    assert racers == {
        "attention.steps",
        "integrations.torch.blocks.dropout_choice",
        "integrations.torch.convolution.conv_choice",
        "integrations.torch.models.model_clock",
        "integrations.torch.shipping.inductor",
    }
    for name in NAMES:
        if is_within(name, {"integrations", "attention", "networks", "dispatch", "api"}):
            text = files()[name].read_text()
            assert not any(word in text for word in ("perf_counter", "cuda.Event", "elapsed_time")), name


def test_any_is_rare() -> None:
    """`Any` is for what libraries leave open; all else says its type."""
    lines = sum(len(file.read_text().splitlines()) for file in files().values())
    found = [node for name in files() for node in nodes(name) if isinstance(node, ast.Name)]
    assert sum(node.id == "Any" for node in found) <= MOST_ANY * lines / 1000
