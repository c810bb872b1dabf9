"""How long what jobs leave behind is kept, and what is deleted when. Where it is, the cluster knows."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.service.cluster import Attempt, Cluster
from scheduler.service.store import JobRow, Store

DAY_SECONDS = 86400.0
MOST_AT_ONCE = 20  # jobs, so that a slot waits for no long deletion


@dataclass(frozen=True)
class Keep:
    """How long, s: ``jobs`` the logs and checkpoints of those that have ended, ``record`` what was decided and told."""

    jobs: float = 7 * DAY_SECONDS
    record: float = 90 * DAY_SECONDS

    @property
    def every(self) -> float:
        """How often it is looked after, s."""
        return min(600.0, self.jobs, self.record)


def finished(row: JobRow, cluster: Cluster) -> None:
    """A job has ended as it was to: nothing goes on from its checkpoint any more."""
    if not row.spec.keep_checkpoint:
        cluster.drop_checkpoint(Attempt(row.id, row.attempt, row.name, row.spec))


def tidy(record: Store, cluster: Cluster, keep: Keep, now: float) -> None:
    """Deletes what is older than it is kept; where that fails, an event says so, and it is not tried again."""
    for row in record.jobs_to_drop(now - keep.jobs, MOST_AT_ONCE):
        wrong = cluster.drop(Attempt(row.id, row.attempt, row.name, row.spec))
        record.set_dropped(row.id, now)
        if wrong:
            record.tell(now, "error", f"what is left of the job could not be deleted: {wrong}", row.id)
    record.prune(now - keep.record)
