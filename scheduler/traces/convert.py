"""Makes elastic jobs of a public trace. What a public trace does not tell is filled in by rules stated here.

A job that held g GPUs for D seconds becomes a job whose worker has one GPU (or its fraction of one) and the g-th part
of its cores and memory. How it scales is that of a shipped model, drawn by the seed (one without GPU if it held none).
It gets as many epochs as it trains in D seconds with g workers and g servers. Servers are the shipped model's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from scheduler.core import Array, JobType
from scheduler.traces.public import PublicJob
from scheduler.workload import Arrivals, Trace, Workload, make_trace

RESOURCES = ("cpu", "gpu", "memory")
NODE = (64.0, 8.0, 512.0)  # a node of the clusters made up for traces that tell of none
_CORES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_GIB = (2, 4, 8, 16, 32, 64, 128, 256, 512)
_GPU_PARTS = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class ConvertSettings:
    """How a public trace becomes a workload.

    Attributes:
        slot_seconds: length of a slot.
        jobs: at most so many.
        start: seconds after the trace's first submission at which to begin.
        least_seconds: leave out shorter jobs.
        most_seconds: leave out longer jobs, which are services rather than training.
        load: without a cluster, make one on which the jobs' GPUs (or cores) would be this busy on average.
        seed: fixes the models drawn.
    """

    slot_seconds: float = 300.0
    jobs: int = 1000
    start: float = 0.0
    least_seconds: float = 60.0
    most_seconds: float = 7 * 86400.0
    load: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.slot_seconds > 0:
            raise ValueError(f"slot length is {self.slot_seconds} s, must be above 0")
        if self.jobs < 1:
            raise ValueError(f"number of jobs is {self.jobs}, must be at least 1")
        if not 0 < self.load <= 10:
            raise ValueError(f"load is {self.load}, must be above 0 and at most 10")


@dataclass(frozen=True)
class Converted:
    """The result, and how many jobs of the trace were left out because no node could hold them."""

    workload: Workload
    trace: Trace
    too_large: int


def convert(
    name: str,
    jobs: Sequence[PublicJob],
    models: Workload,
    settings: ConvertSettings,
    nodes: Optional[Array] = None,
) -> Converted:
    """Converts a trace.

    Args:
        jobs: of one of the readers in ``public``.
        models: where speeds and servers come from; its resources must be cpu, gpu and memory.
        nodes: cores, GPUs and GiB of each node, float64 [N, 3]; None to make up a cluster.

    Raises:
        ValueError: no job is left.
    """
    if models.resources != RESOURCES:
        raise ValueError(f"models of {models.name!r} count {models.resources}, must count {RESOURCES}")
    chosen = _choose(name, jobs, settings)
    capacity = _made_up(chosen, settings) if nodes is None else nodes
    builder = _Types(models, settings)
    fitting = [job for job in chosen if _fits(builder.worker(job), capacity)]
    if not fitting:
        raise ValueError(f"trace {name!r}: none of {len(chosen)} jobs fits a node; give larger nodes")
    first = fitting[0].submitted
    rows = [(builder.type_of(job), int((job.submitted - first) // settings.slot_seconds), job) for job in fitting]
    workload = Workload(
        name=name,
        slot_seconds=settings.slot_seconds,
        resources=RESOURCES,
        capacity=capacity,
        types=tuple(builder.types),
        max_servers=models.max_servers,
        max_workers=models.max_workers,
        process=Arrivals(process="poisson", rate=max(len(rows) / (rows[-1][1] + 1), 1e-3), jobs=len(rows)),
    )
    kinds = np.array([kind for kind, _, _ in rows])
    epochs = _epochs(workload, kinds, [job for _, _, job in rows])
    mean = {kind: float(epochs[kinds == kind].mean()) for kind in set(kinds.tolist())}
    types = tuple(replace(kind, epochs=mean[i]) for i, kind in enumerate(workload.types))
    trace = make_trace(name, np.arange(1, len(rows) + 1), kinds, np.array([slot for _, slot, _ in rows]), epochs)
    return Converted(replace(workload, types=types), trace, len(chosen) - len(fitting))


def _choose(name: str, jobs: Sequence[PublicJob], settings: ConvertSettings) -> List[PublicJob]:
    used = [job for job in jobs if settings.least_seconds <= job.seconds <= settings.most_seconds]
    used = [job for job in used if job.gpus > 0 or job.cpus > 0]
    used.sort(key=lambda job: job.submitted)
    if used:
        begin = used[0].submitted + settings.start
        used = [job for job in used if job.submitted >= begin][: settings.jobs]
    if not used:
        raise ValueError(
            f"trace {name!r}: none of its {len(jobs)} jobs ran for {settings.least_seconds:g} to "
            f"{settings.most_seconds:g} s after second {settings.start:g}: widen the range or start earlier"
        )
    return used


def _made_up(jobs: Sequence[PublicJob], settings: ConvertSettings) -> Array:
    """A cluster of equal nodes on which the scarcest resource would be ``load`` busy while jobs arrive."""
    span = max(jobs[-1].submitted - jobs[0].submitted, float(np.mean([job.seconds for job in jobs])))
    held = np.array([[job.cpus, job.gpus, job.memory] for job in jobs])
    busy = (held * np.array([[job.seconds] for job in jobs])).sum(axis=0) / span
    count = int(np.ceil((busy / np.array(NODE)).max() / settings.load))
    return np.tile(np.array(NODE), (max(count, 1), 1))


def _fits(worker: Tuple[float, ...], capacity: Array) -> bool:
    return bool((np.array(worker) <= capacity + 1e-9).all(axis=1).any())


def _workers(job: PublicJob) -> int:
    """How many workers the job had: a GPU each; without GPUs, four cores each."""
    return max(1, int(np.ceil(job.gpus - 1e-9)) if job.gpus > 0 else int(np.ceil(job.cpus / 4)))


class _Types:
    """The job types of a converted trace: a shipped model's speed with the demand of the trace's workers, rounded up
    to a few sizes so that there are not as many types as jobs."""

    def __init__(self, models: Workload, settings: ConvertSettings) -> None:
        self.types: List[JobType] = []
        self._models, self._rng = models, np.random.default_rng(settings.seed)
        self._known: Dict[Tuple[str, Tuple[float, ...]], int] = {}
        self._gpu_models = [kind for kind in models.types if kind.worker[1] > 0]
        self._cpu_models = [kind for kind in models.types if kind.worker[1] == 0] or list(models.types)

    def worker(self, job: PublicJob) -> Tuple[float, ...]:
        count = _workers(job)
        gpu = _up(job.gpus / count, _GPU_PARTS) if job.gpus > 0 else 0.0
        return _up(job.cpus / count, _CORES), gpu, _up(job.memory / count, _GIB)

    def type_of(self, job: PublicJob) -> int:
        choices = self._gpu_models if job.gpus > 0 else self._cpu_models
        model, worker = choices[self._rng.integers(len(choices))], self.worker(job)
        key = (model.name, worker)
        if key not in self._known:
            self._known[key] = len(self.types)
            label = f"{model.name}-{worker[0]:g}c-{worker[1]:g}g-{worker[2]:g}m"
            self.types.append(replace(model, name=label, worker=worker, weight=1.0))
        return self._known[key]


def _up(value: float, sizes: Sequence[float]) -> float:
    return float(next((size for size in sizes if size >= value - 1e-9), sizes[-1]))


def _epochs(workload: Workload, kinds: Array, jobs: Sequence[PublicJob]) -> Array:
    tables = workload.speed_tables()
    counts = np.array([_workers(job) for job in jobs])
    servers, workers = np.minimum(counts, workload.max_servers), np.minimum(counts, workload.max_workers)
    slots = np.array([job.seconds for job in jobs]) / workload.slot_seconds
    return np.asarray(np.maximum(tables[kinds, servers, workers] * slots, 1e-6))
