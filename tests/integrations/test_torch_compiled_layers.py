"""Layers that read one tensor, in graphs of `torch.compile`: one operator for all, wherever that gives the same."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from call_costs import steps_of  # noqa: E402
from launched_on_cpu import launched_on_cpu  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._dynamo.eval_frame import _debug_get_cache_entry_list  # noqa: E402
from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402
from torch._inductor import config, custom_graph_pass  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import SparseLinear  # noqa: E402
from sparsegen.integrations.torch.calls.activations import Activation  # noqa: E402
from sparsegen.integrations.torch.pattern import compiled_layers, shared_input  # noqa: E402
from sparsegen.integrations.torch.pattern.joined_layers import JoinedLayers, install, join  # noqa: E402
from sparsegen.integrations.torch.pattern.shared_input import SharedInput, SharedPart  # noqa: E402

IN, SIZES = 32, (16, 24, 8)
ALL = sum(SIZES)
# Steps of a joint call when it has been made before: functions of Python that are entered, and of C that are called.
MOST_JOINT, MOST_ALONE = (12, 19), (9, 13)


def each_once(q: Any, k: Any, v: Any, x: Any) -> Any:
    return q(x), k(x), v(x)


class Block(nn.Module):
    """Three layers on one tensor, the second without bias, called as a function has it."""

    def __init__(self, call: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, size, has_bias in zip("qkv", SIZES, (True, False, True), strict=True):
            dense = nn.Linear(IN, size, bias=has_bias)
            setattr(self, name, SparseLinear.from_dense(dense, sparsity=0.75, run_dense="never"))
        together = SharedInput(self.layers)
        for number, layer in enumerate(self.layers):
            layer.shares(SharedPart(together, number))
        self.requires_grad_(False)
        self.call = call or each_once

    def forward(self, x: Any) -> Any:
        return self.call(*self.layers, x)

    def dense(self, x: Any) -> Any:
        """The results of dense layers."""
        dense = [layer.to_dense().requires_grad_(False) for layer in self.layers]
        alike = zip(self.layers, dense, strict=True)
        return self.call(*(lambda x, s=s, d=d: s.activation.of(d(x)) for s, d in alike), x)

    @property
    def layers(self) -> list[Any]:
        return [self.q, self.k, self.v]


class Graphs:
    """A compiler of functional graphs, which joins layers as in Inductor and makes no code."""

    def __init__(self) -> None:
        self.seen: list[Counter[str]] = []

    def __call__(self, module: Any, _: Any) -> Any:
        join(module.graph)
        module.graph.lint()
        module.recompile()
        names = (str(node.target) for node in module.graph.nodes if node.op == "call_function")
        self.seen.append(Counter(names))
        return make_boxed_func(module.forward)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Joint operators and layers alone in each graph."""
        names = ("sparsegen.joint_linear.default", "sparsegen.compiled_linear.default")
        return [tuple(graph[name] for name in names) for graph in self.seen]


def compiled(model: Any, **options: Any) -> tuple[Any, Graphs]:
    graphs = Graphs()
    return torch.compile(model, backend=aot_autograd(fw_compiler=graphs), fullgraph=True, **options), graphs


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    before = config.post_grad_custom_pre_pass
    torch._dynamo.reset()
    yield
    config.post_grad_custom_pre_pass = before
    torch._dynamo.reset()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each product that runs."""
    seen: list[int] = []
    for module in (shared_input, compiled_layers):
        real = module.linear_at_once

        def linear_at_once(
            x: Any, values: Any, bias: Any, pattern: Any, *rest: Any, real: Any = real, **given: Any
        ) -> Any:
            seen.append(pattern.shape[0])
            return real(x, values, bias, pattern, *rest, **given)

        monkeypatch.setattr(module, "linear_at_once", linear_at_once)
    return seen


def check(found: Any, wanted: Any, far: float = 1e-4) -> None:
    assert len(found) == len(wanted)
    for ours, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.float(), right, rtol=1e-3, atol=far)


@pytest.mark.parametrize("activation", Activation)
def test_one_launch_gives_what_the_layers_give(
    place: str, launches: list[int], activation: Activation
) -> None:
    model = Block()
    for layer in model.layers:
        layer.activation = activation
    run, graphs = compiled(model)
    x = torch.randn(2, 3, IN)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            for _ in range(2):
                check(run(x), model.dense(x))
    assert set(graphs.layers) == {(1, 0)} and launches == [ALL] * 4
    assert set(graphs.seen[0]) == {"sparsegen.joint_linear.default", "aten.slice.Tensor"}, "with its epilogue"


def test_numbers_of_tokens_that_change(launches: list[int]) -> None:
    model = Block()
    run, graphs = compiled(model, dynamic=True)
    with torch.no_grad():
        for tokens in (5, 9, 2):
            x = torch.randn(tokens, 3, IN)
            check(run(x), model.dense(x))
    assert graphs.layers == [(1, 0)] and launches == [ALL] * 3


def changed(q: Any, k: Any, v: Any, x: Any) -> Any:
    first = q(x)
    x.add_(1)
    return first, k(x), v(x)


def by_a_view(q: Any, k: Any, v: Any, x: Any) -> Any:
    x = x.clone()
    first = q(x)
    x[0].zero_()
    return first, k(x), v(x)


CALLS = {
    "in another order": ((1, 0), lambda q, k, v, x: (v(x), q(x).relu(), k(x))),
    "with work between": (
        (1, 1),
        lambda q, k, v, x: (q(x).view(3, 5, 2, 8).permute(2, 0, 1, 3), v(k(x)[..., :1] + x) + v(x)),
    ),
    "one again": ((1, 1), lambda q, k, v, x: (q(x), q(x), k(x), v(x))),
    "one not called": ((0, 2), lambda q, k, v, x: (q(x), v(x))),
    "a result that nobody uses": ((0, 2), lambda q, k, v, x: (q(x), k(x), v(x))[::2]),
    "one on another tensor": ((0, 3), lambda q, k, v, x: (q(x), k(x + 1), v(x))),
    "twice, on two tensors": ((2, 0), lambda q, k, v, x: [f(y) for y in (x, 2 * x) for f in (q, k, v)]),
    "changed in place": ((0, 3), changed),
    "changed by a view": ((0, 3), by_a_view),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_as_they_come(launches: list[int], name: str) -> None:
    layers, call = CALLS[name]
    model = Block(call)
    run, graphs = compiled(model)
    x = torch.randn(3, 5, IN)
    with torch.no_grad():
        for _ in range(2):
            check(run(x.clone()), model.dense(x.clone()))
    assert graphs.layers == [layers]
    assert len(launches) == 2 * sum(layers)


def test_weights_that_a_graph_changes_between() -> None:
    model = Block()

    def call(q: Any, k: Any, v: Any, x: Any) -> Any:
        first = q(x)
        model.k.values.mul_(2)
        return first, k(x), v(x)

    model.call = call
    run, graphs = compiled(model)
    x = torch.randn(5, IN)
    twice = 2 * model.k.to_dense()(x)
    with torch.no_grad():
        check(run(x)[1:2], [twice])
        check(run(x)[1:2], [2 * twice])
    assert graphs.layers == [(0, 3)]


def test_layers_behind_each_other(launches: list[int]) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Block(), Block()

        def forward(self, x: Any) -> Any:
            return self.other(torch.cat(self.one(x), -1)[..., :IN])

    model = Two()
    run, graphs = compiled(model)
    x = torch.randn(5, IN)
    with torch.no_grad():
        check(run(x), model.other.dense(torch.cat(model.one.dense(x), -1)[..., :IN]))
    assert graphs.layers == [(2, 0)] and launches == [ALL] * 2


def test_new_values_and_patterns_are_followed(launches: list[int]) -> None:
    model, x = Block(), torch.randn(5, IN)
    run, graphs = compiled(model)
    with torch.no_grad():
        check(run(x), model.dense(x))
        model.k.values.mul_(2)
        model.q.bias.add_(1)
        check(run(x), model.dense(x))
        model.q.values.requires_grad_(True)
        model.q.values.data.mul_(3)  # which PyTorch does not count
        check(run(x), model.dense(x))
        model.q.values.data.mul_(3)
        check(run(x), model.dense(x))
        model.q.values.requires_grad_(False)
        other = Block()
        other.k = SparseLinear.from_dense(nn.Linear(IN, SIZES[1], bias=False), sparsity=0.9)
        model.load_state_dict(other.state_dict())
        check(run(x), model.dense(x))
        model.double()
        check([y.float() for y in run(x.double())], [y.float() for y in model.dense(x.double())])
    assert graphs.layers == [(1, 0), (0, 3), (1, 0), (1, 0)]
    assert launches == [ALL] * 2 + [*SIZES] * 2 + [ALL] * 2


def test_copies_have_launches_of_their_own(launches: list[int]) -> None:
    model, x = Block(), torch.randn(5, IN)
    with torch.no_grad():
        run, _ = compiled(model)
        check(run(x), model.dense(x))
        twin = copy.deepcopy(model)
        twin.q.values.mul_(2)
        run_twin, graphs = compiled(twin)
        check(run_twin(x), twin.dense(x))
        check(run(x), model.dense(x))
    assert graphs.layers == [(1, 0)] and launches == [ALL] * 3


def test_layers_that_share_no_more(launches: list[int]) -> None:
    model, x = Block(), torch.randn(5, IN)
    run, graphs = compiled(model)
    with torch.no_grad():
        check(run(x), model.dense(x))
        for layer in model.layers:
            layer.shares(None)
        gc.collect()
        check(run(x), model.dense(x))
    assert graphs.layers == [(1, 0), (0, 3)] and launches == [ALL, *SIZES]
    with pytest.raises(OperandError, match=r"compile the model again"):
        torch.ops.sparsegen.joint_linear(x, [model.q.values, None], 16, "none", False, 10**9)


def test_training_is_each_layers_own(launches: list[int]) -> None:
    model = Block().requires_grad_(True)
    run, graphs = compiled(model)
    x = torch.randn(5, IN, requires_grad=True)
    wide = x.detach().clone().requires_grad_()
    for _ in range(2):
        x.grad = wide.grad = None
        model.zero_grad()
        sum(y.square().sum() for y in run(x)).backward()
        for layer in model.layers:
            dense = layer.to_dense()
            dense(wide).square().sum().backward()
            rows, columns, _ = layer.pattern.places(x.device)
            torch.testing.assert_close(
                layer.values.grad, dense.weight.grad[rows, columns], rtol=1e-3, atol=1e-3
            )
        torch.testing.assert_close(x.grad, wide.grad, rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            model.q.values.sub_(0.1 * model.q.values.grad)
    assert set(graphs.layers) == {(0, 0)} and not launches
    with torch.no_grad():
        check(run(x), model.dense(x))
    assert graphs.layers[-1] == (0, 3) and launches == [*SIZES], "values that train are brought by each layer"


def test_gradients_through_frozen_layers() -> None:
    model = Block()
    run, graphs = compiled(model)
    x = torch.randn(5, IN, requires_grad=True)
    sum(y.square().sum() for y in run(x)).backward()
    found, x.grad = x.grad, None
    sum(y.square().sum() for y in model.dense(x)).backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-3, atol=1e-3)
    assert set(graphs.layers) == {(0, 0)}
    check(run(x.detach()), model.dense(x.detach()))
    assert graphs.layers[-1] == (1, 0), "no gradient is asked for"


@pytest.mark.parametrize("trains", [False, True])
def test_autocast(place: str, launches: list[int], trains: bool) -> None:
    model = Block().requires_grad_(trains)
    run, graphs = compiled(model)
    x = torch.randn(4, IN)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(x)
    assert {y.dtype for y in found} == {torch.bfloat16}
    check(found, model.dense(x), 5e-2)
    assert graphs.layers == [(0, 0) if trains else (1, 0)]
    if not trains:
        assert graphs.seen[0]["aten._to_copy.default"] == 1, "of X; weights are cast once, not in the graph"
        assert launches == [ALL]


def test_the_operators_keep_pytorchs_rules(place: str) -> None:
    model, x = Block(), torch.randn(5, IN)
    together = model.q.part.shared
    weights = [one for layer in model.layers for one in (layer.values, layer.bias)]
    for given in (x, torch.randn(2, 3, IN)):
        torch.library.opcheck(
            torch.ops.sparsegen.joint_linear.default, (given, weights, ALL, "relu", False, together.handle)
        )
        alone = given, model.q.values, model.q.bias, model.q.pattern.handle, SIZES[0], "gelu", False, 0, 0, 1
        torch.library.opcheck(torch.ops.sparsegen.compiled_linear.default, alone)


def test_the_pass_goes_behind_others() -> None:
    class Theirs(custom_graph_pass.CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            seen.append(graph)

        def uuid(self) -> str:
            return "theirs"

    aware = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", custom_graph_pass.CustomGraphPass)

    class Told(aware):
        def __call__(self, graph: Any, is_inference: bool = True) -> None:
            seen.append(graph if is_inference else None)

        def uuid(self) -> None:
            pass

    seen: list[Any] = []
    config.post_grad_custom_pre_pass = None
    install()
    ours = config.post_grad_custom_pre_pass
    assert isinstance(ours, JoinedLayers) and ours.uuid() is not None
    install()
    assert config.post_grad_custom_pre_pass is ours
    empty = torch.fx.Graph()
    for before, named in (
        (Theirs(), True),
        ([Theirs(), seen.append], False),
        (seen.append, False),
        (Told(), False),
    ):
        config.post_grad_custom_pre_pass = before
        install()
        made = config.post_grad_custom_pre_pass
        made(empty)
        assert (made.uuid() is not None) == named, "Inductor keeps nothing that an unnamed pass changed"
        assert made.uuid() != ours.uuid()
    assert seen == [empty] * 5


def test_guards_read_numbers_and_words_of_a_layer() -> None:
    """Any other object of a layer costs each call of the compiled model more than all guards of a dense layer do."""
    model = Block()
    run, _ = compiled(model)
    with torch.no_grad():
        run(torch.randn(5, IN))
    [entry] = _debug_get_cache_entry_list(Block.forward.__code__)
    guards = str(entry.guard_manager)
    assert "_traced_as" in guards
    assert not [
        read for read in ("]._shared", "].pattern", "]._activation", " is L['self']") if read in guards
    ]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_in_a_graph_has_its_own_pattern(launches: list[int], copied: Any) -> None:
    model, other, x = Block(), Block(), torch.randn(5, IN)
    other.q = SparseLinear.from_dense(nn.Linear(IN, SIZES[0]), sparsity=0.5, run_dense="never")
    theirs = copied(model)
    theirs.q.load_state_dict(other.q.state_dict())
    for one in (theirs, model):
        torch._dynamo.reset()
        run, graphs = compiled(one)
        with torch.no_grad():
            check(run(x), one.dense(x))
        assert graphs.layers == [(1, 0)] and launches.pop() == ALL


@pytest.mark.long
def test_inductor_calls_one_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, launches: list[int]
) -> None:
    """In code that Inductor makes, and makes use of again, with attention on the parts of the result."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def attend(q: Any, k: Any, v: Any, x: Any) -> Any:
        heads = [
            y.view(*y.shape[:-1], -1, 8).transpose(1, 2) for y in (q(x), k(x)[..., :16], v(x).repeat(1, 1, 2))
        ]
        return (nn.functional.scaled_dot_product_attention(*heads),)

    model, x = Block(attend), torch.randn(2, 6, IN)
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            (found,), [code] = run_and_get_code(torch.compile(model, fullgraph=True), x)
            check([found], model.dense(x))
            assert code.count("sparsegen.joint_linear.default(") == 1 and "compiled_linear" not in code
    assert launches == [ALL] * 2 and isinstance(config.post_grad_custom_pre_pass, JoinedLayers)


@pytest.mark.gpu
@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_for_a_gpu(launches: list[int], mode: str, casts: bool) -> None:
    """Stacked weights and cast biases outlive the first call, which may run in the memory of a graph to be."""
    model = Block(lambda q, k, v, x: (q(x).relu(), k(x), v(x))).to(
        "cuda", torch.float32 if casts else torch.float16
    )
    x = torch.randn(8, IN, device="cuda", dtype=model.q.dtype)
    run = torch.compile(model, mode=mode, fullgraph=True)
    with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=casts):
        for _ in range(4):
            check([y.clone() for y in run(x)], [y.float() for y in model.dense(x)], 5e-2)
    assert set(launches) == {ALL}


def test_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that a call enters, as a compiled model makes it."""
    idle, model = launched_on_cpu(monkeypatch), Block()
    weights = [one for layer in model.layers for one in (layer.values, layer.bias)]
    x, q = torch.randn(6, IN), model.q
    joint = (x, weights, ALL, "relu", False, q.part.shared.handle)
    alone = (x, q.values, q.bias, q.pattern.handle, SIZES[0], "relu", False, 0, 0, 1)
    ops = torch.ops.sparsegen
    for operator, given, most in (
        (ops.joint_linear.default, joint, MOST_JOINT),
        (ops.compiled_linear.default, alone, MOST_ALONE),
    ):
        with torch.no_grad():
            operator(*given)
            idle.is_idle = True
            steps = steps_of(lambda operator=operator, given=given: operator(*given))
            idle.is_idle = False
        assert steps.python.total() <= most[0] and steps.c.total() <= most[1], steps
