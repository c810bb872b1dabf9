"""The first version of the record."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
LIVE_ONLY = sa.text("state IN ('waiting', 'starting', 'running', 'ending')")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(63), nullable=False, index=True),
        sa.Column("key", sa.String(200), unique=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.String(20), nullable=False, index=True),
        sa.Column("wish", sa.String(20), nullable=False),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("ended_status", sa.Integer),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("handle", sa.Text, nullable=False),
        sa.Column("done", sa.Float, nullable=False),
        sa.Column("service", sa.Float, nullable=False),
        sa.Column("servers", sa.Integer, nullable=False),
        sa.Column("workers", sa.Integer, nullable=False),
    )
    op.create_index(
        "one_live_job_per_name", "jobs", ["name"], unique=True, sqlite_where=LIVE_ONLY, postgresql_where=LIVE_ONLY
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False, index=True),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("slot_seconds", sa.Float, nullable=False),
        sa.Column("policy", sa.String(40), nullable=False),
        sa.Column("fallback", sa.Text, nullable=False),
        sa.Column("shadow", sa.String(40), nullable=False),
        sa.Column("jobs", sa.Integer, nullable=False),
        sa.Column("observe_ms", sa.Float, nullable=False),
        sa.Column("decide_ms", sa.Float, nullable=False),
        sa.Column("enact_ms", sa.Float, nullable=False),
        sa.Column("snapshot", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("decision", sa.Integer, sa.ForeignKey("decisions.id"), nullable=False, index=True),
        sa.Column("job", sa.Integer, sa.ForeignKey("jobs.id"), nullable=False, index=True),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("servers_before", sa.Integer, nullable=False),
        sa.Column("workers_before", sa.Integer, nullable=False),
        sa.Column("servers", sa.Integer, nullable=False),
        sa.Column("workers", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(10), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("seconds", sa.Float),
        sa.Column("stall_seconds", sa.Float),
        sa.Column("bytes_moved", sa.BigInteger),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("job", sa.Integer, sa.ForeignKey("jobs.id"), index=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("until", sa.Float, nullable=False),
    )
