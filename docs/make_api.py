"""Makes the API reference of the site from signatures and docstrings: `docs/make_site.py` asks for it.

    python docs/make_api.py FOLDER

writes the same pages into a folder. What needs PyTorch is read from its source, so that the pages are the same with
PyTorch and without.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIRST = "api.md"
HEADS: Mapping[str, str] = {
    FIRST: """# Python

What most programs need of `sparsegen`. Everything that this page names is imported from `sparsegen`.

| more | |
|---|---|
| [operators](api/operators.md) | problems, operator objects and the words of their fields; from `sparsegen` too |
| [pruning](api/pruning.md) | scores, schedules |
| [masks](api/masks.md) | `sparsegen.masks` |
| [PyTorch](api/torch.md) | `sparsegen.integrations.torch` |
| [errors](errors.md) | `sparsegen.errors` |

What operators compute, and how their objects are called, is in [operators](operators.md).
""",
    "api/operators.md": """# Operators in Python

Problems and operator objects, imported from `sparsegen`. What each computes is in [operators](../operators.md).
""",
    "api/pruning.md": """# Pruning in Python

Imported from `sparsegen`; `sparsegen.prune` itself is on the [first page](../api.md). Guide: [pruning](../pruning.md).
""",
    "api/masks.md": """# Masks in Python

`sparsegen.masks`: of attention, of blocks, of images; kernel maps of points.
""",
    "api/torch.md": """# PyTorch in Python

`sparsegen.integrations.torch`. The guides begin with [linear layers](../pytorch.md).
""",
}
SECTIONS = ("Args", "Returns", "Raises", "Attributes", "Yields")


def pages() -> dict[str, str]:
    """Every page by its path below the site's pages."""
    sparsegen = importlib.import_module("sparsegen")
    masks = importlib.import_module("sparsegen.masks")
    found = {name: getattr(sparsegen, name) for name in sparsegen.__all__ if name != "__version__"}
    apart = {
        page: {name: what for name, what in found.items() if what.__module__.startswith(module)}
        for page, module in (
            ("api/operators.md", "sparsegen.operators"),
            ("api/pruning.md", "sparsegen.pruning"),
        )
    }
    inside = {name for group in apart.values() for name in group}
    parts = {
        FIRST: grouped({name: what for name, what in found.items() if name not in inside}),
        **{page: grouped(group) for page, group in apart.items()},
        "api/masks.md": [
            entry(f"sparsegen.masks.{n}", getattr(masks, n), "##") for n in sorted(masks.__all__)
        ],
        "api/torch.md": of_pytorch(),
    }
    return {page: "\n".join([HEADS[page], *entries]) for page, entries in parts.items()}


def grouped(found: Mapping[str, Any]) -> list[str]:
    """Entries of functions, classes and enumerations, each under a heading."""
    functions = [n for n in found if inspect.isfunction(found[n])]
    words = [n for n in found if inspect.isclass(found[n]) and issubclass(found[n], Enum)]
    classes = [n for n in found if n not in (*functions, *words)]
    parts = []
    for title, group in (("Functions", functions), ("Classes", classes), ("Words", words)):
        if group:
            parts.append(f"## {title}\n")
            parts += [entry(f"sparsegen.{name}", found[name]) for name in sorted(group, key=str.lower)]
    return parts


def of_pytorch() -> list[str]:
    """Entries of the layers and functions for PyTorch, by their source, and of their masks."""
    package = "sparsegen.integrations.torch"
    parts = []
    of_masks = f"{package}.masks", f"{package}.attention.masks", "Masks"
    for module, where, title in ((package, package, "Layers and functions"), of_masks):
        parts.append(f"## {title}\n")
        exported = exports(where)
        for name in sorted(exported, key=str.lower):
            if isinstance(node := defined(exported[name], name), ast.FunctionDef | ast.ClassDef):
                parts.append(source_entry(f"{module}.{name}", node))
    return parts


def tree_of(module: str) -> ast.Module:
    """A module's syntax, without importing it."""
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def exports(module: str) -> dict[str, str]:
    """The names in a module's ``__all__``, and the module that each was imported from."""
    tree = tree_of(module)
    came = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    listed = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return {name: came.get(name, module) for name in listed}


def defined(module: str, name: str) -> ast.AST | None:
    """Returns a module's definition of a name; None for a submodule or a plain value."""
    for node in tree_of(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    return None


def source_entry(name: str, node: ast.FunctionDef | ast.ClassDef) -> str:
    """A function, or a class with its constructor and its public methods that have docstrings."""
    short = name.rpartition(".")[2]
    lines = [f"### `{name}`\n"]
    if isinstance(node, ast.FunctionDef):
        return "\n".join([*lines, source_signature(short, node), prose(ast.get_docstring(node)) + "\n"])
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    lines += [source_signature(short, part) for part in methods if part.name == "__init__"]
    lines.append(prose(ast.get_docstring(node)) + "\n")
    if any(ast.unparse(base).endswith("Enum") for base in node.bases):
        values = [part.value for part in node.body if isinstance(part, ast.Assign)]
        lines += [f"- `{ast.unparse(value)}`" for value in values if isinstance(value, ast.Constant)] + [""]
    for part in methods:
        if not part.name.startswith("_") and (text := ast.get_docstring(part)):
            lines.append(f"**`{part.name}`**\n")
            if not any(ast.unparse(decorator) == "property" for decorator in part.decorator_list):
                lines.append(source_signature(part.name, part))
            lines.append(prose(text) + "\n")
    return "\n".join(lines)


def source_signature(name: str, node: ast.FunctionDef) -> str:
    """Returns what `signature` does, for code that is not imported."""
    arguments = re.sub(r"(: [^,=]+)=", r"\1 = ", ast.unparse(node.args))
    arguments = re.sub(r"^cls(, )?", "", arguments)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    if node.name == "__init__":
        arguments, returns = re.sub(r"^self(, )?", "", arguments), ""
    return block(name, f"({arguments}){returns}", is_class=node.name == "__init__")


def entry(name: str, what: Any, level: str = "###") -> str:
    """One public name: signature, docstring, and of a class its public methods."""
    lines = [f"{level} `{name}`\n"]
    if inspect.isclass(what) and issubclass(what, Enum):
        lines.append(
            f"{prose(inspect.getdoc(what))}\n\n"
            + "\n".join(f"- `{member.value!r}`" for member in what)
            + "\n"
        )
        return "\n".join(lines)
    if not inspect.isclass(what) or is_dataclass(what):
        lines.append(signature(name, what))
    lines.append(prose(inspect.getdoc(what)) + "\n")
    if inspect.isclass(what):
        for method, member in methods(what):
            lines.append(f"**`{method}`**\n")
            if not isinstance(member, property):
                lines.append(signature(method, member))
            lines.append(prose(inspect.getdoc(member)) + "\n")
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
    return block(name.rpartition(".")[2], text, inspect.isclass(what))


def block(name: str, text: str, is_class: bool) -> str:
    """Parameters and result as code, one parameter a line where they are long."""
    if len(name + text) > 100:
        inside, _, after = text[1:].rpartition(")")
        text = "(\n    " + ",\n    ".join(split_commas(inside)) + f",\n){after}"
    if is_class:
        return f"```text\n{name}{text.removesuffix(' -> None')}\n```\n"
    return f"```python\ndef {name}{text}: ...\n```\n"


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


def prose(text: str | None) -> str:
    """A docstring as Markdown: sections as bold words, their entries as lists."""
    lines = (text or "").splitlines()
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
    made = re.sub(r"``([^`]*)``", r"`\1`", "\n".join(out))
    return re.sub(r"\n{3,}", "\n\n", made).strip()


def write(folder: Path) -> None:
    for page, text in pages().items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # this source tree, whatever is installed
    write(Path(sys.argv[1]))
