"""Running commands in this process, with a database and a cache of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from sparsegen.cli.main import cli
from sparsegen.kernels.base import AnyFamily
from sparsegen.operators import DType, Layout, SpmmProblem


class Command:
    """``sparsegen`` with arguments; ``cache`` and ``db`` are this test's own."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.db = folder / "tuning.db"
        self.environment = {
            "SPARSEGEN_CACHE": str(self.cache),
            "SPARSEGEN_DB": str(self.db),
            "SPARSEGEN_DEVICE": "emulator",
        }

    def __call__(self, *arguments: str | Path, exit_code: int | None = 0, **options: Any) -> Result:
        """Run, and require the exit code unless it is None."""
        result = CliRunner(env=self.environment).invoke(cli, [str(a) for a in arguments], **options)
        assert exit_code in (None, result.exit_code), (result.output, result.exception)
        return result

    def json(self, *arguments: str | Path, exit_code: int = 0) -> Any:
        """Run with ``--json``; what it printed, which must be one JSON value and nothing else."""
        return json.loads(self(*arguments, "--json", exit_code=exit_code).stdout)


def computed_traits(family: AnyFamily) -> tuple[str, ...]:
    """Options for a dtype, and for what else the family needs: a layout of a product or of images, few channels or
    groups, small blocks.
    """
    if family.name == "plane_conv":
        return ("--dtype", "float16", "--layout", "nchw")
    if family.name == "depthwise_conv":
        return ("--dtype", "float16", "--channels", "8", "--filters", "8", "--groups", "8")
    if family.name == "strip_conv":
        return ("--dtype", "float16", "--channels", "4", "--filters", "8")
    if family.name.startswith(("tma_block_dsd", "tma_block_sdd")):
        return ("--dtype", "float16", "--block", "16x32")
    if family.problem_type is not SpmmProblem:
        return ("--dtype", "float16")
    layouts = [s for s in Layout if family.computes(SpmmProblem(64, 32, 16, DType.FLOAT16, s))]
    return ("--dtype", "float16", "--layout", layouts[-1])
