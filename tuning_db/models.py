"""The tables of the tuning database as typed SQLAlchemy models; `records` holds the same facts as plain
values.

A measurement refers to a device, a matrix (its pattern), a problem and a variant, each stored once. What
makes a row the same row is a unique constraint, so that importing or merging twice adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    CHAR,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

BASES = ("model", "scaled")
OUTCOMES = ("ok", "wrong", "crashed", "timed_out", "compile_failed")
CHECKED = ("ok", "wrong", "crashed")
KINDS = ("cold", "clean", "warm", "graph")  # values of `records.MeasuredAs`
CALLED = ("host", "device")  # values of `records.Called`
TASKS = (  # values of `records.Task`
    "product",
    "convolution",
    "dropout",
    "seeded-dropout",
    "attention",
    "model",
)
PROBE_KEY = (
    "problem_id",
    "matrix_id",
    "device_id",
    "variant_id",
    "measured_as",
    "called",
    "task",
    "measured_at",
)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC. SQLite drops the time zone; it is taken off before and put back after."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        """None for what is no moment, so that the other rows of a query can be read; `row_checks` tells."""
        convert = super().result_processor(dialect, coltype)
        assert convert is not None, "a TypeDecorator with process_result_value has one"

        def read(value: object) -> datetime | None:
            try:
                return convert(value)
            except (ValueError, TypeError, OverflowError):
                return None

        return read


class Base(DeclarativeBase):
    """Root of the models; names every constraint, so that a migration can refer to it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime, float: Double}  # noqa: RUF012 (SQLAlchemy's own protocol)


class DeviceRow(Base):
    """A device that something was measured on."""

    __tablename__ = "devices"
    __table_args__ = (UniqueConstraint("key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(200))
    name: Mapped[str] = mapped_column(String(200))
    backend: Mapped[str] = mapped_column(String(40))
    compute_capability_major: Mapped[int]
    compute_capability_minor: Mapped[int]
    multiprocessors: Mapped[int]
    shared_memory_per_block: Mapped[int] = mapped_column(BigInteger)
    shared_memory_per_multiprocessor: Mapped[int] = mapped_column(BigInteger)
    l2_bytes: Mapped[int] = mapped_column(BigInteger)


class DeviceRatesRow(Base):
    """Measured rates of a device; see `sparsegen.kernels.rates.Rates`."""

    __tablename__ = "device_rates"
    __table_args__ = (UniqueConstraint("device_id", "measured_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    measured_at: Mapped[datetime]
    copy_bytes_per_us: Mapped[float]
    float32_flop_per_us: Mapped[float]
    tf32_flop_per_us: Mapped[float]
    float16_flop_per_us: Mapped[float]
    bfloat16_flop_per_us: Mapped[float]
    launch_us: Mapped[float]
    clock_mhz: Mapped[float]

    device: Mapped[DeviceRow] = relationship(lazy="raise")


class MatrixRow(Base):
    """A sparsity pattern: its fingerprint and what dispatch sees of it."""

    __tablename__ = "matrices"
    __table_args__ = (UniqueConstraint("fingerprint"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    m: Mapped[int]
    k: Mapped[int]
    nnz: Mapped[int]
    row_mean: Mapped[float]
    row_cov: Mapped[float]
    row_max: Mapped[int]
    block_fill: Mapped[float]


class ProblemRow(Base):
    """One instance of an operator; ``fields`` is canonical JSON (sorted keys, no spaces), which `conversion` describes,
    and ``digest`` the SHA-256 of operator and fields.
    """

    __tablename__ = "problems"
    __table_args__ = (UniqueConstraint("digest"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    operator: Mapped[str] = mapped_column(String(40))
    fields: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(CHAR(64))


class VariantRow(Base):
    """A family and a config; ``config`` is canonical JSON (sorted keys, no spaces)."""

    __tablename__ = "variants"
    __table_args__ = (UniqueConstraint("family", "source_digest", "config"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    family: Mapped[str] = mapped_column(String(80))
    config: Mapped[str] = mapped_column(Text)
    source_digest: Mapped[str] = mapped_column(String(64))


class TimedRow:
    """Columns that measurements and baselines share: the timed workload and device, and the sample."""

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    matrix_id: Mapped[int] = mapped_column(ForeignKey("matrices.id"))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    measured_at: Mapped[datetime]
    median_us: Mapped[float | None]
    low_us: Mapped[float | None]
    high_us: Mapped[float | None]
    sample_count: Mapped[int | None]
    measured_as: Mapped[str] = mapped_column(String(20))
    clock_mhz: Mapped[int | None]
    throttle_reasons: Mapped[int | None] = mapped_column(BigInteger)


class MeasurementRow(TimedRow, Base):
    """One variant on one workload and device, whatever became of it."""

    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint(
            "problem_id", "matrix_id", "device_id", "variant_id", "measured_as", "final", "measured_at"
        ),
        CheckConstraint(f"outcome IN {OUTCOMES}", name="outcome"),
        CheckConstraint(f"measured_as IN {KINDS}", name="measured_as"),
        CheckConstraint("(outcome = 'ok') = (median_us IS NOT NULL)", name="sample"),
        Index(None, "device_id", "matrix_id"),
    )

    variant_id: Mapped[int] = mapped_column(ForeignKey("variants.id"))
    outcome: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text)
    worst_error: Mapped[float | None]
    registers: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    compile_seconds: Mapped[float | None]
    prepare_seconds: Mapped[float | None]
    packed_bytes: Mapped[int | None] = mapped_column(BigInteger)
    final: Mapped[bool]
    driver: Mapped[str] = mapped_column(String(40))

    device: Mapped[DeviceRow] = relationship(lazy="raise")
    matrix: Mapped[MatrixRow] = relationship(lazy="raise")
    problem: Mapped[ProblemRow] = relationship(lazy="raise")
    variant: Mapped[VariantRow] = relationship(lazy="raise")


class BaselineRow(TimedRow, Base):
    """Time of another library's routine for the same workload on the same device."""

    __tablename__ = "baselines"
    __table_args__ = (
        UniqueConstraint(
            "problem_id", "matrix_id", "device_id", "contender", "version", "measured_as", "measured_at"
        ),
        CheckConstraint("median_us IS NOT NULL", name="sample"),
        CheckConstraint(f"measured_as IN {KINDS}", name="measured_as"),
    )

    contender: Mapped[str] = mapped_column(String(40))
    version: Mapped[str] = mapped_column(String(200))

    device: Mapped[DeviceRow] = relationship(lazy="raise")
    matrix: Mapped[MatrixRow] = relationship(lazy="raise")
    problem: Mapped[ProblemRow] = relationship(lazy="raise")


class ObservedRow:
    """Columns that probes and checks share: a variant on a workload, where it was used."""

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    matrix_id: Mapped[int] = mapped_column(ForeignKey("matrices.id"))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    variant_id: Mapped[int] = mapped_column(ForeignKey("variants.id"))
    driver: Mapped[str] = mapped_column(String(40))
    measured_at: Mapped[datetime]


class ProbeRow(ObservedRow, Base):
    """Ours and the other way, timed in turn."""

    __tablename__ = "probes"
    __table_args__ = (
        UniqueConstraint(*PROBE_KEY),
        CheckConstraint(f"measured_as IN {KINDS}", name="measured_as"),
        CheckConstraint(f"called IN {CALLED}", name="called"),
        CheckConstraint(f"task IN {TASKS}", name="task"),
    )

    sparse_us: Mapped[float]
    dense_us: Mapped[float]
    sample_count: Mapped[int]
    measured_as: Mapped[str] = mapped_column(String(20))
    called: Mapped[str] = mapped_column(String(20))
    task: Mapped[str] = mapped_column(String(20))
    context: Mapped[str] = mapped_column(String(64))

    device: Mapped[DeviceRow] = relationship(lazy="raise")
    matrix: Mapped[MatrixRow] = relationship(lazy="raise")
    variant: Mapped[VariantRow] = relationship(lazy="raise")


class CheckRow(ObservedRow, Base):
    """A variant's result held against the reference."""

    __tablename__ = "checks"
    __table_args__ = (
        UniqueConstraint("problem_id", "matrix_id", "device_id", "variant_id", "driver", "measured_at"),
        CheckConstraint(f"outcome IN {CHECKED}", name="outcome"),
    )

    outcome: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text)
    worst_error: Mapped[float | None]
    seconds: Mapped[float]

    device: Mapped[DeviceRow] = relationship(lazy="raise")
    matrix: Mapped[MatrixRow] = relationship(lazy="raise")
    variant: Mapped[VariantRow] = relationship(lazy="raise")


class PredictionRow(Base):
    """Time of a variant on a device, predicted by a cost model; nothing of it was measured there."""

    __tablename__ = "predictions"
    __table_args__ = (
        UniqueConstraint("problem_id", "matrix_id", "device_id", "variant_id", "predicted_at"),
        CheckConstraint(f"basis IN {BASES}", name="basis"),
        Index(None, "device_id", "matrix_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    matrix_id: Mapped[int] = mapped_column(ForeignKey("matrices.id"))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    variant_id: Mapped[int] = mapped_column(ForeignKey("variants.id"))
    predicted_us: Mapped[float]
    basis: Mapped[str] = mapped_column(String(20))
    model: Mapped[str] = mapped_column(String(64))
    registers: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    predicted_at: Mapped[datetime]

    device: Mapped[DeviceRow] = relationship(lazy="raise")
    matrix: Mapped[MatrixRow] = relationship(lazy="raise")
    problem: Mapped[ProblemRow] = relationship(lazy="raise")
    variant: Mapped[VariantRow] = relationship(lazy="raise")
