"""``sparsegen verify``: a variant's results against float64, on fresh random inputs."""

from __future__ import annotations

import secrets

import click
import numpy as np

from sparsegen import api, backends
from sparsegen.cli.parts.common import (
    asked_db_option,
    config_option,
    device_option,
    emit,
    family_names,
    json_option,
    overflow_option,
    parse_config,
)
from sparsegen.cli.parts.matrix_options import MatrixOptions, matrix_options
from sparsegen.cli.parts.problems import ProblemOptions, problem_options
from sparsegen.dispatch.named import named_choice
from sparsegen.errors import NoVariantError
from sparsegen.operators.base.overflow import require_held
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.executors import shared_executor
from sparsegen.verify.variants import worst_error


@click.command()
@matrix_options
@problem_options()
@click.option(
    "--family",
    metavar="NAME",
    shell_complete=family_names,
    help="This family instead of the one that would run.",
)
@config_option
@overflow_option
@device_option
@asked_db_option
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Fresh inputs.")
@click.option(
    "--inputs-seed", type=click.IntRange(min=0), help="Of the inputs; default a random one, which is printed."
)
@json_option
def command(
    matrix_file: MatrixOptions,
    wanted: ProblemOptions,
    family: str | None,
    config: tuple[str, ...],
    allow_overflow: bool,
    device: str | None,
    db: str | None,
    rounds: int,
    inputs_seed: int | None,
    as_json: bool,
) -> None:
    """Check the results of the variant that would run, or of a named one, against float64.

    Ends with exit code 5 when a result is further off than rounding explains.
    """
    if config and family is None:
        raise click.UsageError("--config needs --family")
    found, problem = wanted.workload(matrix_file.reader)
    require_held(problem, found, allow_overflow=allow_overflow)
    where = backends.find_device(device)
    backends.begin_opening(where)
    if family is None:
        choice = api.lookup(found if problem.has_pattern else None, problem, device=where, db=db)
    else:
        choice = named_choice(problem, problem.features(found), where, family, parse_config(config))
    variant = bind_variant(choice.config, problem, found, shared_executor(where), backends.toolchain(where))
    inputs_seed = secrets.randbelow(2**31) if inputs_seed is None else inputs_seed
    rng = np.random.default_rng(inputs_seed)
    errors = [worst_error(variant, problem, found, rng) for _ in range(rounds)]
    worst = max(errors)
    data = {
        "right": worst <= 1,
        "worst_error_over_bound": worst if np.isfinite(worst) else None,
        "rounds": rounds,
        "inputs_seed": inputs_seed,
        "device": where.key,
        "family": choice.family.name,
        "config": choice.config.to_dict(),
        "how": str(choice.how),
    }
    told = "right" if worst <= 1 else "WRONG"
    facts = f"{told}: largest error {worst:.3g} of its bound, over {rounds} inputs (seed {inputs_seed})"
    emit(as_json, data, choice.explain(), f"{facts} on {where.name}")
    if worst > 1:
        raise click.exceptions.Exit(NoVariantError.exit_code)
