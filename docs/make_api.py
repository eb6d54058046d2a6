"""Writes docs/api.md, the reference of all public names, from their signatures and docstrings.

    python docs/make_api.py

`tests/test_api_reference.py` fails where the page is not what this writes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("api.md")
HEAD = """# API reference

Written by `docs/make_api.py` from signatures and docstrings: do not edit it. What operators compute, and how their
objects are called, is in [operators.md](operators.md); the PyTorch layers are in [pytorch.md](pytorch.md).
"""
SECTIONS = ("Args", "Returns", "Raises", "Attributes", "Yields")


def page() -> str:
    """The whole page."""
    sparsegen = importlib.import_module("sparsegen")
    masks = importlib.import_module("sparsegen.masks")
    errors = importlib.import_module("sparsegen.errors")
    names = [name for name in sparsegen.__all__ if name != "__version__"]
    found = {name: getattr(sparsegen, name) for name in names}
    functions = [n for n in names if inspect.isfunction(found[n])]
    classes = [
        n for n in names if inspect.isclass(found[n]) and not issubclass(found[n], Enum | BaseException)
    ]
    words = [n for n in names if inspect.isclass(found[n]) and issubclass(found[n], Enum)]
    parts = [HEAD]
    for title, group in (("Functions", functions), ("Classes", classes), ("Words", words)):
        parts.append(f"## {title}\n")
        parts += [entry(f"sparsegen.{name}", found[name]) for name in sorted(group, key=str.lower)]
    parts.append("## Masks\n")
    parts += [entry(f"sparsegen.masks.{name}", getattr(masks, name)) for name in sorted(masks.__all__)]
    parts.append("## Errors\n\nAll are in `sparsegen.errors`; the command line ends with their exit codes.\n")
    parts.append(error_table(errors))
    return "\n".join(parts)


def entry(name: str, what: Any) -> str:
    """One public name: signature, docstring, and of a class its public methods."""
    lines = [f"### `{name}`\n"]
    if inspect.isclass(what) and issubclass(what, Enum):
        lines.append(f"{prose(what)}\n\n" + "\n".join(f"- `{member.value!r}`" for member in what) + "\n")
        return "\n".join(lines)
    if not inspect.isclass(what) or is_dataclass(what):
        lines.append(signature(name, what))
    lines.append(prose(what) + "\n")
    if inspect.isclass(what):
        for method, member in methods(what):
            lines.append(f"**`{method}`**\n")
            if not isinstance(member, property):
                lines.append(signature(method, member))
            lines.append(prose(member) + "\n")
    return "\n".join(lines)


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class itself documents, in the order of the source.

    Of problems none: they are made and handed on; what computes with them is inside.
    """
    if is_dataclass(cls) and cls.__name__.endswith("Problem"):
        return
    for name, member in vars(cls).items():
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        is_called = inspect.isfunction(member) and (not name.startswith("_") or name == "__call__")
        is_read = isinstance(member, property) and not name.startswith("_")
        if (is_called or is_read) and member.__doc__:
            yield name, member


def signature(name: str, what: Any) -> str:
    """A code block, one parameter a line where it is long."""
    found = inspect.signature(what)
    parameters = [p.replace(annotation=inspect.Parameter.empty) if p.name in ("self", "cls") else p
                  for p in found.parameters.values()]  # fmt: skip
    text = re.sub(r"= '(\w*)'", r'= "\1"', str(found.replace(parameters=parameters)))
    text = text.replace("'", "").replace("NoneType", "None")
    text = re.sub(r"<(\w+)\.\w+: (\w+)>", r'"\2"', text)  # a word's default as it is written
    text = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text)
    text = re.sub(r"\b(?:sparsegen\.|numpy\.|pathlib\.|collections\.abc\.)(?:\w+\.)*(\w+)", r"\1", text)
    short = name.rpartition(".")[2]
    if len(short + text) > 100:
        inside, _, after = text[1:].rpartition(")")
        text = "(\n    " + ",\n    ".join(split_commas(inside)) + f",\n){after}"
    if inspect.isclass(what):
        return f"```text\n{short}{text.removesuffix(' -> None')}\n```\n"
    return f"```python\ndef {short}{text}: ...\n```\n"


def split_commas(text: str) -> list[str]:
    """Parameters of a signature: split at the commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def prose(what: Any) -> str:
    """A docstring as Markdown: sections as bold words, their entries as lists."""
    lines = (inspect.getdoc(what) or "").splitlines()
    out: list[str] = []
    section = ""
    for line in lines:
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            section = line.rstrip(":")
            out.append(f"{section}:\n")
        elif section and line.startswith("        "):
            out[-1] += " " + line.strip()
        elif section and line.startswith("    "):
            name, colon, rest = line.strip().partition(":")
            is_entry = colon and re.fullmatch(r"[\w*.]+(, [\w*.]+)*", name)
            if not is_entry and out[-1].startswith("- "):
                out[-1] += " " + line.strip()
            else:
                out.append(f"- `{name}`:{rest}" if is_entry else f"- {line.strip()}")
        else:
            section = "" if line and not line.startswith(" ") else section
            out.append(line.strip())
    text = re.sub(r"``([^`]*)``", r"`\1`", "\n".join(out))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def error_table(module: Any) -> str:
    """Every error with its exit code and its first sentence, in the order of the source."""
    rows = ["| error | exit code | |", "|---|---|---|"]
    order = [
        node.name for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)
    ]
    for name in order:
        error = getattr(module, name)
        first = (inspect.getdoc(error) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
        rows.append(f"| `{name}` | {error.exit_code} | {first.replace('|', '&#124;')} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(PAGE.parents[1]))  # this source tree, whatever is installed
    PAGE.write_text(page(), encoding="utf-8")
