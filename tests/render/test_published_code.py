"""Sources for nvcc alone, in lines of at most 120 columns."""

from __future__ import annotations

import re

import pytest
from goldens import GOLDENS, Golden

from sparsegen.render import render
from sparsegen.render.published_code import COLUMNS, folded, without_emulator


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_nothing_of_the_emulator_is_left(golden: Golden) -> None:
    source = render(golden.family, golden.problem, golden.config)
    published = folded(without_emulator(source))
    assert "SPARSEGEN" in source and "SPARSEGEN" not in published
    assert f"{golden.family.entry}(" in published
    opened = re.findall(r"^\s*#\s*(if|endif)", published, re.MULTILINE)
    assert opened.count("if") == opened.count("endif")
    assert max(map(len, published.splitlines())) <= COLUMNS


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_folding_changes_no_word(golden: Golden) -> None:
    whole = without_emulator(render(golden.family, golden.problem, golden.config))

    def words(source: str) -> list[str]:
        joined = re.sub(r'"\s*"', "", source)  # neighbouring strings are one
        return sorted(re.sub(r"//", "", joined).split())

    assert words(folded(whole)) == words(whole)


def test_conditions_of_the_emulator_are_decided_and_others_stay() -> None:
    source = "\n".join(
        (
            "#if defined(SPARSEGEN_EMULATOR)",
            "#if __CUDA_ARCH__ >= 900",
            "a();",
            "#endif",
            "#else",
            "#if __CUDA_ARCH__ >= 900",
            "b();",
            "#else",
            "c();",
            "#endif",
            "#endif",
            "#if !defined(SPARSEGEN_EMULATOR)",
            "d();",
            "#else",
            "e();",
            "#endif",
        )
    )
    wanted = "#if __CUDA_ARCH__ >= 900\nb();\n#else\nc();\n#endif\nd();\n"
    assert without_emulator(source) == wanted


def test_shared_memory_is_declared_as_in_cuda() -> None:
    source = "\n".join(
        (
            "#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]",
            "  SPARSEGEN_SHARED(Vector<float, 4>, sums, kWarps * (kTile + 1));  // by warp",
            "  SPARSEGEN_DYNAMIC_SHARED(unsigned char, memory);",
        )
    )
    assert without_emulator(source) == (
        "  __shared__ __align__(16) Vector<float, 4> sums[kWarps * (kTile + 1)];  // by warp\n"
        "  extern __shared__ __align__(1024) unsigned char memory[];\n"
    )


def test_long_lines_are_folded_where_c_allows_it() -> None:
    string = f'  asm("{"add.f32 a, b; " * 12}");'
    comment = f"  // {'word ' * 40}"
    behind = f"  int x = 1;  // {'word ' * 40}"
    directive = f"#define LONG {'1 + ' * 40}1"
    assert folded(directive) == f"{directive}\n", "a directive ends with its line"
    for line in (string, comment, behind):
        parts = folded(line).splitlines()
        assert len(parts) > 1 and max(map(len, parts)) <= COLUMNS
    assert re.sub(r'" *\n *"', "", folded(string)) == f"{string}\n"
    assert folded(behind).splitlines()[-1] == "  int x = 1;", "a comment goes before its line"
