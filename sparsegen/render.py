"""Family + problem + config -> CUDA source. The only importer of Jinja2."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from sparsegen.family import Family, tunables
from sparsegen.operators import SpmmProblem


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("sparsegen.templates", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


@cache
def templates_digest() -> str:
    """SHA-256 (first 12 hex digits) of all templates: a changed one makes other sources."""
    digest = hashlib.sha256()
    root = files("sparsegen.templates")
    for name in sorted(n for n in environment().list_templates() if n.endswith(".j2")):
        digest.update(name.encode())
        digest.update(root.joinpath(name).read_bytes())
    return digest.hexdigest()[:12]


def render(family: Family[Any, Any], problem: SpmmProblem, config: Any) -> str:
    """The complete CUDA source of a variant: deterministic, and the same for all problems with equal constants.

    The config is checked against its declared choices first, so that no value reaches a template unchecked.

    Raises:
        ConfigError: a value outside its choices.
    """
    checked = family.config(**family.config_dict(config))
    constants = dict(family.constants(problem, checked))
    source = (
        environment()
        .get_template(family.template)
        .render(
            c=checked,
            p=constants,
            family=family,
            tunables=tunables(family.config_type),
            config_json=json.dumps(family.config_dict(checked)),
            constants_json=json.dumps(constants),
            digest=templates_digest(),
        )
    )
    return source
