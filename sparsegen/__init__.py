"""sparsegen: an autotuning code-generation compiler for sparse GPU kernels."""

from importlib.machinery import PathFinder
from typing import Any

from sparsegen.system import lazy_names

__version__ = "0.1.0"

# Only in a source tree, not in an installation: packages that pyproject.toml maps into this one lie beside it.
if PathFinder.find_spec(f"{__name__}.tuning_db", __path__) is None:
    from sparsegen import source_tree

    source_tree.make_importable()

# Modules are imported when one of their names is first used, so that `import sparsegen` and `--help` are instant.
_HOME = lazy_names.homes(__name__)

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    return lazy_names.found(__name__, _HOME, name)


def __dir__() -> list[str]:
    return sorted(__all__)
