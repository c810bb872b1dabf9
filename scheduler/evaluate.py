"""Runs policies in the simulator and sums up what came out, beside the bound that no policy can pass."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

import numpy as np

from scheduler.core import Array, Policy
from scheduler.simulator import Simulator
from scheduler.workload import Trace, Workload


@dataclass(frozen=True)
class RunResult:
    """One policy on one trace; times in slots unless they say otherwise.

    Attributes:
        type_index: int64 [n], the jobs' types in the workload, by trace order.
        jct: float64 [n].
        bound: float64 [n], JCT of each job alone on the cluster at its best size.
        makespan: end of the last job.
        slots: slots simulated.
        resizes: changes of size of running jobs.
        decision_ms: mean time of ``allocate``.
        seconds: wall time of the whole run.
        utilisation: float64 [R], mean share of the cluster in use.
        used: float64 [slots, R], units in use by slot.
        history: if recorded, by slot the jobs' indices in the trace, their servers and their workers.
    """

    policy: str
    trace: str
    type_index: Array
    jct: Array
    bound: Array
    makespan: float
    slots: int
    resizes: int
    decision_ms: float
    seconds: float
    utilisation: Array
    used: Array
    history: Sequence[Tuple[Array, Array, Array]] = ()

    @property
    def fairness(self) -> float:
        """Jain's index of the jobs' progress relative to running alone (bound / JCT), 1/n to 1."""
        share = self.bound / self.jct
        return float(share.sum() ** 2 / (len(share) * (share**2).sum()))


def no_contention(workload: Workload, trace: Trace) -> Array:
    """JCT of every job if it had the cluster to itself at its best size, slots, float64 [n].

    Raises:
        ValueError: a job can never fit, or never progress, on this cluster.
    """
    tables, totals = workload.speed_tables(), workload.capacity.sum(axis=0)
    s, w = np.meshgrid(np.arange(tables.shape[1]), np.arange(tables.shape[2]), indexing="ij")
    best = np.zeros(len(tables))
    for t, kind in enumerate(workload.types):
        need = s[..., None] * np.array(kind.server) + w[..., None] * np.array(kind.worker)
        best[t] = np.where((need <= totals + 1e-9).all(axis=-1), tables[t], 0.0).max()
    for t in np.unique(trace.type_index):
        kind = workload.types[t]
        for role, demand in (("worker", kind.worker), ("server", kind.server)):
            if not (np.array(demand) <= workload.capacity + 1e-9).all(axis=1).any():
                names = ", ".join(f"{n} {d:g}" for n, d in zip(workload.resources, demand))
                raise ValueError(
                    f"job type {kind.name!r} can never fit: one {role} needs {names}, the largest node has "
                    + ", ".join(f"{n} {c:g}" for n, c in zip(workload.resources, workload.capacity.max(axis=0)))
                )
        if best[t] <= 0:
            raise ValueError(
                f"job type {kind.name!r} can never progress: no size that fits the cluster has a speed above 0"
            )
    return np.asarray(trace.epochs / best[trace.type_index])


def run(policy: Policy, simulator: Simulator) -> RunResult:
    """Runs a policy to the end of the simulator's trace.

    Raises:
        RuntimeError: the trace is not finished after ``max_slots`` slots.
    """
    bound = no_contention(simulator.workload, simulator.trace)
    began, deciding, decisions = time.perf_counter(), 0.0, 0
    policy.reset()
    while not simulator.finished:
        if simulator.slot >= simulator.settings.max_slots:
            raise RuntimeError(
                f"{policy.name}: {simulator.unfinished} jobs are unfinished after {simulator.slot} slots: "
                "allow more slots, or look why the policy starves them"
            )
        cluster, jobs = simulator.observe()
        start = time.perf_counter()
        allocation = policy.allocate(cluster, jobs)
        deciding += time.perf_counter() - start
        decisions += 1
        simulator.step(allocation)
    used, totals = np.array(simulator.used_history), simulator.capacity.sum(axis=0)
    return RunResult(
        policy=policy.name,
        trace=simulator.trace.name,
        type_index=simulator.trace.type_index,
        jct=simulator.end - simulator.trace.arrival,
        bound=bound,
        makespan=float(simulator.end.max()),
        slots=simulator.slot,
        resizes=simulator.resizes,
        decision_ms=1000.0 * deciding / max(decisions, 1),
        seconds=time.perf_counter() - began,
        utilisation=used.mean(axis=0) / np.where(totals > 0, totals, np.inf),
        used=used,
        history=tuple(simulator.history),
    )


def summary(results: Sequence[RunResult]) -> Dict[str, float]:
    """Means over traces of one policy's results; median and p90 of all JCTs together. Times are in slots, but
    ``decision_ms`` is per decision and ``seconds`` the wall time per trace."""
    jct = np.concatenate([r.jct for r in results])
    return {
        "mean_jct": float(np.mean([r.jct.mean() for r in results])),
        "median_jct": float(np.median(jct)),
        "p90_jct": float(np.quantile(jct, 0.9)),
        "makespan": float(np.mean([r.makespan for r in results])),
        "utilisation": float(np.mean([r.utilisation.max() for r in results])),
        "fairness": float(np.mean([r.fairness for r in results])),
        "resizes": float(np.mean([r.resizes for r in results])),
        "decision_ms": float(np.mean([r.decision_ms for r in results])),
        "seconds": float(np.mean([r.seconds for r in results])),
        "bound": float(np.mean([r.bound.mean() for r in results])),
    }
