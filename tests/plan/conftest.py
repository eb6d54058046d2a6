"""Executors that tests of plans and of plain kernels run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparsegen import backends
from sparsegen.backends.executor import Executor


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An entered executor of each backend."""
    opened = backends.open_executor(backends.find_device(request.param))
    with opened.entered():
        yield opened
    opened.close()
