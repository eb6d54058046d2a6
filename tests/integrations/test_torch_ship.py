"""Shipped models: what is written runs in a process without sparsegen, with the bits of this one."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from sparsegen.attention import choice  # noqa: E402
from sparsegen.cli.main import cli  # noqa: E402
from sparsegen.errors import (  # noqa: E402
    ConfigError,
    DeviceUnavailableError,
    OperandError,
    OutputExistsError,
    SparsegenError,
)
from sparsegen.integrations.torch import (  # noqa: E402
    MaskedConv2d,
    PointwiseConv2d,
    QuantizedLinear,
    Shipped,
    SparseAttention,
    SparseLinear,
    SparsePattern,
    block_attention,
    convert,
    linear,
    masks,
    ship,
)
from sparsegen.integrations.torch.attention import attention  # noqa: E402
from sparsegen.integrations.torch.pattern.shared_input import SharedInput, SharedPart  # noqa: E402
from sparsegen.operators import Quantization, ScaleGroup, ValueType  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_emulator")
LOADER = """
import sys
sys.modules["sparsegen"] = None  # an import of it raises ImportError
import runpy, torch
(folder,) = sys.argv[1:]
model = runpy.run_path(folder + "/load.py")["load"]()
inputs, wanted = torch.load(folder + "/example.pt")
with torch.no_grad():
    for _ in range(2):
        found = model(*inputs)
        assert torch.equal(found, wanted), (found - wanted).abs().max()
    try:
        model(*(one[:1] for one in inputs))
    except (RuntimeError, AssertionError):
        print("equal bits, and other shapes are refused")
print(*(name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules))
"""

WITHOUT_COMPILERS: list[str] = []  # their imports take seconds


def sparse(width: int, height: int, **options: Any) -> SparseLinear:
    options = {"run_dense": "never", "bias": True} | options
    dense = nn.Linear(width, height, bias=options.pop("bias"))
    return SparseLinear.from_dense(dense, sparsity=0.8, **options)


class Block(nn.Module):
    """Three layers in one launch, one with an activation, one that stays dense, one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (sparse(32, 16) for _ in range(3))
        together = SharedInput((self.q, self.k, self.v))
        for number, layer in enumerate(together.layers):
            layer.shares(SharedPart(together, number))
        self.norm = nn.LayerNorm(16)
        self.up = sparse(16, 48)
        self.up.activation = self.up.activation.parse("gelu")
        self.always_dense = sparse(48, 24, run_dense="always")
        self.down = sparse(24, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.softmax(self.q(x) * self.k(x), -1) * self.v(x)
        return x + self.down(self.always_dense(self.up(self.norm(mixed))))


def shipped(model: nn.Module, inputs: Tensor | tuple[Tensor, ...], folder: Path, program: str) -> Shipped:
    """A shipped model with an example beside it."""
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad():
        wanted = model(*args)
    found = ship(model, inputs, folder, program=program)
    with torch.no_grad():
        assert torch.equal(model(*args), wanted), "the model was changed"
    torch.save((args, wanted), folder / "example.pt")
    return found


def loads_elsewhere(folder: Path) -> list[str]:
    """The compilers of PyTorch that a process without sparsegen imports; raises AssertionError for other bits."""
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(folder)],
        cwd=folder,
        # Other numbers of threads add in another order.
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    told = done.stdout.splitlines()
    assert told[:1] == ["equal bits, and other shapes are refused"], done.stdout + done.stderr
    return told[1].split()


@pytest.fixture
def block() -> nn.Module:
    torch.manual_seed(0)
    return Block().eval()


def test_an_exported_program_has_equal_bits_elsewhere(block: nn.Module, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in block.state_dict().items()}
    found = shipped(block, torch.randn(2, 5, 32), tmp_path / "block", "exported")
    assert loads_elsewhere(tmp_path / "block") == WITHOUT_COMPILERS
    assert len(found.launches) == 3 and found.dense == 1, "q, k and v are one launch"
    assert sorted(launch.problem.m for launch in found.launches) == [32, 48, 48]
    assert found.architectures == ("cpu",)
    facts = json.loads((tmp_path / "block" / "shipped.json").read_text())
    assert facts == found.to_dict() and len(facts["launches"]) == 3
    assert block.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    shutil.copytree(tmp_path / "block", tmp_path / "copy")
    args, wanted = torch.load(tmp_path / "copy" / "example.pt")
    loaded = runpy.run_path(str(tmp_path / "copy" / "load.py"))["load"]()  # its library is here already
    assert torch.equal(loaded(*args), wanted)
    state = torch.export.load(tmp_path / "block" / "model.pt2").state_dict
    assert not [name for name in state if "values" in name or "row_offsets" in name], "weights are there once"


def test_codes_and_scales_are_shipped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rounding = Quantization(ValueType.INT4, ScaleGroup.OF_32)
    layers = [sparse(64, 48).half(), sparse(48, 16, bias=False).half()]
    model = nn.Sequential(*(QuantizedLinear.from_sparse(layer, rounding) for layer in layers)).eval()
    found = shipped(model, torch.randn(2, 3, 64).half(), tmp_path / "model", "exported")
    assert [launch.problem.value_type for launch in found.launches] == [ValueType.INT4] * 2
    assert loads_elsewhere(tmp_path / "model") == WITHOUT_COMPILERS


def test_an_exported_program_takes_named_inputs_and_is_compiled(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = sparse(32, 32)

        def forward(self, x: Tensor, *, more: Tensor, twice: bool) -> dict[str, Tensor]:
            return {"sum": self.layer(x) + (2 * more if twice else more), "x": x}

    torch.manual_seed(0)
    model, given = Named().eval(), {"x": torch.randn(9, 32), "more": torch.ones(32), "twice": True}
    ship(model, given, tmp_path / "model", program="exported")
    loaded = runpy.run_path(str(tmp_path / "model" / "load.py"))["load"]()
    turned = dict(reversed(given.items()))
    with torch.no_grad():
        wanted = model(**given)
        for run in (loaded, torch.compile(loaded, backend="eager", fullgraph=True)):
            found = run(**turned)
            assert found.keys() == wanted.keys() and all(
                torch.equal(found[key], wanted[key]) for key in wanted
            )
    for other in (given["x"].double(), given["x"][:1], 2.0):
        with pytest.raises(RuntimeError, match=r"as in the example inputs: .*\(9, 32\), torch\.float32"):
            loaded(**given | {"x": other})


@pytest.mark.long
def test_a_compiled_program_has_equal_bits_elsewhere(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(sparse(32, 48), nn.ReLU(), sparse(48, 16)).eval()
    compiler = tmp_path / "compiler"  # one that links a C++ library into each object, as some machines' do
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -static-libstdc++\n', encoding="utf-8")
    compiler.chmod(0o755)
    with torch._inductor.config.patch({"cpp.cxx": (None, str(compiler))}):
        shipped(model, torch.randn(7, 32), tmp_path / "model", "compiled")
    assert loads_elsewhere(tmp_path / "model") == WITHOUT_COMPILERS


def test_images_autocast_and_halves(tmp_path: Path) -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = nn.Conv2d(16, 8, 1)
            pattern = SparsePattern(torch.rand(8, 16) < 0.3, run_dense="never")
            self.conv = PointwiseConv2d.on_convolution(conv, pattern)
            self.head = sparse(8, 16)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.head(self.conv(x).flatten(2).mT)

    torch.manual_seed(0)
    found = shipped(Images().eval(), torch.randn(2, 16, 3, 3), tmp_path / "images", "exported")
    assert {launch.problem.dtype.value for launch in found.launches} == {"bfloat16"}
    assert loads_elsewhere(tmp_path / "images"), "a program within the program is run by torch.export"


def test_a_layer_called_with_two_numbers_of_tokens_has_two_launches(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = sparse(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x)[:3])

    torch.manual_seed(0)
    found = shipped(Twice().eval(), torch.randn(9, 32), tmp_path / "twice", "exported")
    assert [launch.problem.n for launch in found.launches] == [9, 3]
    assert loads_elsewhere(tmp_path / "twice") == WITHOUT_COMPILERS


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not here")
def test_kernels_of_other_gpus_are_in_the_library(tmp_path: Path) -> None:
    found = ship(
        sparse(32, 32).eval(), torch.randn(9, 32), tmp_path / "model", archs=["h100"], program="exported"
    )
    assert found.architectures == ("cpu", "sm_90a")
    (launch,) = found.launches
    assert [target.capability for target in launch.targets] == [0, 90]
    assert launch.targets[1].binary.startswith(b"\x7fELF")
    library = (tmp_path / "model" / "kernels.so").read_bytes()
    assert all(target.binary in library for target in launch.targets)


class Functional(nn.Module):
    """Calls an operator of sparsegen's beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = sparse(16, 16)
        self.pattern = SparsePattern(torch.eye(16))
        self.values = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.layer(x), self.values, self.pattern)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: nn.Sequential(nn.Linear(16, 16)).eval(),
            OperandError,
            r"no sparse layer, .*convert it first",
        ),
        (lambda: nn.Sequential(sparse(16, 16)).train(), OperandError, r"call model\.eval\(\)"),
        (lambda: sparse(16, 16, run_dense="always").eval(), OperandError, "dense products take less time"),
        (lambda: sparse(16, 16).double().eval(), DeviceUnavailableError, "no kernel runs for torch.float64"),
        (lambda: Functional().eval(), OperandError, r"calls sparsegen\.linear, which cannot"),
    ],
)
def test_models_that_cannot_be_shipped(make: Any, error: type, message: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make()
    kind = next(model.parameters()).dtype
    with pytest.raises(error, match=message):
        ship(model, torch.randn(4, 16, dtype=kind), tmp_path / "out", program="exported")
    assert list(tmp_path.glob("*out*")) == [], "nothing is left of it"
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in make().named_parameters()}


class Masked(nn.Module):
    """Convolutions whose mask comes with the call."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        options = {"padding": 1, "mask_block": 4, "dense": "never"} | options
        self.first, self.second = MaskedConv2d(8, 16, 3, **options), MaskedConv2d(16, 8, 3, **options)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x, mask)), mask)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_masked_convolutions_take_another_mask_with_each_call(memory: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Masked().eval(), torch.randn(2, 8, 16, 16).to(memory_format=memory)
    found = shipped(model, (x, torch.rand(2, 4, 4) < 0.5), tmp_path / "masked", "exported")
    assert [launch.problem.operator for launch in found.launches] == ["masked_conv2d"] * 2
    assert loads_elsewhere(tmp_path / "masked") == WITHOUT_COMPILERS
    loaded = runpy.run_path(str(tmp_path / "masked" / "load.py"))["load"]()
    other = torch.rand(2, 4, 4) < 0.2
    with torch.no_grad():
        assert torch.equal(loaded(x, other), model(x, other))


class Attending(nn.Module):
    """Attention over the blocks with the largest scores of the call, and what masks nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 3 * 2 * 64)

    def forward(self, x: Tensor, scores: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(1, 64, 3, 2, 64).permute(2, 0, 3, 1, 4)
        mask = masks.topk_blocks(scores, 2, (16, 16)) & masks.window_blocks((64, 64), 16, causal=True)
        pooled = masks.pooled_scores(q, k, 16)
        more = masks.top_p_blocks(pooled, 0.4, 16)[0] & masks.threshold_blocks(pooled, 0.0, 16)[0]
        mask = masks.union_of_group(masks.dilated(more, (0, 1)) | mask, 2)
        out, lse = block_attention(q, k, v, mask, causal=True, return_lse=True)
        return block_attention(out, k, v, softcap=5.0) + lse[..., None].exp().half()


def test_attention_by_blocks_takes_another_mask_with_each_call(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Attending().eval().half(), torch.randn(1, 64, 64).half()
    found = shipped(model, (x, torch.rand(2, 4, 4)), tmp_path / "attending", "exported")
    assert [launch.problem.operator for launch in found.launches] == ["block_attention"] * 2
    assert {spec.name for spec in found.launches[0].operands} == {"q", "k", "v", "mask"}, (
        "the scale is packed"
    )
    loads_elsewhere(tmp_path / "attending")


class Fixed(nn.Module):
    """Attention over a fixed pattern, in one launch or in steps."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SparseAttention(torch.rand(16, 16) < 0.3, 2, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x + 1, x - 1)


def test_attention_over_a_pattern_is_shipped_where_it_is_one_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = Fixed().eval(), torch.randn(2, 16, 64).half()
    monkeypatch.setattr(attention, "fused_runs", lambda *_: False)
    with pytest.raises(OperandError, match="several launches"):
        ship(model, x, tmp_path / "steps", program="exported")
    monkeypatch.setattr(attention, "fused_runs", lambda *_: True)
    found = shipped(model, x, tmp_path / "fused", "exported")
    assert [launch.problem.operator for launch in found.launches] == ["sparse_attention"]
    assert loads_elsewhere(tmp_path / "fused") == WITHOUT_COMPILERS
    monkeypatch.setattr(choice, "_other_times", lambda *_: {})
    found = shipped(Fixed().eval(), x, tmp_path / "blocks", "exported")
    assert [launch.problem.operator for launch in found.launches] == ["block_attention"]
    assert loads_elsewhere(tmp_path / "blocks") == WITHOUT_COMPILERS


def test_what_pytorch_computes_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"block_attention: no kernel runs for torch\.float32"):
        ship(Attending().eval(), (torch.randn(1, 64, 64), torch.rand(2, 4, 4)), tmp_path / "wide")


def test_layers_with_one_kernel_have_it_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kept = torch.rand(64, 64) < 0.2
    layers = (SparseLinear.from_dense(nn.Linear(64, 64), kept, run_dense="never") for _ in range(32))
    found = ship(nn.Sequential(*layers).eval(), torch.randn(4, 64), tmp_path / "deep", program="exported")
    binaries = {target.digest: target.binary for launch in found.launches for target in launch.targets}
    library = (tmp_path / "deep" / "kernels.so").read_bytes()
    assert len(found.launches) == 32 and len(binaries) == 1
    assert [library.count(binary) for binary in binaries.values()] == [1]
    assert len(library) < sum(map(len, binaries.values())) + 300_000


def test_a_missing_compiler_and_other_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = sparse(16, 16).eval(), torch.randn(4, 16)
    with pytest.raises(OutputExistsError, match="choose another name"):
        ship(model, x, tmp_path)
    with pytest.raises(OperandError, match="exported"):
        ship(model, x, tmp_path / "out", program="onnx")
    with pytest.raises(ConfigError, match="no description of a device 'sm_1'"):
        ship(model, x, tmp_path / "out", archs=["sm_1"])
    with pytest.raises(OperandError, match="no tokens"):
        ship(model, x[:0], tmp_path / "out")
    with torch.no_grad():
        model(x)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DeviceUnavailableError, match="no-such-compiler"):
        ship(model, x, tmp_path / "out", program="exported")


def test_an_error_of_tracing_names_its_cause(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = sparse(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if x.sum() > 0 else x

    model = Branches().eval()
    with pytest.raises(SparsegenError, match=r"torch\.export cannot trace the model"):
        ship(model, torch.ones(4, 16), tmp_path / "out", program="exported")
    with torch.no_grad():
        model(torch.ones(4, 16))  # its layers have their weights again


def test_a_converted_model_from_a_file_is_shipped_by_the_command(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 16, bias=False)).eval()
    convert(model, "unstructured", 0.8, dense="never")
    x = torch.randn(3, 32)
    torch.export.save(torch.export.export(model, (x,), strict=False), tmp_path / "model.pt2")
    torch.save(x, tmp_path / "x.pt")
    words = [str(tmp_path / "model.pt2"), "--example-inputs", str(tmp_path / "x.pt"), "--device", "emulator"]
    words = ["ship", *words, "--program", "exported", "-o"]
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "out"), "--json"])
    told = json.loads(done.stdout)
    assert told["folder"] == str(tmp_path / "out") and len(told["launches"]) == 2
    again = CliRunner().invoke(cli, [*words, str(tmp_path / "other")])
    assert '/load.py")["load"]()' in again.stdout and "2 launches for cpu" in again.stdout
    with torch.no_grad():
        torch.save(((x,), model(x)), tmp_path / "out" / "example.pt")
    assert loads_elsewhere(tmp_path / "out") == WITHOUT_COMPILERS
