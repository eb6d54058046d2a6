"""Devices, matrices, problems, variants, measurements, baselines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger()
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("backend", sa.String(40), nullable=False),
        sa.Column("compute_capability_major", sa.Integer(), nullable=False),
        sa.Column("compute_capability_minor", sa.Integer(), nullable=False),
        sa.Column("multiprocessors", sa.Integer(), nullable=False),
        sa.Column("shared_memory_per_block", BIG, nullable=False),
        sa.Column("shared_memory_per_multiprocessor", BIG, nullable=False),
        sa.Column("l2_bytes", BIG, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
        sa.UniqueConstraint("key", name="uq_devices"),
    )
    op.create_table(
        "matrices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("m", sa.Integer(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("nnz", sa.Integer(), nullable=False),
        sa.Column("row_mean", sa.Double(), nullable=False),
        sa.Column("row_cov", sa.Double(), nullable=False),
        sa.Column("row_max", sa.Integer(), nullable=False),
        sa.Column("block_fill", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_matrices"),
        sa.UniqueConstraint("fingerprint", name="uq_matrices"),
    )
    op.create_table(
        "problems",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("operator", sa.String(40), nullable=False),
        sa.Column("m", sa.Integer(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("dtype", sa.String(20), nullable=False),
        sa.Column("layout", sa.String(20), nullable=False),
        sa.Column("epilogue", sa.String(20), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_problems"),
        sa.UniqueConstraint("operator", "dtype", "layout", "epilogue", "m", "k", "n", name="uq_problems"),
    )
    op.create_table(
        "variants",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("family", sa.String(80), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("source_digest", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_variants"),
        sa.UniqueConstraint("family", "source_digest", "config", name="uq_variants"),
    )
    op.create_table(
        "measurements",
        *timed_columns("measurements"),
        sa.Column("variant_id", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("worst_error", sa.Double()),
        sa.Column("registers", sa.Integer()),
        sa.Column("spill_bytes", sa.Integer()),
        sa.Column("compile_seconds", sa.Double()),
        sa.Column("prepare_seconds", sa.Double()),
        sa.Column("packed_bytes", BIG),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["variant_id"], ["variants.id"], name="fk_measurements_variant_id"),
        sa.UniqueConstraint(
            "problem_id",
            "matrix_id",
            "device_id",
            "variant_id",
            "final",
            "measured_at",
            name="uq_measurements",
        ),
        sa.CheckConstraint(
            "outcome IN ('ok', 'wrong', 'crashed', 'timed_out', 'compile_failed')",
            name=op.f("ck_measurements_outcome"),
        ),
        sa.CheckConstraint("(outcome = 'ok') = (median_us IS NOT NULL)", name=op.f("ck_measurements_sample")),
    )
    op.create_index("ix_measurements_device_id_matrix_id", "measurements", ["device_id", "matrix_id"])
    op.create_table(
        "baselines",
        *timed_columns("baselines"),
        sa.Column("contender", sa.String(40), nullable=False),
        sa.Column("version", sa.String(200), nullable=False),
        sa.UniqueConstraint(
            "problem_id", "matrix_id", "device_id", "contender", "version", "measured_at", name="uq_baselines"
        ),
        sa.CheckConstraint("median_us IS NOT NULL", name=op.f("ck_baselines_sample")),
    )


def timed_columns(table: str) -> list[sa.schema.SchemaItem]:
    """What was timed where, and the sample."""
    references = {"device_id": "devices.id", "matrix_id": "matrices.id", "problem_id": "problems.id"}
    return [
        sa.Column("id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in references),
        sa.Column("measured_at", MOMENT, nullable=False),
        sa.Column("median_us", sa.Double()),
        sa.Column("low_us", sa.Double()),
        sa.Column("high_us", sa.Double()),
        sa.Column("sample_count", sa.Integer()),
        sa.Column("cold", sa.Boolean()),
        sa.Column("clock_mhz", sa.Integer()),
        sa.Column("throttle_reasons", BIG),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        *(
            sa.ForeignKeyConstraint([name], [target], name=f"fk_{table}_{name}")
            for name, target in references.items()
        ),
    ]
