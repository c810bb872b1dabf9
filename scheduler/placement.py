"""Puts tasks on nodes, one at a time or in bulk, and tells what still fits. Which task comes next is for policies."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import List, Optional, Tuple

import numpy as np

from scheduler.core import SERVER, WORKER, Allocation, Array, ClusterView, JobsView, Placement

_EPS = 1e-9


class Placer:
    """An empty cluster to be filled in one slot.

    A task goes to the node with the smallest load (sum over resources of used / capacity; ties: lowest index) on
    which it fits whole. With ``strict=True`` only the node with the smallest load is tried (among those that are large
    enough at all), as in the DL2 authors' simulator, so a task may fail though another node has room. A pair that is
    larger than any node is placed apart. Every operation takes about a microsecond.

    Each distinct demand has its own lazy heap of nodes. Loads only grow, so a node that is too full for a demand
    leaves that heap for good; ``undo`` brings it back.
    """

    def __init__(self, cluster: ClusterView, jobs: JobsView, strict: bool = False) -> None:
        self.cluster = cluster
        self.jobs = jobs
        self.strict = strict
        self.servers: List[int] = [0] * len(jobs)
        self.workers: List[int] = [0] * len(jobs)
        self.max_servers = cluster.max_servers
        self.max_workers = cluster.max_workers
        self.used: List[float] = [0.0] * len(cluster.resources)  # whole cluster, by resource
        self._kind: List[int] = jobs.type_index.tolist()
        self._types = jobs.types
        self._free: List[List[float]] = cluster.capacity.tolist()
        self._inverse: List[List[float]] = cluster.inverse_capacity.tolist()
        self._load: List[float] = [0.0] * len(self._free)
        self._alive: List[int] = np.flatnonzero(cluster.alive).tolist()
        self._totals: List[float] = cluster.totals.tolist()
        self._tasks: List[Tuple[int, int, int]] = []  # job, role, node
        demand = jobs.demand
        self._terms = demand.terms  # by demand number: the resources it needs, and how much
        self._worker, self._server, self._pair = demand.of_worker, demand.of_server, demand.of_pair
        self._holders = demand.holders(cluster.capacity)
        # A heap per demand, made when it is needed; the last one is for all that every node can hold, if strict.
        self._heaps: List[Optional[List[Tuple[float, int]]]] = [None] * (len(self._terms) + 1)

    # -- adding -----------------------------------------------------------------------------------------------------

    def add_worker(self, i: int) -> bool:
        """One more worker for job i; False, and nothing changed, if it does not fit or the job is at its limit."""
        if self.workers[i] >= self.max_workers:
            return False
        demand = self._worker[self._kind[i]]
        node = self._find(demand)
        if node < 0:
            return False
        self._take(node, demand)
        self.workers[i] += 1
        self._tasks.append((i, WORKER, node))
        return True

    def add_server(self, i: int) -> bool:
        """One more server for job i; False, and nothing changed, if it does not fit or the job is at its limit."""
        if self.servers[i] >= self.max_servers:
            return False
        demand = self._server[self._kind[i]]
        node = self._find(demand)
        if node < 0:
            return False
        self._take(node, demand)
        self.servers[i] += 1
        self._tasks.append((i, SERVER, node))
        return True

    def add_pair(self, i: int) -> bool:
        """One worker and one server on one node for job i; False, and nothing changed, if they do not fit."""
        if self.workers[i] >= self.max_workers or self.servers[i] >= self.max_servers:
            return False
        demand = self._pair[self._kind[i]]
        if self._holders[demand] == []:
            return self.add(i, servers=1, workers=1)
        node = self._find(demand)
        if node < 0:
            return False
        self._take(node, demand)
        self._record_pair(i, node)
        return True

    def add_pair_at(self, i: int, node: int) -> bool:
        """As ``add_pair``, on the given node."""
        demand = self._pair[self._kind[i]]
        if self.workers[i] >= self.max_workers or self.servers[i] >= self.max_servers:
            return False
        if not self._fits_on(node, demand):
            return False
        self._take(node, demand)
        self._record_pair(i, node)
        return True

    def add(self, i: int, servers: int, workers: int) -> bool:
        """All of the given tasks for job i, wherever they fit, or none (False)."""
        mark = len(self._tasks)
        for _ in range(workers):
            if not self.add_worker(i):
                self.undo(mark)
                return False
        for _ in range(servers):
            if not self.add_server(i):
                self.undo(mark)
                return False
        return True

    def mark(self) -> int:
        """A point in time to which ``undo`` goes back."""
        return len(self._tasks)

    def undo(self, mark: int) -> None:
        """Takes back, newest first, every task added since ``mark``."""
        while len(self._tasks) > mark:
            i, role, node = self._tasks.pop()
            if role == WORKER:
                self.workers[i] -= 1
                self._give(node, self._worker[self._kind[i]])
            else:
                self.servers[i] -= 1
                self._give(node, self._server[self._kind[i]])

    def below_limits(self, i: int) -> bool:
        """Job i may have another pair as far as the limits on a job go."""
        return self.workers[i] < self.max_workers and self.servers[i] < self.max_servers

    def splits_pairs(self, i: int) -> bool:
        """A pair of job i is larger than any node, so its halves go to different nodes."""
        return self._holders[self._pair[self._kind[i]]] == []

    # -- what fits --------------------------------------------------------------------------------------------------

    def fits_worker(self, i: int) -> bool:
        return self.workers[i] < self.max_workers and self._find(self._worker[self._kind[i]]) >= 0

    def fits_server(self, i: int) -> bool:
        return self.servers[i] < self.max_servers and self._find(self._server[self._kind[i]]) >= 0

    def fits_pair(self, i: int) -> bool:
        return self.below_limits(i) and self._pair_fits(self._kind[i])

    def mask(self) -> Array:
        """What can be added, bool [n, 3]: a worker, a server, a pair."""
        by_type = np.array(
            [
                (self._find(worker) >= 0, self._find(server) >= 0, self._pair_fits(kind))
                for kind, (worker, server) in enumerate(zip(self._worker, self._server))
            ],
            dtype=bool,
        ).reshape(-1, 3)
        worker_room = np.array(self.workers, dtype=np.int64) < self.max_workers
        server_room = np.array(self.servers, dtype=np.int64) < self.max_servers
        room = np.stack([worker_room, server_room, worker_room & server_room], axis=1)
        return by_type[self.jobs.type_index] & room

    def free(self) -> Array:
        """Free units, float64 [N, R]; zero on dead nodes."""
        free = np.array(self._free, dtype=float)
        free[~self.cluster.alive] = 0.0
        return free

    def dominant_share(self, i: int) -> float:
        """Largest share of any resource of the living cluster that job i holds."""
        kind = self._types[self._kind[i]]
        w, s, share = self.workers[i], self.servers[i], 0.0
        for a, b, total in zip(kind.worker, kind.server, self._totals):
            if total > 0:
                part = (w * a + s * b) / total
                if part > share:
                    share = part
        return share

    def scarcest(self) -> int:
        """The resource with the largest share in use; ties: the first."""
        best, share = 0, -1.0
        for r, total in enumerate(self._totals):
            if total > 0 and self.used[r] / total > share:
                best, share = r, self.used[r] / total
        return best

    def allocation(self) -> Allocation:
        """What has been placed so far."""
        tasks = np.array(self._tasks, dtype=np.int64).reshape(-1, 3)
        return Allocation(
            servers=np.array(self.servers, dtype=np.int64),
            workers=np.array(self.workers, dtype=np.int64),
            placement=Placement(job=tasks[:, 0], role=tasks[:, 1], node=tasks[:, 2]),
        )

    # -- inside -----------------------------------------------------------------------------------------------------

    def _pair_fits(self, kind: int) -> bool:
        """A pair of this type finds room, on one node or, if no node is large enough, apart."""
        if self._holders[self._pair[kind]] != []:
            return self._find(self._pair[kind]) >= 0
        worker, server = self._worker[kind], self._server[kind]
        node = self._find(worker)
        if node < 0:
            return False
        self._take(node, worker)
        fits = self._find(server) >= 0
        self._give(node, worker)
        return fits

    def _record_pair(self, i: int, node: int) -> None:
        self.workers[i] += 1
        self.servers[i] += 1
        self._tasks.append((i, WORKER, node))
        self._tasks.append((i, SERVER, node))

    def _fits_on(self, node: int, demand: int) -> bool:
        free = self._free[node]
        return all(free[r] + _EPS >= need for r, need in self._terms[demand])

    def _find(self, demand: int) -> int:
        """The node that a task of this demand would go to, or -1."""
        holders = self._holders[demand]
        key = -1 if self.strict and holders is None else demand
        load = self._load
        heap = self._heaps[key]
        if heap is None:
            nodes = self._alive if holders is None else [node for node in holders if self.cluster.alive[node]]
            heap = self._heaps[key] = [(0.0, node) for node in nodes]  # a heap; loads catch up as they are met
        terms = self._terms[demand]
        while heap:
            known, node = heap[0]
            if known != load[node]:
                heapreplace(heap, (load[node], node))
                continue
            free = self._free[node]
            for r, need in terms:  # not all(): it is three times as slow, and this is the inner loop
                if free[r] + _EPS < need:
                    break
            else:
                return node
            if self.strict:
                return -1
            heappop(heap)
        return -1

    def _take(self, node: int, demand: int) -> None:
        free, inverse, used = self._free[node], self._inverse[node], self.used
        load = self._load[node]
        for r, need in self._terms[demand]:
            free[r] -= need
            used[r] += need
            load += need * inverse[r]
        self._load[node] = load

    def _give(self, node: int, demand: int) -> None:
        free, inverse, used = self._free[node], self._inverse[node], self.used
        load = self._load[node]
        for r, need in self._terms[demand]:
            free[r] += need
            used[r] -= need
            load -= need * inverse[r]
        self._load[node] = load
        for heap, holders in zip(self._heaps, [*self._holders, None]):
            if heap is not None and (holders is None or not self.strict or node in holders):
                heappush(heap, (load, node))


def place_counts(cluster: ClusterView, jobs: JobsView, servers: Array, workers: Array) -> Allocation:
    """Places the wanted counts (int [n] each), servers and workers in turn, job after job; what finds no room is left
    out, and so are counts above the limits."""
    placer = Placer(cluster, jobs)
    for i in range(len(jobs)):
        want_s, want_w = int(servers[i]), int(workers[i])
        for k in range(max(want_s, want_w)):
            if k < want_w:
                placer.add_worker(i)
            if k < want_s:
                placer.add_server(i)
    return placer.allocation()


def check_allocation(cluster: ClusterView, jobs: JobsView, allocation: Allocation) -> None:
    """Refuses an allocation with a placement that the cluster cannot hold.

    Raises:
        ValueError: counts out of range, unlike the placement, or a node that is down or overfull.
    """
    n, place = len(jobs), allocation.placement
    assert place is not None
    placed = np.bincount(place.job * 2 + place.role, minlength=2 * n).reshape(-1, 2)
    for role, name, counts, limit in (
        (SERVER, "servers", allocation.servers, cluster.max_servers),
        (WORKER, "workers", allocation.workers, cluster.max_workers),
    ):
        if len(counts) != n:
            raise ValueError(f"allocation has {len(counts)} entries of {name} for {n} jobs: one per observed job")
        if n and (counts.min() < 0 or counts.max() > limit):
            raise ValueError(f"allocation gives {counts.min()} to {counts.max()} {name}: must be 0 to {limit}")
        if len(placed) != n or not np.array_equal(placed[:, role], counts):
            i = int(np.flatnonzero(placed[:n, role] != counts)[0]) if len(placed) == n else n
            wanted = int(counts[i]) if i < n else 0
            raise ValueError(f"allocation counts {wanted} {name} for job {i}, but places {int(placed[i, role])}")
    worker, server = jobs.demands()
    demand = np.where((place.role == SERVER)[:, None], server[place.job], worker[place.job])
    used = np.stack(
        [np.bincount(place.node, weights=demand[:, r], minlength=cluster.nodes) for r in range(demand.shape[1])], axis=1
    )
    over = (used > cluster.capacity + 1e-6).any(axis=1) | (~cluster.alive & (used > 0).any(axis=1))
    if over.any():
        node = int(np.argmax(over))
        raise ValueError(
            f"allocation puts {used[node].tolist()} of {list(cluster.resources)} on node {node}, which has "
            f"{cluster.capacity[node].tolist()}{'' if cluster.alive[node] else ' and is down'}"
        )
