"""Instruction counts of a disassembled kernel: all instructions, and those of its main loop for each multiply-add.

Reads what cuobjdump and nvdisasm print (CUDA binary utilities, NVIDIA): one instruction a line behind its address, and
branches to labels or to addresses. A loop is what lies between the target of a backward branch and the branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparsegen.errors import CompileError

WARP = 32
WARPS_OF_A_GROUP = 4  # HGMMA is issued by four warps together
_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)\s*(.*?);")
_LABEL = re.compile(r"\s*(\.L_\w+):")
_TARGET = re.compile(r"(?:`\((\.L_\w+)\)|\b0x([0-9a-f]+))\s*$")
# m, n and k of the tensor cores' instructions, as their names write them.
_SHAPES = {
    "16832": 16 * 8 * 32,
    "16816": 16 * 8 * 16,
    "1688": 16 * 8 * 8,
    "1684": 16 * 8 * 4,
    "884": 8 * 8 * 4,
}
_GROUP_SHAPE = re.compile(r"\.(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True, slots=True)
class Instructions:
    """Counts of a kernel's machine code, of one warp.

    Attributes:
        total: instructions of the kernel.
        looped: those of its main loop: the innermost loop with the most multiply-adds, else with the most
            instructions; of the whole kernel where there is no loop.
        products: multiply-adds that a warp does in one pass of them.
    """

    total: int
    looped: int
    products: int

    @property
    def per_product(self) -> float | None:
        """Issue slots of a warp for each multiply-add; None where nothing is multiplied."""
        return self.looped / self.products if self.products else None

    @classmethod
    def of(cls, text: str) -> Instructions:
        """Count what a disassembler printed of one kernel.

        Raises:
            CompileError: there is no instruction in it.
        """
        listed, loops = _parsed(text)
        if not listed:
            raise CompileError("the disassembler printed no instruction", log=text[-2000:])
        innermost = [
            (first, last)
            for first, last in loops
            if not any((first, last) != (a, b) and first <= a and b <= last for a, b in loops)
        ]
        bodies = [listed[first : last + 1] for first, last in innermost] or [listed]
        main = max(bodies, key=lambda body: (_products(body), len(body)))
        return cls(len(listed), len(main), _products(main))


def _parsed(text: str) -> tuple[list[str], set[tuple[int, int]]]:
    """The names of the instructions, and the loops as the places of their first and last ones."""
    names: list[str] = []
    places: dict[str | int, int] = {}  # positions of labels and addresses
    branches: list[tuple[int, str | int]] = []
    for address, label, name, operands in _lines(text):
        if label is not None:
            places[label] = len(names)
            continue
        places[address] = len(names)
        target = _TARGET.search(operands) if name.startswith("BRA") else None
        if target is not None:
            branches.append((len(names), target[1] or int(target[2], 16)))
        names.append(name)
    loops = {(places[to], place) for place, to in branches if to in places and places[to] < place}
    return names, loops


def _lines(text: str) -> Iterator[tuple[int, str | None, str, str]]:
    for line in text.splitlines():
        if label := _LABEL.match(line):
            yield 0, label[1], "", ""
        elif (found := _LINE.match(line)) and not found[2].startswith("NOP"):
            yield int(found[1], 16), None, found[2], found[3]


def _products(body: Sequence[str]) -> int:
    return sum(map(_products_of, body))


def _products_of(name: str) -> int:
    """Multiply-adds of a warp."""
    opcode, *parts = name.split(".")
    if opcode == "FFMA":
        return WARP
    if opcode == "HFMA2":
        return 2 * WARP
    if opcode in ("HMMA", "IMMA", "BMMA", "DMMA"):
        return _SHAPES.get(parts[0], 0)
    if opcode == "HGMMA" and (shape := _GROUP_SHAPE.search(name)):
        return int(shape[1]) * int(shape[2]) * int(shape[3]) // WARPS_OF_A_GROUP
    return 0
