"""Routes of a call: directly, through a function of autograd's alone, or through PyTorch's dispatcher.

PyTorch's dispatcher of custom operators takes longer than a small product.

A custom operator is there for gradients, for `torch.compile`, and for whatever looks at or rewrites a program. Without
any of these, its own function can be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

# Looked up once: each step to a name is one more that a call takes.
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_trace, _transform = torch._C._get_tracing_state, torch._C._functorch.maybe_current_level
_profiles = torch._C._autograd._profiler_enabled
PLAIN = (Tensor, nn.Parameter)  # subclasses have a say in what is done with them

Function = Callable[..., Any]
StandIn = Callable[
    [str, tuple[Any, ...], Function], Any
]  # takes an operator's name, its inputs, and the operator
_library = torch.library.Library("sparsegen", "FRAGMENT")  # its operators live as long as it does
_stand_ins: list[StandIn] = []  # of a program that is exported; no context variable, which Dynamo cannot read
Context: TypeAlias = Any  # autograd's, which takes any attribute


def is_exporting() -> bool:
    """True if `torch.export` is at work; until 2.11 PyTorch's own answer is True in all that its Dynamo traces."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


class Asked(Enum):
    """Requests of a call besides its result."""

    NOTHING = auto()
    GRADIENT = auto()  # backward, and nothing else
    MORE = auto()


def asked(*tensors: Tensor | None) -> Asked:
    """Returns the requests of a call with these tensors.

    Anything more than a gradient is forward mode, a trace, a compilation, a transform such as `torch.vmap`, a mode that
    sees every operator, and a profile, which is to name it.
    """
    if (
        is_dynamo_compiling()  # first: all else is constant to it
        or _dispatch_modes()
        or _function_modes()
        or _trace() is not None
        or _transform() is not None
        or forward_ad._current_level >= 0
        or _profiles()
    ):
        return Asked.MORE
    wants_gradients, found = torch.is_grad_enabled(), Asked.NOTHING
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in PLAIN or tensor.is_meta:
            return Asked.MORE
        if wants_gradients and tensor.requires_grad:
            found = Asked.GRADIENT
    return found


def is_watched() -> bool:
    """True if something looks at operators that tensors' dispatch keys, and so `TensorGuards`, tell nothing of.

    Those keys tell of traces, transforms and modes of dispatch.
    """
    return bool(is_dynamo_compiling() or _function_modes() or forward_ad._current_level >= 0 or _profiles())


def is_rewritten() -> bool:
    """True if what looks at operators may run others, or other tensors: a trace, a transform or a mode of dispatch."""
    return bool(
        is_dynamo_compiling() or _dispatch_modes() or _trace() is not None or _transform() is not None
    )


def is_compiled_inference(x: Tensor, values: Tensor, bias: Tensor | None, *, casts: bool) -> bool:
    """True if `torch.compile` traces a call that is asked for no gradient, by no transform either.

    Under autocast only with frozen weights, whose casts are kept.
    """
    if (
        not is_dynamo_compiling()
        or is_exporting()
        or forward_ad._current_level >= 0
        or _transform() is not None
    ):
        return False
    trains = values.requires_grad or (bias is not None and bias.requires_grad)
    return not (trains and casts) and not (torch.is_grad_enabled() and (trains or x.requires_grad))


def may_run_at_once(*tensors: Tensor | None) -> bool:
    """True if a call with these tensors needs nothing but its result."""
    return asked(*tensors) is Asked.NOTHING


@contextmanager
def standing_in(stand_in: StandIn) -> Iterator[None]:
    """A function computes what operators would by the dispatcher while a program is exported inside the block."""
    _stand_ins.append(stand_in)
    try:
        yield
    finally:
        _stand_ins.remove(stand_in)


@dataclass(frozen=True)
class Held:
    """Encoding of an argument that is an object, for PyTorch's dispatcher, which knows tensors, numbers and texts.

    Attributes:
        of_handle: the object of its ``handle``, a number of this process.
        leaves: true if another process may read what is being traced, so that a handle would name nothing there.
        schema, fields: the arguments that carry the object itself, and their number.
        carried, restored: the object as these, and the object of these, or a substitute if they have no data.
    """

    of_handle: Callable[[int], Any]
    leaves: Callable[[], bool]
    schema: str
    fields: int
    carried: Callable[[Any], tuple[Any, ...]]
    restored: Function


def applied(name: str, forward: Function, backward: Function) -> Function:
    """A function of autograd's, called with all inputs by position."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type(name, (torch.autograd.Function,), members)
    # The preparation by `torch.autograd.Function.apply` is for transforms, and none is active.
    beside: Any = super(torch.autograd.Function, made)
    apply: Function = beside.apply
    return apply


def without_gradient(name: str, schema: str, function: Function, fake: Function) -> Function:
    """Define ``torch.ops.sparsegen.NAME``, which calls that ask for a gradient are not to reach.

    Autograd has no function of Python for it: that would be several more in each call of a compiled model.

    Args:
        schema, function, fake: see `DirectOperator`; its lists arrive as lists.

    Returns:
        The operator of PyTorch's dispatcher.
    """
    # `torch.library.custom_op` would look in each call for results that are arguments too, which takes 9 µs.
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"sparsegen::{name}", fake, lib=_library)
    operator: Function = getattr(torch.ops.sparsegen, name).default
    return operator


class DirectOperator:
    """A custom operator that is called past PyTorch's dispatcher where nothing but a result or a gradient is asked for.

    The dispatcher and what Python adds to it take some 50 µs of a call that runs at once, 100 of one with a gradient,
    and more in the thread that runs backward (measured on the host of an H100).

    Attributes:
        apply: the function of autograd's, called with all inputs by position; of an operator without a gradient the
            dispatcher's operator, which says so when a gradient is computed. `launched_by` calls it with a launch
            behind the inputs.
        has_gradient: true if a backward pass is defined.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        function: Function,
        *,
        fake: Function,
        tensors: int,
        backward: Function | None = None,
        remember: Callable[..., None] | None = None,
        held: Held | None = None,
    ) -> None:
        """Define ``torch.ops.sparsegen.NAME``.

        All functions take arguments by position, tuples where the schema has lists.

        Args:
            schema: schema of its arguments and its result, as `torch.library` writes it. It writes none of its
                arguments.
            function: its computation. The result is no view: behind autograd's function PyTorch refuses to change one
                in place.
            fake: its result for tensors without data.
            tensors: number of arguments that are tensors, the first ones.
            backward, remember: its gradient, as `torch.library.register_autograd` takes them; both or none.
            held: encoding of the last argument, if it is an object: `schema` has ``int NAME`` for it.
        """
        self._name, self._function, self._tensors, self._held = name, function, tensors, held
        self._operator, self._portable = self._defined(name, schema, fake, backward, remember), None
        if held is not None:
            places = schema[: schema.rindex(", int ")]
            result = schema[schema.index(") -> ") :]
            self._portable = self._defined(
                f"{name}_carried", f"{places}, {held.schema}{result}", fake, backward, remember, carries=True
            )
        self.apply: Function = self.dispatched
        self._apply_by: Function = self.dispatched
        self._transformed: Function | None = None
        self.has_gradient = backward is not None and remember is not None
        if backward is None or remember is None:
            return

        # PyTorch would look up the signature of `forward` in every call for `setup_context`, which takes tens of µs.
        def forward(ctx: Context, *inputs: object) -> Any:
            output = function(*inputs)
            remember(ctx, inputs, output)
            return output

        def forward_by(ctx: Context, *inputs: Any) -> Any:
            *given, launch = inputs
            output = launch(*given[:tensors])
            remember(ctx, given, output)
            return output

        def backward_by(ctx: Context, *gradients: object) -> Any:
            return (*backward(ctx, *gradients), None)

        self.apply = applied(name, forward, backward)
        self._apply_by = applied(name, forward_by, backward_by)
        self._transformed = _for_transforms(name, function, backward, remember)

    def _defined(
        self,
        name: str,
        schema: str,
        fake: Function,
        backward: Function | None,
        remember: Callable[..., None] | None,
        *,
        carries: bool = False,
    ) -> Function:
        """The operator of PyTorch's dispatcher, with the object by its handle, or as what carries it."""
        held = self._held

        def taken(inputs: Sequence[object]) -> list[Any]:
            given: list[Any] = [tuple(one) if isinstance(one, list) else one for one in inputs]
            if held is None:
                return given
            if not carries:
                return [*given[:-1], held.of_handle(given[-1])]
            own, last = given[: -held.fields], given[-held.fields :]
            return [*own, held.restored(*last)]

        def gradient(ctx: Context, *given: object) -> Any:
            assert backward is not None and held is not None
            found = backward(ctx, *given)
            return (*found, *(None,) * (held.fields - 1)) if carries else found

        operator = without_gradient(
            name, schema, lambda *inputs: self._function(*taken(inputs)), lambda *inputs: fake(*taken(inputs))
        )
        full_name = f"sparsegen::{name}"
        if backward is None or remember is None:
            torch.library.register_autograd(full_name, _without_gradient(f"sparsegen.{name}"), lib=_library)
        else:
            torch.library.register_autograd(
                full_name,
                gradient if carries else backward,
                setup_context=lambda ctx, inputs, output: remember(ctx, taken(inputs), output),
                lib=_library,
            )
        return operator

    def __call__(self, *inputs: Any) -> Any:
        """The operator's result; all inputs by position."""
        what = asked(*inputs[: self._tensors])
        if what is Asked.NOTHING:
            return self._function(*inputs)
        return self.apply(*inputs) if what is Asked.GRADIENT else self.dispatched(*inputs)

    def by(self, what: Asked, *inputs: Any) -> Any:
        """The same where it is known what is asked of the call, or of several with these tensors among them."""
        if what is Asked.NOTHING:
            return self._function(*inputs)
        return self.apply(*inputs) if what is Asked.GRADIENT else self.dispatched(*inputs)

    def launched_by(self, launch: Function, what: Asked, *inputs: object) -> Any:
        """The same of an operator with a gradient, by what is known to compute it.

        Args:
            launch: takes the tensors among the inputs.
            what: is asked of the call.
        """
        if what is Asked.NOTHING:
            return launch(*inputs[: self._tensors])
        return self._apply_by(*inputs, launch) if what is Asked.GRADIENT else self.dispatched(*inputs)

    def dispatched(self, *inputs: Any) -> Any:
        """The same by the dispatcher, or by a function of autograd's where a transform such as `torch.func.grad` looks.

        What is written for another process carries the object itself.
        """
        if _stand_ins and is_exporting():
            return _stand_ins[-1](self._name, inputs, self._by_dispatcher)
        return self._by_dispatcher(*inputs)

    def _by_dispatcher(self, *inputs: Any) -> Any:
        if self._transformed is not None and _transform() is not None:
            return self._transformed(*inputs)
        if self._held is None:
            return self._operator(*inputs)
        if self._portable is not None and self._held.leaves():
            return self._portable(*inputs[:-1], *self._held.carried(inputs[-1]))
        return self._operator(*inputs[:-1], inputs[-1].handle)


def _without_gradient(name: str) -> Function:
    """The backward pass of an operator that has none: otherwise PyTorch would warn, and give no gradient."""

    def backward(ctx: Context, *gradients: object) -> Any:
        raise RuntimeError(f"Trying to backward through {name}, which has no gradient")

    return backward


def _part(x: Tensor, dim: Any, number: int) -> Tensor:
    """One of a batch's elements; zeros where it has none."""
    return x.select(dim, number) if x.shape[dim] else x.new_zeros((*x.shape[:dim], *x.shape[dim + 1 :]))


def _for_transforms(
    name: str, function: Function, backward: Function, remember: Callable[..., None]
) -> Function:
    """An operator as `torch.func` and `torch.vmap` take it: mapped by one call after the other."""

    def mapped(info: Any, in_dims: Sequence[object], *inputs: Any) -> tuple[Any, Any]:
        places = [d if isinstance(x, Tensor) else None for d, x in zip(in_dims, inputs, strict=True)]
        size = info.batch_size
        found = [
            made.apply(*(x if d is None else _part(x, d, i) for d, x in zip(places, inputs, strict=True)))
            for i in range(max(size, 1))  # a call on zeros tells shapes where there is none
        ]
        if isinstance(found[0], Tensor):
            return torch.stack(found)[:size], 0
        return tuple(torch.stack(one)[:size] for one in zip(*found, strict=True)), (0,) * len(found[0])

    members = {
        "forward": staticmethod(lambda *inputs: function(*inputs)),  # defaults are not inputs
        "setup_context": staticmethod(remember),
        "backward": staticmethod(backward),
        "vmap": staticmethod(mapped),
    }
    made: Any = type(f"{name}_transformed", (torch.autograd.Function,), members)
    apply: Function = made.apply
    return apply
