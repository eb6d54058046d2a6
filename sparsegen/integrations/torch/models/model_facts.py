"""Facts that a model's time depends on, by which a race of it is found again in the tuning database."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sparsegen import backends
from sparsegen.backends.executor import Toolchain
from sparsegen.dispatch.dense_or_sparse import Faster
from sparsegen.errors import SparsegenError
from sparsegen.integrations.torch.calls.activations import Activation, epilogue_of
from sparsegen.integrations.torch.calls.replacement import Replacement
from sparsegen.integrations.torch.models.arrangement import Form
from sparsegen.kernels.config import Config
from sparsegen.measure.decision import ModelLayer, digest_of
from sparsegen.operators import Epilogue, Problem, SpmmProblem
from sparsegen.plan.variants import compile_variant


class ModelFacts:
    """A model as it is when its conversion begins, and what look-ups say of the layers that may become sparse.

    Two models are taken for one if their modules have the same names, types and descriptions, their tensors and inputs
    the same types, shapes and dtypes, and their layers the same patterns, codes and variants, with the same release of
    PyTorch.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: object,
        sparse: Mapping[str, Replacement],
        tokens: Mapping[str, tuple[int, ...]],
        *,
        captures: bool,
    ) -> None:
        """Take a model with all its layers dense.

        Args:
            sparse: the layers that may become sparse.
            tokens: numbers of tokens of the layers that are called, see `Trace`.
            captures: time CUDA graphs if that is possible.

        Raises:
            DatabaseError, PinsError: see `sparsegen.lookup`.
        """
        self._tokens = tokens
        self._layers = {
            name: sparse[name].looked_up(max(counts, default=0)) for name, counts in tokens.items()
        }
        self._codes = {n: str(la.rounding) for n, la in sparse.items() if la.rounding is not None}
        modules = [f"{name} {type(m).__qualname__} {m.extra_repr()}" for name, m in model.named_modules()]
        leaves, structure = pytree.tree_flatten(example_inputs)
        given = [
            *model.named_parameters(),
            *model.named_buffers(),
            *((str(structure), leaf) for leaf in leaves),
        ]
        self._model = digest_of(torch.__version__, captures, *modules, *(_described(*one) for one in given))

    def is_slower(self, names: Sequence[str]) -> bool:
        """True if look-ups tell of all these layers that a dense product takes less time, and none is pinned."""
        layers = [self._layers[name] for name in names if name not in self._codes]
        return len(layers) == len(names) and all(
            layer is not None and not layer.pinned and layer.choice.faster is Faster.DENSE for layer in layers
        )

    def compile(self, names: Collection[str], activations: Mapping[str, Activation]) -> None:
        """Compile what layers alone will run, side by side; a first call finds it in the cache, or says what failed.

        Args:
            names: of the layers.
            activations: those that may become part of layers.
        """
        wanted = set[tuple[Config, Problem]]()
        for name, layer in self._layers.items():
            if layer is not None and name in names:
                problem = layer.workload.problem
                wanted.add((layer.choice.config, problem))
                kind = activations.get(name)
                if (
                    kind is not None
                    and isinstance(problem, SpmmProblem)
                    and problem.epilogue is Epilogue.BIAS
                ):
                    wanted.add(
                        (layer.choice.config, replace(problem, epilogue=epilogue_of(kind, has_bias=True)))
                    )
        device = next((layer.device for layer in self._layers.values() if layer is not None), None)
        if device is not None:
            toolchain = backends.toolchain(device)
            with ThreadPoolExecutor() as pool:
                for config, problem in wanted:
                    pool.submit(_compiled, config, problem, toolchain)

    def also(self, *facts: object) -> ModelFacts:
        """The same with other facts that times depend on."""
        more = copy.copy(self)
        more._model = digest_of(self._model, *facts)
        return more

    def pinned(self, names: tuple[str, ...]) -> str:
        """Returns why layers are pinned, all of them; empty if some are not."""
        layers = [self._layers[name] for name in names]
        why = [layer.pinned for layer in layers if layer is not None and layer.pinned]
        return why[0] if len(why) == len(names) else ""

    def race(self, ours: Mapping[str, Form], other: Mapping[str, Form]) -> tuple[ModelLayer | None, str]:
        """Returns what a race of two arrangements is recorded with: a sparse layer, and the context."""
        # A layer that changes, if there is one with a product of its own.
        changed = sorted(ours, key=lambda name: other.get(name) == ours[name])
        first = next((name for name in changed if self._layers[name] is not None), changed[0])
        arrangements = [
            [
                f"{name} {form} {self._tokens[name]} {self._layers[name]}{self._codes.get(name, '')}"
                for name, form in sorted(forms.items())
            ]
            for forms in (ours, other)
        ]
        return self._layers[first], digest_of(self._model, *arrangements)


def _compiled(config: Config, problem: Problem, toolchain: Toolchain) -> None:
    with suppress(SparsegenError):
        compile_variant(config, problem, toolchain)


def _described(name: str, value: object) -> str:
    if isinstance(value, Tensor):
        kind = "" if type(value) in (Tensor, nn.Parameter) else f" {type(value).__name__}"
        return f"{name}{kind} {tuple(value.shape)} {value.stride()} {value.dtype} {value.device}"
    return f"{name} {value!r}"
