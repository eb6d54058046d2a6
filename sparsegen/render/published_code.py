"""Generated sources as people publish them: for nvcc alone, and in lines of at most 120 columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

COLUMNS = 120
_EMULATED = r"defined\(SPARSEGEN_(?:EMULATOR|EVERY_LANE_ARRIVES)\)"  # which nothing but the emulator defines
_IF = re.compile(rf"#if (!?){_EMULATED}$")
_OF_EMULATOR = re.compile(r"#define SPARSEGEN_")
_SHARED = re.compile(r"\bSPARSEGEN_(DYNAMIC_)?SHARED\((.*)\);")
_COMMENT = re.compile(r"(\s*)//( ?)(.*)")


def without_emulator(source: str) -> str:
    """A rendered source without what only the emulator compiles, and with CUDA's own words for shared memory."""
    lines = [_declared(line) for line in _compiled(source) if not _OF_EMULATOR.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines) + "\n")


def _compiled(source: str) -> Iterator[str]:
    """The lines that nvcc sees, with the conditions that it has to decide itself."""
    open_ifs: list[bool | None] = []  # whether lines count; None where nvcc decides
    for line in source.splitlines():
        directive = line.strip()
        if directive.startswith("#if"):
            found = _IF.match(directive)
            open_ifs.append(None if found is None else found[1] == "!")
        is_ours = bool(open_ifs) and open_ifs[-1] is not None
        if directive == "#else" and is_ours:
            open_ifs[-1] = not open_ifs[-1]
        is_directive = directive == "#endif" or directive == "#else" or directive.startswith("#if")
        if not (is_directive and is_ours) and False not in open_ifs:
            yield line
        if directive == "#endif":
            open_ifs.pop()


def _declared(line: str) -> str:
    """A line with shared memory as CUDA declares it."""
    found = _SHARED.search(line)
    if found is None:
        return line
    parts = _top_level(found[2])
    if found[1]:
        kind, name = parts
        declared = f"extern __shared__ __align__(1024) {kind} {name}[];"
    else:
        kind, name, count = parts
        declared = f"__shared__ __align__(16) {kind} {name}[{count}];"
    return line[: found.start()] + declared + line[found.end() :]


def _top_level(text: str) -> list[str]:
    """Splits a text at the commas outside of all brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def folded(source: str) -> str:
    """A source whose lines have at most 120 columns, and that compiles to the same code."""
    lines, found = source.splitlines(), list[str]()
    while lines:
        line = lines.pop(0)
        comment = _COMMENT.fullmatch(line)
        if len(line) <= COLUMNS or line.lstrip().startswith("#"):
            found.append(line)
        elif comment is not None:
            start, text = f"{comment[1]}//{comment[2]}", comment[3]
            while (
                text[-1] not in ".:"
                and lines
                and lines[0].startswith(f"{start}")
                and not _is_apart(lines[0], start)
            ):
                text = f"{text} {lines.pop(0)[len(start) :]}"  # the sentence goes on
            found += _wrapped(start, text)
        else:
            found += _folded(line)
    return "".join(f"{line}\n" for line in found)


def _is_apart(line: str, start: str) -> bool:
    """True if a comment line begins a paragraph: it is empty, or indented further."""
    return not line[len(start) :].strip() or line[len(start)] == " "


def _wrapped(start: str, text: str) -> list[str]:
    """Comment lines."""
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=start,
        subsequent_indent=start,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _folded(line: str, further: str = "    ") -> list[str]:
    """A line of code in several, the later ones indented ``further``; a comment behind it goes before it."""
    if len(line) <= COLUMNS:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    code, behind = _code_and_comment(line)
    if behind:
        return [*_wrapped(f"{indent}// ", behind[2:].strip()), *_folded(code)]
    cut = _place_to_cut(line, len(indent))
    if cut is None:
        return [line]
    at, between, opening = cut
    rest = f"{indent}{further}{opening}{line[at:].lstrip()}"
    return [line[:at].rstrip() + between, *_folded(rest, "")]


def _code_and_comment(line: str) -> tuple[str, str]:
    """Splits a line where ``//`` stands outside of strings."""
    for at, is_string in enumerate(_in_strings(line)):
        if not is_string and line.startswith("//", at):
            return line[:at].rstrip(), line[at:]
    return line, ""


def _place_to_cut(line: str, indent: int) -> tuple[int, str, str] | None:
    """The last place within the columns where a line of code may end, and what must close and open a string there.

    Behind a comma or a sign if there is one, else between words, else within a string.
    """
    inside = _in_strings(line)
    places = [at for at in range(COLUMNS - 2, indent + COLUMNS // 4, -1) if line[at] == " "]
    outside = [at for at in places if not inside[at]]
    for at in (*(at for at in outside if line[at - 1] in ",;&|?:+=<"), *outside):
        return at + 1, "", ""
    return next(((at + 1, ' "', '"') for at in places), None)


def _in_strings(line: str) -> list[bool]:
    """Marks the characters that lie within a string."""
    found, inside, escaped = [], False, False
    for character in line:
        if inside:
            found.append(True)
            if not escaped and character == '"':
                inside = False
            escaped = not escaped and character == "\\"
        else:
            found.append(False)
            inside = character == '"'
    return found
