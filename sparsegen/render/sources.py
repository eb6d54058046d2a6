"""Family + problem + config -> CUDA source. The only importer of Jinja2, and only where something is rendered."""

from __future__ import annotations

import hashlib
import textwrap
import threading
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config, Value
from sparsegen.operators import Problem
from sparsegen.render.references import referenced

if TYPE_CHECKING:
    from jinja2 import Environment

_first = threading.Lock()  # threads that render one template for the first time would all compile it


@cache
def environment(folder: Path | None = None) -> Environment:
    """Jinja2's environment for the package's templates, and before them those of a folder outside."""
    from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined

    from sparsegen.render.includes import Includes

    outside = [] if folder is None else [FileSystemLoader(folder)]
    found = Environment(
        loader=ChoiceLoader([*outside, PackageLoader("sparsegen.templates", "")]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        extensions=[Includes],
    )
    found.globals |= {"comment": comment, "described": described}
    return found


@cache
def template_digest(name: str, folder: Path | None = None) -> str:
    """SHA-256 (first 12 hex digits) of a template and all that it includes: a change in one makes other sources."""
    digest = hashlib.sha256()
    for part in sorted(parts_of(name, folder)):
        digest.update(part.encode())
        digest.update(_file(part, folder).read_bytes())
    return digest.hexdigest()[:12]


def _file(name: str, folder: Path | None) -> Traversable:
    """Returns the file of a template's text."""
    if folder is not None and (folder / name).is_file():
        return folder / name
    return files("sparsegen.templates").joinpath(name)


def parts_of(name: str, folder: Path | None = None) -> set[str]:
    """A template, and those that it and these include or import, by names that are constants."""
    found, pending = set[str](), [name]
    while pending:
        part = pending.pop()
        if part in found:
            continue
        found.add(part)
        pending += referenced(_file(part, folder).read_text(encoding="utf-8"))
    return found


def comment(text: str) -> str:
    """Words as comment lines of the emitted source, of at most 120 columns."""
    return textwrap.fill(text, 120, initial_indent="// ", subsequent_indent="// ", break_on_hyphens=False)


def described(title: str, values: Mapping[str, Value]) -> str:
    """Names and values as comment lines of the emitted source."""
    text = " ".join(f"{name}={str(value).lower()}" for name, value in values.items())
    return textwrap.fill(
        text, 108, initial_indent=f"// {title}: ", subsequent_indent="//   ", break_on_hyphens=False
    )


def render(family: AnyFamily, problem: Problem, config: Config) -> str:
    """The complete CUDA source of a variant: deterministic, and the same for all problems with equal constants.

    A config holds no value but its tunables' choices, so that nothing unchecked reaches a template.
    """
    constants = dict(family.constants(problem, config))
    with _first:
        folder = family.template_folder
        template = environment(folder).get_template(family.template)
        digest = template_digest(family.template, folder)
        return template.render(c=config, p=constants, family=family, digest=digest)
