"""Instructions of disassembled kernels, counted as by hand, in the words of both disassemblers."""

from __future__ import annotations

import pytest

from sparsegen.backends.cuda.instructions import Instructions
from sparsegen.errors import CompileError

BODY = (  # name and operands; the target of a branch is the place of an instruction
    ("LDC", "R1, c[0x0][0x28]"),
    ("S2R", "R9, SR_CTAID.X"),
    ("LDG.E.128.CONSTANT", "R4, desc[UR4][R2.64]"),  # 2: the outer loop begins
    ("FFMA", "R1, R2, R3, R1"),  # 3: an inner loop, the residue
    ("@P1 BRA", 3),
    ("LDS.128", "R8, [R7]"),  # 5: another inner loop, unrolled
    ("FFMA", "R1, R2, R3, R1"),
    ("FFMA.FTZ", "R1, R2, R3, R1"),
    ("HFMA2.MMA", "R1, R2, R3, R1"),
    ("@!P0 BRA", 5),
    ("@!UP0 BRA", 2),
    ("@P0 BRA", 12),  # forward: no loop
    ("STG.E", "desc[UR4][R2.64], R1"),
    ("EXIT", ""),
)


def nvdisasm(body: tuple[tuple[str, str | int], ...] = BODY) -> str:
    targets = {to for _, to in body if isinstance(to, int)}
    lines = ["\t.target\tsm_90a", ".text.kernel:"]
    for place, (name, operands) in enumerate(body):
        if place in targets:
            lines.append(f".L_x_{place}:")
        shown = f"`(.L_x_{operands})" if isinstance(operands, int) else operands
        lines.append(f"        /*{16 * place:04x}*/                   {name} {shown} ;")
    return "\n".join([*lines, f"        /*{16 * len(body):04x}*/                   NOP;"])


def cuobjdump() -> str:
    lines = ["\tcode for sm_90a", "\t\tFunction : kernel"]
    for place, (name, operands) in enumerate(BODY):
        shown = f"{16 * operands:#x}" if isinstance(operands, int) else operands
        lines.append(f"        /*{16 * place:04x}*/                   {name} {shown} ;     /* 0x000000ff */")
        lines.append("                                                              /* 0x000fe20000000800 */")
    return "\n".join(lines)


@pytest.mark.parametrize("text", [nvdisasm(), cuobjdump()], ids=["nvdisasm", "cuobjdump"])
def test_the_main_loop_is_the_innermost_one_with_the_most_products(text: str) -> None:
    found = Instructions.of(text)
    assert found == Instructions(total=14, looped=5, products=32 + 32 + 64)
    assert found.per_product == 5 / 128


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("HMMA.16816.F32", 2048),
        ("HMMA.16816.F32.BF16", 2048),
        ("HMMA.1688.F32.TF32", 1024),
        ("HGMMA.64x128x16.F32", 64 * 128 * 16 // 4),
        ("FADD.FTZ", 0),
        ("IMAD.MOV.U32", 0),
    ],
)
def test_multiply_adds_of_a_warp(name: str, products: int) -> None:
    found = Instructions.of(nvdisasm(((name, "R0, R1, R2"), ("EXIT", ""))))
    assert found == Instructions(2, 2, products), "without a loop all counts"
    assert (found.per_product is None) == (products == 0)


def test_what_is_no_machine_code() -> None:
    with pytest.raises(CompileError, match="no instruction"):
        Instructions.of("nvdisasm: no such file")
