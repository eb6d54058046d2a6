"""Golden sources: what a few variants of every family look like, so that changes of templates are seen.

A source is kept as its digest and the lines that its template does not have as they stand (+), or, where that is
shorter, as what differs from a source before it of the same template: lines that are not in that one (+), and how many
are not in this one (-). What templates share stands apart: a line names the file, whose renderings are kept alike in
the folder that is called as its own; a number in that line says which stands there. Comments stand in the templates
alone, but for those at a source's top.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment

from sparsegen import templates
from sparsegen.backends.emulator import device
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily
from sparsegen.operators import (
    Activation,
    Block,
    BlockAttentionBackwardProblem,
    BlockAttentionProblem,
    Chosen,
    ConvEpilogue,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    FactorType,
    FilterVolume,
    Given,
    Groups,
    ImageLayout,
    ItemValues,
    Layout,
    MaskBlock,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    MaskOf,
    MasksOf,
    PagedAttentionProblem,
    Problem,
    QuantizedSpmmProblem,
    Readout,
    Rest,
    Room,
    ScaleGroup,
    ScoreChange,
    SddmmEpilogue,
    SddmmProblem,
    SddProblem,
    SinkLogits,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SparseNetworkProblem,
    SpmmProblem,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
    TokenOrder,
    ValueType,
)
from sparsegen.render import environment as rendering
from sparsegen.render import render
from sparsegen.render.references import included

FOLDER = Path(__file__).with_name("golden")
TEMPLATES = Path(templates.__file__).parent
HEADER = "lib/header.cuh.j2"  # names family and config: another text in every source
INCLUDE = re.compile(r'{% include "([^"]+)" %}|{% includes ([^%]+) %}')
BEGIN, END = "\x01{}\x02", "\x03"  # around what a shared file rendered to
MARKS = re.compile("\x01([^\x02]*)\x02|\x03")
TOP = re.compile(r"(?://.*\n)*")
COMMENT = re.compile(r"^ *//.*\n|  // .*$", re.MULTILINE)
DIGEST = re.compile(r"\(templates [0-9a-f]+\)")


def simplest_config(family: AnyFamily, problem: Problem, given: Mapping[str, Any]) -> Any:
    """The valid config with the fewest changes to the defaults; unlike a heuristic, it stays where it is."""
    choices = [tunable for tunable in family.config_type.tunables() if tunable.name not in given]
    for changed in range(len(choices) + 1):
        for some in itertools.combinations(choices, changed):
            for values in itertools.product(*(t.choices for t in some)):
                changes = {t.name: v for t, v in zip(some, values, strict=True)}
                config = family.config_type(**given, **changes)
                if not family.broken_constraints(problem, config, device()):
                    return config
    raise AssertionError(f"{family.name} has no valid config for {problem}")


def names_in(match: re.Match[str]) -> list[str]:
    """The files that an `INCLUDE` includes."""
    return [match[1]] if match[1] else included(match[2])


@cache
def shared() -> frozenset[str]:
    """The files that templates share: all of the library that are included, and what several files include."""
    files = (file for file in TEMPLATES.rglob("*.j2") if file.relative_to(TEMPLATES).parts[0] != "standalone")
    texts = (file.read_text() for file in files)
    times = Counter(name for text in texts for match in INCLUDE.finditer(text) for name in names_in(match))
    return frozenset(n for n, count in times.items() if count > 1 or n.startswith("lib/")) - {HEADER}


class Marking(BaseLoader):
    """Loads templates, with marks around those that are shared."""

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        plain = rendering().loader
        assert plain is not None
        source, file, fresh = plain.get_source(environment, template)
        if template in shared():
            source = BEGIN.format(template) + source + END
        return source, file, fresh


@cache
def marking() -> Environment:
    return rendering().overlay(loader=Marking())


@dataclass(frozen=True)
class Golden:
    """The simplest config of a family for one problem, with a name for the file.

    Attributes:
        given: tunables with their values in the config.
    """

    family: AnyFamily
    name: str
    problem: Problem
    given: tuple[tuple[str, Any], ...] = ()

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.family.name}-{self.name}.diff"

    def __str__(self) -> str:
        return self.path.stem

    @property
    def config(self) -> Any:
        return simplest_config(self.family, self.problem, dict(self.given))

    def source(self) -> str:
        """Without the digest of its templates, which every change of any of them changes."""
        return DIGEST.sub("(templates DIGEST)", render(self.family, self.problem, self.config))

    def marked(self) -> str:
        """The source with marks around what templates share."""
        constants = dict(self.family.constants(self.problem, self.config))
        template = marking().get_template(self.family.template)
        return template.render(c=self.config, p=constants, family=self.family, digest="DIGEST")

    def text(self) -> str:
        """Content of the file."""
        before = itertools.takewhile(lambda golden: golden is not self, alike(self.family.template))
        texts = {golden.path.name: own_text(golden) for golden in before}
        return "".join(f"{line}\n" for line in shortest(self.family.template, own_text(self), texts))


@cache
def template_text(name: str) -> str:
    """A template with what it alone includes, without comments, and with a line for each shared file."""

    def texts(match: re.Match[str]) -> str:
        return "\n\n".join(f"// {n}" if n in shared() else template_text(n) for n in names_in(match))

    return INCLUDE.sub(texts, COMMENT.sub("", (TEMPLATES / name).read_text()))


def shortest(template: str, text: str, before: Mapping[str, str]) -> list[str]:
    """Returns what is kept of a text that a template makes: a line with its origin, and the differences.

    Args:
        before: other texts that the template makes, by their names.
    """
    found = [additions(template, text)]
    found += [[f"from {name}:", *changes(other, text)] for name, other in before.items()]
    return min(found, key=lambda lines: sum(map(len, lines)))


def additions(template: str, text: str) -> list[str]:
    """Returns the digest of a text that a template makes, and the lines that are not the template's own."""
    lines, digest = text.splitlines(), hashlib.sha256(text.encode()).hexdigest()
    told = [f"from {template}, {digest[:12]}:"]
    matcher = difflib.SequenceMatcher(None, template_text(template).splitlines(), lines, autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        if kind in {"insert", "replace"}:
            told += ["@@", *(f"+{line}" for line in lines[start:end])]
    return told


def changes(before: str, after: str) -> list[str]:
    """Returns the differences, without their line numbers, which change too often.

    Of lines that ``before`` has alone, which stand in its own golden source, there are a number and a digest.
    """
    found = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    told = []
    for mark, group in itertools.groupby(found, key=lambda line: line[:1]):
        lines = list(group)
        if mark == "-":
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
            told.append(f"-{len(lines)} {digest[:6]}")
        else:
            told += ["@@"] if mark == "@" else lines
    return told


# --- shared files ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Rendering of a shared file, or a whole source, with the parts that it includes."""

    name: str
    content: tuple[str | Part, ...]

    def text(self, number: Callable[[Part], str]) -> str:
        """The text with a line for each part that it includes."""
        return "".join(
            COMMENT.sub("", part) if isinstance(part, str) else f"// {part.name}{number(part)}\n"
            for part in self.content
        )

    def parts(self) -> Iterator[Part]:
        """All that it includes, and these, in their order."""
        for part in self.content:
            if isinstance(part, Part):
                yield from part.parts()
                yield part


def parsed(marked: str) -> Part:
    """The parts of a source."""
    open_parts: list[tuple[str, list[str | Part]]] = [("", [])]
    end = 0
    for mark in MARKS.finditer(marked):
        open_parts[-1][1].append(marked[end : mark.start()])
        end = mark.end()
        if mark[0] == END:
            name, content = open_parts.pop()
            open_parts[-1][1].append(Part(name, tuple(filter(None, content))))
        else:
            open_parts.append((mark[1], []))
    [(name, content)] = open_parts
    return Part(name, (*content, marked[end:]))


@cache
def part_of(golden: Golden) -> Part:
    return parsed(golden.marked())


@cache
def renderings() -> dict[str, list[Part]]:
    """Returns the renderings of each shared file, in the order in which the golden sources first make them."""
    found: dict[str, dict[Part, None]] = defaultdict(dict)
    for golden in GOLDENS:
        for part in part_of(golden).parts():
            found[part.name][part] = None
    return {name: list(parts) for name, parts in sorted(found.items())}


def number(part: Part) -> str:
    """Numbers a part among several renderings."""
    known = renderings()[part.name]
    return f" ({known.index(part) + 1})" if len(known) > 1 else ""


def own_text(golden: Golden) -> str:
    """A source with a line for each shared file."""
    top = TOP.match(golden.marked())
    return (top[0] if top else "") + part_of(golden).text(number)


def shared_text(name: str) -> str:
    """Content of a shared file's golden source: its renderings, numbered from the second one on."""
    lines, texts = list[str](), dict[str, str]()
    for place, part in enumerate(renderings()[name], 1):
        text = part.text(number)
        origin, *differences = shortest(name, text, texts)
        lines += [f"({place}) {origin}" if texts else origin, *differences]
        texts[f"({place})"] = text
    return "".join(f"{line}\n" for line in lines)


def shared_path(name: str) -> Path:
    return FOLDER / f"{name.removesuffix('.j2')}.diff"


# --- which -------------------------------------------------------------------------------------------------

M, K = 64, 128
PROBLEMS: dict[str, Problem] = {
    "fp32": SpmmProblem(M, K, 128, DType.FLOAT32),
    "fp16-bias-relu": SpmmProblem(M, K, 64, DType.FLOAT16, Layout.ROW, Epilogue.BIAS_RELU),
    "bf16-column-bias": SpmmProblem(M, K, 40, DType.BFLOAT16, Layout.COLUMN, Epilogue.BIAS),
    "fp16-int4-bias": QuantizedSpmmProblem(M, K, 40, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS),
    "bf16-int8-row": QuantizedSpmmProblem(
        M, K, 8, DType.BFLOAT16, value_type=ValueType.INT8, scale_group=ScaleGroup.ROW
    ),
    "fp16-e4m3-32": QuantizedSpmmProblem(M, K, 8, value_type=ValueType.E4M3, scale_group=ScaleGroup.OF_32),
    "bf16-e4m3-row": QuantizedSpmmProblem(
        M, K, 8, DType.BFLOAT16, value_type=ValueType.E4M3, scale_group=ScaleGroup.ROW
    ),
    "sddmm-fp32": SddmmProblem(M, K, 128),
    "sddmm-fp16-scale": SddmmProblem(M, K, 40, DType.FLOAT16, SddmmEpilogue.SCALE),
    "softmax-bf16": SoftmaxProblem(M, K, DType.BFLOAT16),
    "softmax-backward-fp16": SoftmaxBackwardProblem(M, K, DType.FLOAT16),
    "fp16-batch-own-values": SpmmProblem(M, K, 64, DType.FLOAT16, batch=4, item_values=ItemValues.OWN),
    "sddmm-fp16-batch": SddmmProblem(M, K, 40, DType.FLOAT16, batch=4),
    "softmax-fp32-batch": SoftmaxProblem(M, K, batch=4),
    "softmax-backward-fp32-batch": SoftmaxBackwardProblem(M, K, batch=4),
    "dsd-fp16-bias-gelu": DsdProblem(M, K, 64, DType.FLOAT16, Block(32, 32), epilogue=Epilogue.BIAS_GELU),
    "dsd-transposed-fp32-batch": DsdTransposedProblem(M, K, 40, batch=4),
    "dsd-bf16-column-residual": DsdProblem(
        M, K, 64, DType.BFLOAT16, w_layout=Layout.COLUMN, epilogue=Epilogue.BIAS_RESIDUAL
    ),
    "dsd-transposed-fp16": DsdTransposedProblem(M, K, 64, DType.FLOAT16, Block(64, 128)),
    "dsd-bf16-e4m3": DsdProblem(
        M, K, 64, DType.BFLOAT16, w_layout=Layout.COLUMN, factor_type=FactorType.E4M3
    ),
    "sdd-bf16": SddProblem(M, K, 64, DType.BFLOAT16, w_layout=Layout.COLUMN),
    "sdd-fp32-e5m2-e4m3": SddProblem(M, K, 64, factor_type=FactorType.E5M2_E4M3),
    "dsd-fp32-column-batch": DsdProblem(
        M, K, 64, w_layout=Layout.COLUMN, epilogue=Epilogue.BIAS_RESIDUAL, batch=4
    ),
    "sdd-fp32-batch": SddProblem(M, K, 64, block=Block(64, 64), batch=4),
    "sdd-fp16-kept": SddProblem(M, K, 64, DType.FLOAT16, rest=Rest.KEPT),
    "dsd-fp16-small": DsdProblem(M, K, 64, DType.FLOAT16, Block(16, 16), epilogue=Epilogue.BIAS_GELU),
    "dsd-bf16-small-column": DsdProblem(
        M, K, 64, DType.BFLOAT16, Block(32, 16), w_layout=Layout.COLUMN, batch=4
    ),
    "dsd-transposed-fp16-small": DsdTransposedProblem(
        M, K, 64, DType.FLOAT16, Block(32, 16), y_layout=Layout.COLUMN
    ),
    "dsd-transposed-fp16-odd": DsdTransposedProblem(M, K, 63, DType.FLOAT16, Block(32, 16)),
    "sdd-fp16-small": SddProblem(M, K, 64, DType.FLOAT16, Block(16, 32), w_layout=Layout.COLUMN),
    "sdd-bf16-small": SddProblem(M, K, 64, DType.BFLOAT16, Block(32, 32), batch=4, rest=Rest.KEPT),
    "conv-fp16-bias-relu": MaskedConv2dProblem(
        M, K, 64, 64, DType.FLOAT16, rest=Rest.KEPT, epilogue=ConvEpilogue.BIAS_RELU
    ),
    "conv-input-bf16-residual": MaskedConv2dProblem(
        M, K, 32, 64, DType.BFLOAT16, mask_of=MaskOf.INPUT, epilogue=ConvEpilogue.BIAS_RESIDUAL
    ),
    "conv-few-fp32": MaskedConv2dProblem(
        M, K, 3, 1, mask_of=MaskOf.INPUT, rest=Rest.KEPT, mask_block=MaskBlock(8, 8)
    ),
    "conv-planes-fp16": MaskedConv2dProblem(M, K, 64, 64, DType.FLOAT16, layout=ImageLayout.NCHW),
    "conv-depthwise-fp16": MaskedConv2dProblem(
        M, K, 64, 64, DType.FLOAT16, groups=Groups(64), epilogue=ConvEpilogue.BIAS_RELU
    ),
    "conv-depthwise-planes-fp32": MaskedConv2dProblem(
        M, K, 24, 24, groups=Groups(24), mask_of=MaskOf.ANY_INPUT, layout=ImageLayout.NCHW
    ),
    "conv-any-input-fp16": MaskedConv2dProblem(M, K, 64, 64, DType.FLOAT16, mask_of=MaskOf.ANY_INPUT),
    "conv-earlier-fp16": MaskedConv2dProblem(M, K, 64, 64, DType.FLOAT16, given=Given.EARLIER),
    "conv-weights-bf16": MaskedConv2dWeightsProblem(M, K, 64, 64, 2, DType.BFLOAT16),
    "conv-weights-fp32": MaskedConv2dWeightsProblem(M, K, 12, 20, 1, mask_block=MaskBlock(5, 7)),
    "attention-fp16": SparseAttentionProblem(M, K, 64, DType.FLOAT16),
    "network-fp16": SparseNetworkProblem(5 * M, M + 3, 100, DType.FLOAT16),
    "network-fp16-dying": SparseNetworkProblem(
        5 * M, M + 3, 100, DType.FLOAT16, Activation.DYING_RELU, Readout.TOTALS
    ),
    "points-fp32": SubmanifoldConv3dProblem(M, K, 64),
    "points-fp16-residual": SubmanifoldConv3dProblem(
        M, K, 33, DType.FLOAT16, FilterVolume(1, 3, 5), epilogue=ConvEpilogue.BIAS_RESIDUAL
    ),
    "points-bf16": SubmanifoldConv3dWeightsProblem(M, K, 64, DType.BFLOAT16),
    "attention-bf16": SparseAttentionProblem(M, 100, 40, DType.BFLOAT16),
    "blocks-backward-fp16": BlockAttentionBackwardProblem(256, 384, 2, 1, 128, DType.FLOAT16),
    "pages-fp16": PagedAttentionProblem(1, 4096, 2, 4, 128, DType.FLOAT16),
    "pages-bf16-all": PagedAttentionProblem(
        4, 4096, 2, 4, 64, DType.BFLOAT16, chosen=Chosen.ALL, order=TokenOrder.HEADS
    ),
    "blocks-fp16": BlockAttentionProblem(M, K, 2, 2, 128, DType.FLOAT16),
    "blocks-bf16-small": BlockAttentionProblem(M, K, 2, 2, 64, DType.BFLOAT16, Block(32, 64)),
    "blocks-fp16-options": BlockAttentionProblem(
        *(M, K, 2, 2, 64, DType.FLOAT16),
        partial_blocks=Room(8),
        scores=ScoreChange.ALIBI,
        sinks=SinkLogits.HEADS,
    ),
    "blocks-fp16-no-masks": BlockAttentionProblem(M, K, 2, 2, 64, DType.FLOAT16, masks=MasksOf.NOBODY),
}
# Problems of one family alone: others compute them as they do any groups.
OWN = dict.fromkeys(("conv-depthwise-fp16", "conv-depthwise-planes-fp32"), "depthwise_conv")
GOLDENS = [
    Golden(family, name, problem)
    for family in families().values()
    for name, problem in PROBLEMS.items()
    if problem.operator == family.problem_type.operator
    and OWN.get(name, family.name) == family.name
    and family.computes(problem)
]
GOLDENS += [  # what no simplest config includes
    Golden(families()[family], f"{problem}-{word}", PROBLEMS[problem], ((tunable, value),))
    for family, problem, word, tunable, value in (
        ("cluster_network", "network-fp16", "listed", "sending", "listed"),
        ("fused_network", "network-fp16", "multiplied", "biases", "multiplied"),
        ("streamed_network", "network-fp16", "layers", "sharing", "layers"),
        ("mma_sdd", "sdd-fp16-kept", "parts", "parts", 4),
        ("tma_sdd", "sdd-bf16", "parts", "parts", 4),
        ("window_conv_weights", "conv-weights-bf16", "tap", "taps", 1),
        ("mma_sddmm", "sddmm-fp32", "warpgroups", "warpgroups", True),
        ("mma_spmm", "fp32", "warpgroups", "warpgroups", True),
        ("mma_sddmm", "sddmm-fp32", "splits", "splits", 2),
        ("tma_dsd_transposed", "dsd-transposed-fp16", "shared", "shared", True),
    )
]
FIRST = {golden.family.template: golden for golden in reversed(GOLDENS)}  # of each template


@cache
def alike(template: str) -> tuple[Golden, ...]:
    """The golden sources that a template makes."""
    return tuple(golden for golden in GOLDENS if golden.family.template == template)


def named(name: str) -> Golden:
    """The golden source with this name."""
    return next(golden for golden in GOLDENS if str(golden) == name)
