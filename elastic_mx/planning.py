"""How a job goes from one generation to the next: whom it needs, the plan, its commit, and when it is in force.

Pure decisions on a `JobState`; which message calls for them is coordinator_machine.py's, the assignment of slices is
table.py's, and the rules are told in docs/protocol.md.
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any, Dict, List, Optional, Sequence, Tuple

from elastic_mx import messages as m
from elastic_mx.checkpoint import FORMAT, Manifest
from elastic_mx.job_state import JobState, Plan, Process, Written, by_number, members
from elastic_mx.table import Table

MOVE_SECONDS = 0.03


class Planner:
    """Makes, commits, concludes and drops the plans of one job, and has started or sends away whom they call for.

    A resize that moves much comes in several generations: the first one has everybody who comes, the last one is
    without the servers that leave, and each moves as much as no step need wait for.
    """

    def __init__(self, job: JobState) -> None:
        self.job = job
        self._ahead: List[m.Move] = []  # what the generations to come are to move, with its places taken
        self._ahead_for: List[str] = []  # the servers that this leads to
        self._move_bytes = job.settings.move_bytes
        self._before: Optional[m.Generation] = None  # what was in force when the resize under way began
        self._next = {"worker": 0, "server": 0}
        self._last_generation = 0

    # ----------------------------------------------------------------------------------------- whom it needs

    def admit(self, message: m.Register) -> None:
        """A server or worker has registered, and no plan is under way."""
        job = self.job
        process = Process(message.name, message.role, message.address)
        job.processes[message.name] = process
        job.launched[message.name] = message.role
        number = message.name.rpartition("-")[2]
        if number.isdigit():
            self._next[message.role] = max(self._next[message.role], int(number) + 1)
        if job.over and job.generation is not None:
            job.send(process.name, m.Release(reason="the job is over"))
        elif job.generation is not None:
            self._welcome(process, joining=True)

    def _welcome(self, process: Process, joining: bool) -> None:
        job = self.job
        assert job.generation is not None
        job.send(
            process.name,
            m.Welcome(
                name=process.name,
                joining=joining,
                generation=job.generation,
                settings=job.settings.to_dict(),
                keys=job.table.all_placed(),
                optimizers=list(job.optimizers.values()),
                restored=job.restored.position if job.restored and not joining else None,
                left=[worker for worker in job.generation.workers if worker in job.finished],
            ),
        )

    def launch_missing(self) -> None:
        """Ask the launcher for what the target needs beyond the members and what is starting."""
        job = self.job
        if job.plan is not None or not job.launchers or job.over:
            return
        for role in ("server", "worker"):
            have = job.size(role) + len(job.starting(role))
            for _ in range(job.target[role] - have):
                name = f"{role}-{self._next[role]}"
                self._next[role] += 1
                job.launched[name] = role
                job.send(job.launchers[-1], m.Launch(role=role, name=name))

    def _dismiss(self, name: str) -> None:
        """Send away a process that was starting and is not wanted any more; what it still says does not count."""
        self.job.gone.add(name)
        self.job.launched.pop(name, None)
        self.job.processes.pop(name, None)
        self.job.send(name, m.Release(reason="it is not needed any more"))

    # ------------------------------------------------------------------------------------------- generation 0

    def form_first_generation(self) -> bool:
        """Begin the job once it has as many processes as asked for; tells whether it has."""
        job = self.job
        found = {
            role: sorted((p.name for p in job.processes.values() if p.role == role), key=by_number)
            for role in job.target
        }
        if any(len(found[role]) < size for role, size in job.target.items()):
            return False
        workers, servers = (found[role][: job.target[role]] for role in ("worker", "server"))
        for name in [*job.processes]:
            if name not in (*workers, *servers):
                self._dismiss(name)
        job.generation = m.Generation(0, tuple(workers), {s: job.processes[s].address for s in servers})
        job.table = Table(servers, job.settings.slice_bytes)
        job.first_steps = [(0, len(workers))]
        if job.restored is not None:
            self._restore(job.restored, job.generation)
        for name in (*servers, *workers):
            self._welcome(job.processes[name], joining=False)
        return True

    def _restore(self, manifest: Manifest, generation: m.Generation) -> None:
        """Define what the checkpoint holds, and go on counting steps where it stood."""
        job = self.job
        for spec in manifest.keys:
            job.table.define(spec, list(generation.servers))
        for store, description in manifest.optimizers.items():
            job.optimizers[int(store)] = m.SetOptimizer(store=int(store), description=description)
        job.first_steps = [*manifest.position.groups, (manifest.position.step, len(generation.workers))]

    # ----------------------------------------------------------------------------------------------- the plan

    def start(self, now: float) -> None:
        """Begin the next generation once everything that it needs is ready."""
        job = self.job
        assert job.generation is not None
        sizes = {"worker": list(job.generation.workers), "server": list(job.generation.servers)}
        for role, present in sizes.items():
            starting = job.starting(role)
            surplus = max(0, len(present) + len(starting) - job.target[role])
            for name in starting[max(0, len(starting) - surplus) :]:
                self._dismiss(name)
                starting.remove(name)
            if any(name not in job.processes or not job.processes[name].ready for name in starting):
                return
            sizes[role] = (present + starting)[: job.target[role]]
        unchanged = (tuple(sizes["worker"]), sizes["server"]) == (job.generation.workers, list(job.generation.servers))
        if unchanged and not self._ahead:
            self._conclude_resize()  # where the rest of it was given up
            if len(sizes["worker"]) == job.target["worker"] and len(sizes["server"]) == job.target["server"]:
                job.answer()
            if not job.checkpoints:
                return
        joining = not set(sizes["worker"]).issubset(job.generation.workers)
        moves = self._next_moves(sizes["server"], joining)
        servers = sizes["server"]
        if self._ahead:  # those that leave have something left
            servers = list(dict.fromkeys([*job.generation.servers, *servers]))
        addresses = {s: job.processes[s].address for s in servers}
        self._last_generation += 1
        self._prepare(m.Generation(self._last_generation, tuple(sizes["worker"]), addresses), moves, now)

    def _next_moves(self, servers: List[str], joining: bool) -> List[m.Move]:
        """What the next generation moves on the way to `servers`; the rest is ahead.

        Args:
            joining: workers join with it, whose first pull of everything is enough for one step.
        """
        job = self.job
        if not self._ahead or self._ahead_for != servers:
            self._look_no_further()
            self._ahead, self._ahead_for = job.table.plan(servers), servers
        sums = list(itertools.accumulate(job.table.size[move.slice] for move in self._ahead))
        count = bisect.bisect_right(sums, self._move_bytes)
        if count < len(sums):
            count = 0 if joining else max(1, count)
        moves, self._ahead = self._ahead[:count], self._ahead[count:]
        return moves

    def lasting_servers(self) -> List[str]:
        """Those on which new slices are safe: the plan under way and what is ahead leave them in."""
        job = self.job
        assert job.generation is not None
        lasting = [s for s in job.generation.servers if job.plan is None or s in job.plan.generation.servers]
        return [s for s in lasting if s in self._ahead_for] if self._ahead else lasting

    def _look_no_further(self) -> None:
        """Give up what was to be moved after the plan under way."""
        self.job.table.drop(self._ahead)
        self._ahead = []

    def _prepare(self, generation: m.Generation, moves: List[m.Move], now: float) -> None:
        """Make the plan that leads to `generation` and announce it to everyone whom it concerns."""
        job = self.job
        assert job.generation is not None
        concerned = job.concerned(generation)
        workers = {w for w in job.generation.workers if w not in job.finished}
        plan = job.plan = Plan(
            generation,
            moves,
            now,
            awaited={n for n in concerned if n not in job.finished},
            unswitched=set(workers),
            unsettled={w for w in workers if w in generation.workers},
            moving={*job.generation.servers, *generation.servers},
        )
        plan.checkpoints, job.checkpoints = job.checkpoints[:1], job.checkpoints[1:]
        folder = "".join(f"{place}/{self._parts(generation)}" for _, _, place in plan.checkpoints)
        carry = bool(folder) or bool(job.joining(plan))
        prepare = m.Prepare(generation=generation, moves=plan.moves, checkpoint=folder, carry=carry)
        for name in concerned:
            job.send(name, prepare)

    def drop(self) -> None:
        """Undo a plan that was not committed; its number is not used again."""
        job = self.job
        assert job.plan is not None and job.plan.step is None
        self._look_no_further()
        job.table.drop(job.plan.moves)
        dropped, job.plan = job.plan, None
        job.checkpoints = [*dropped.checkpoints, *job.checkpoints]
        for name in job.concerned(dropped.generation):
            if name in job.processes:
                job.send(name, m.Drop(generation=dropped.generation.number))

    def advance(self, now: float) -> None:
        """Take the plan under way, if there is one, as far as the answers to it allow."""
        plan = self.job.plan
        if plan is None:
            return
        if plan.step is None and not plan.awaited:
            self._commit(plan)
        if plan.step is not None:
            self._conclude(plan, now)

    def _commit(self, plan: Plan) -> None:
        plan.step = plan.horizon + 1
        for name in self.job.concerned(plan.generation):
            self.job.send(name, m.Commit(generation=plan.generation.number, step=plan.step))

    def begin(self, plan: Plan, position: m.Position, pushed: List[int], finished: bool = False) -> None:
        """Tell the joining workers where to begin, as soon as the first member knows."""
        if plan.begun:
            return
        plan.begun = True
        assert plan.step is not None
        first_steps = self.job.first_steps
        since = [i for i, (step, _) in enumerate(first_steps) if step <= position.epoch_step]
        groups = [*first_steps[since[-1] if since else 0 :], (plan.step, len(plan.generation.workers))]
        plan.position = position = m.Position(position.epoch, position.epoch_step, plan.step, tuple(groups))
        begin = m.Begin(generation=plan.generation.number, position=position, pushed=pushed, finished=finished)
        for name in self.job.joining(plan):
            self.job.send(name, begin)

    # ------------------------------------------------------------------------------------------------ in force

    def _conclude(self, plan: Plan, now: float) -> None:
        """Finish a committed plan when all workers have switched, all slices arrived and the cost is known."""
        job = self.job
        assert job.generation is not None and plan.step is not None
        if not plan.unswitched:
            self.begin(plan, m.Position(step=plan.step), [], finished=True)
        if plan.unswitched or plan.moving:
            return
        if plan.in_force_at is None:
            plan.in_force_at = now
        if plan.unsettled and not self._ahead:
            return
        before, job.generation, job.plan = job.generation, plan.generation, None
        job.finished.update(w for w in before.workers if w not in plan.generation.workers)
        job.table.carry_out(plan.moves, list(plan.generation.servers))
        job.first_steps.append((plan.step, len(plan.generation.workers)))
        for name in (s for s in before.servers if s not in plan.generation.servers):
            job.finished.add(name)
            job.send(name, m.Release(reason="its slices are with other servers"))
        for client, request, folder in plan.checkpoints:
            servers = sorted({*before.servers, *plan.generation.servers})
            job.written.append(Written(client, request, folder, self._manifest(plan, servers), plan.unsaved))
        if set(members(before)) != set(members(plan.generation)):
            for name in job.concerned(before):
                job.send(name, m.NewGeneration(generation=plan.generation.number))
        if plan.migration_seconds:
            rate = plan.bytes_in / plan.migration_seconds
            self._move_bytes = max(job.settings.move_bytes, int(rate * MOVE_SECONDS))
        self._before = self._before or before
        job.concluded.append(plan)
        if not self._ahead:
            self._conclude_resize()

    def _conclude_resize(self) -> None:
        """All that the resize under way takes is in force: tell what it cost, and answer who waits for it."""
        job = self.job
        before, parts = self._before, job.concluded
        self._before, job.concluded = None, []
        if before is None or set(members(before)) == set(members(parts[-1].generation)):
            return
        job.resizes.append(cost(parts, before, [asked for _, _, asked in job.requests]))
        if all(job.target[role] == job.size(role) for role in job.target):
            job.answer(job.resizes[-1])

    def _manifest(self, plan: Plan, servers: List[str]) -> Manifest:
        """What makes the parts that the servers wrote a checkpoint."""
        job = self.job
        optimizers = {str(store): optimizer.description for store, optimizer in job.optimizers.items()}
        parts = self._parts(plan.generation)
        return Manifest(FORMAT, parts, job.settings.slice_bytes, job.table.keys, plan.position, optimizers, servers)

    def _parts(self, generation: m.Generation) -> str:
        """The name of the folder for the parts of the checkpoint that `generation` begins with."""
        return f"parts-{self.job.run}-{generation.number}"


def cost(parts: Sequence[Plan], before: m.Generation, asked: List[float]) -> Dict[str, Any]:
    """What `scale` prints of a resize; all durations in seconds.

    Args:
        parts: the plans that it took, all in force; `step` is the first one's.
        before: the generation that the first took the place of.
        asked: when each of the requests was made that it answers.
    """
    first, last = parts[0], parts[-1]
    assert last.in_force_at is not None
    counts: Tuple[Tuple[str, int, int], ...] = (
        ("server", len(before.servers), len(last.generation.servers)),
        ("worker", len(before.workers), len(last.generation.workers)),
    )
    return {
        "generation": last.generation.number,
        "kind": ", ".join(
            f"{after - count:+d} {role}{'' if abs(after - count) == 1 else 's'}"
            for role, count, after in counts
            if after != count
        ),
        "step": first.step,
        "bytes_moved": sum(part.bytes_in for part in parts),
        "startup_seconds": first.started - min([first.started, *asked]),
        "seconds": last.in_force_at - first.started,
        "migration_seconds": sum(part.migration_seconds for part in parts),
        "longest_stall_seconds": max(part.stall_seconds for part in parts),
        "median_step_seconds": max(part.median_step_seconds for part in parts),
        "workers": len(last.generation.workers),
        "servers": len(last.generation.servers),
    }
