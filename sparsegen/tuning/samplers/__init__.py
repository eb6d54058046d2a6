"""Samplers: which candidate next, learnt from the trials of a study alone.

A sampler is made for the list of valid configs. It never proposes one twice, and its proposal depends on nothing but
that list, its seed and the study's trials: a study that a storage kept goes on as if nothing had ended.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sparsegen.errors import PackageMissingError
from sparsegen.kernels.config import Config
from sparsegen.tuning.report import SamplerName

if TYPE_CHECKING:
    from sparsegen.tuning.samplers.listed import ListSampler
    from sparsegen.tuning.space import Space


def require_available(name: SamplerName) -> None:
    """Require what a sampler needs to be installed.

    Raises:
        PackageMissingError: the sampler needs a package that is not installed.
    """
    if name is SamplerName.GP and importlib.util.find_spec("torch") is None:
        raise PackageMissingError(
            "Optuna's Gaussian process needs PyTorch: pip install torch, or take another sampler "
            f"({', '.join(n for n in SamplerName if n is not name)})"
        )


def make(name: SamplerName, space: Space, first: Sequence[Config] = (), seed: int = 0) -> ListSampler:
    """A sampler over a space.

    Args:
        first: candidates to propose before any other, the most promising first; all of them in the space.
        seed: seed of the samplers that draw; `SamplerName.CANDIDATES` does not.

    Raises:
        PackageMissingError: see `require_available`.
    """
    require_available(name)
    from sparsegen.tuning.samplers import optunas, surrogate

    if name is SamplerName.CANDIDATES:
        return surrogate.CandidateSampler(space, first)
    kinds: dict[SamplerName, Callable[[Space, Sequence[Config], int], ListSampler]] = {
        SamplerName.TPE: optunas.TpeSampler,
        SamplerName.GP: optunas.GpSampler,
        SamplerName.RANDOM: optunas.UniformSampler,
    }
    return kinds[name](space, first, seed)
