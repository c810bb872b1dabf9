"""What alembic runs to migrate: uses the connection that store.py brings."""

from alembic import context

from scheduler.service.tables import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
