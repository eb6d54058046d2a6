"""Binaries of a search: what was kept is not compiled again, and what was not is, once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tuning_samples import variant

from sparsegen.errors import CompileError
from sparsegen.kernels.config import Config
from sparsegen.plan.variants import CompiledVariant
from sparsegen.tuning.loop.measuring import Measuring
from sparsegen.tuning.loop.pipeline import CompileAhead


class Ahead:
    """Counts what it compiles."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[Config] = []

    def compile(self, config: Config) -> Any:
        self.asked.append(config)
        made = None if self.error else SimpleNamespace(of=config)
        return SimpleNamespace(variant=made, error=self.error)


def measuring(ahead: Ahead) -> Measuring:
    return Measuring(cast(Any, None), cast(CompileAhead, ahead), cast(Any, None))


def test_what_was_kept_is_not_compiled() -> None:
    ahead, kept = Ahead(), cast(CompiledVariant, object())
    found = measuring(ahead)
    found.keep(variant(tile_n=32), kept)
    assert found.binary(variant(tile_n=32)) is kept
    assert not ahead.asked


def test_what_was_not_is_compiled_once() -> None:
    ahead = Ahead()
    found = measuring(ahead)
    first = found.binary(variant(tile_n=64))
    assert found.binary(variant(tile_n=64)) is first
    assert ahead.asked == [variant(tile_n=64).config]
    found.binary(variant(tile_n=128))
    assert len(ahead.asked) == 2


def test_what_does_not_compile_says_so_every_time() -> None:
    ahead = Ahead(CompileError("no such register"))
    found = measuring(ahead)
    for _ in range(2):
        with pytest.raises(CompileError, match="no such register"):
            found.binary(variant(tile_n=64))
    assert len(ahead.asked) == 2
