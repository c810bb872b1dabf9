"""The coordinator's decisions: what each message of a process changes, and what is sent for it.

A pure machine: `handle` takes a message (and the time) and returns the messages to send. Sockets and clocks are
coordinator.py's, what is known of the job is job_state.py's, and how a generation follows another planning.py's.
"""

from __future__ import annotations

import signal
from typing import Iterable, List, Optional

from elastic_mx import messages as m
from elastic_mx.checkpoint import Manifest
from elastic_mx.job_state import JobState, Outbox, members
from elastic_mx.planning import Planner
from elastic_mx.settings import JobSettings


class CoordinatorMachine:
    """One job's coordinator; `job` is what it knows.

    Args:
        settings: what all processes of the job agree on.
        restored: the checkpoint that the job goes on from, if it does.
        run: tells this run's checkpoints from those that a folder holds of others.
    """

    def __init__(self, settings: JobSettings, restored: Optional[Manifest] = None, run: str = "0") -> None:
        self.job = JobState(settings, restored, run=run)
        self._planner = Planner(self.job)
        self._deferred: List[m.Register] = []  # that came while a plan was under way

    def handle(self, sender: str, message: m.Message, now: float) -> Outbox:
        """Take a message from process `sender` at time `now` (seconds, any origin); return what to send to whom.

        Raises:
            InvalidTransition: the message cannot be right in this state. Nothing has changed then.
        """
        job = self.job
        job.out = []
        job.story.append(f"{sender}: {message}")
        if sender in job.gone:
            if isinstance(message, m.Register):
                job.send(sender, m.Release(reason="it is not needed any more"))
            return job.out
        getattr(self, "_on_" + type(message).__name__.lower())(sender, message, now)
        self._advance(now)
        return job.out

    def _advance(self, now: float) -> None:
        """Do whatever the state now allows."""
        job = self.job
        if job.generation is None and not self._planner.form_first_generation():
            return
        self._planner.advance(now)
        if job.plan is None and not job.over:
            deferred, self._deferred = self._deferred, []
            for register in deferred:
                self._planner.admit(register)
            if job.has_finished():
                self._end("every worker has finished")
            else:
                self._planner.launch_missing()
                self._planner.start(now)

    def _end(self, reason: str, status: int = 0) -> None:
        job = self.job
        if job.over:
            return
        job.over = True
        for client, request, _ in [*job.checkpoints, *(job.plan.checkpoints if job.plan else [])]:
            job.send(client, m.Reply(request=request, error=f"job {job.settings.name!r}: {reason}"))
        job.answer(error=f"job {job.settings.name!r}: {reason}")
        for name in [*job.processes, *job.launchers]:
            job.send(name, m.Release(reason=reason, status=status))

    # ---------------------------------------------------------------------------------- processes come and go

    def _on_register(self, sender: str, message: m.Register, now: float) -> None:
        job = self.job
        if message.protocol != m.PROTOCOL:
            job.send(
                sender,
                m.Refused(
                    reason=f"{sender} speaks protocol {message.protocol}, this job {m.PROTOCOL}: "
                    "use one release of elastic-mx for all of a job's processes"
                ),
            )
        elif message.role == "launcher":
            job.launchers.append(sender)
            for name, role in job.launched.items():
                if name not in job.processes:
                    job.send(sender, m.Launch(role=role, name=name))
            self._planner.launch_missing()
        elif message.role == "client":
            pass
        elif message.role not in ("server", "worker"):
            job.send(sender, m.Refused(reason=f"{sender} registers as {message.role!r}, which is no role"))
        elif sender in job.processes:
            job.send(sender, m.Refused(reason=f"this job has a process named {sender!r} already"))
        elif job.plan is not None and job.generation is not None:
            self._deferred.append(message)
        else:
            self._planner.admit(message)

    def _on_ready(self, sender: str, message: m.Ready, now: float) -> None:
        process = self.job.process(sender)
        process.ready = True
        if message.max_workers:
            process.max_workers = message.max_workers

    def _on_report(self, sender: str, message: m.Report, now: float) -> None:
        self.job.process(sender).progress = message.progress

    def _on_goodbye(self, sender: str, message: m.Goodbye, now: float) -> None:
        job = self.job
        job.finished.add(job.process(sender).name)
        if job.settings.drop_in and job.generation is not None and sender in job.generation.workers:
            # Its script dealt itself fewer samples; the others go on without it.
            job.target["worker"] = max(1, job.target["worker"] - 1)
        for name, process in job.processes.items():
            # One that came too late for a channel to it would wait for this worker's markers.
            if process.role == "server" and name not in message.told:
                job.send(name, m.Left(worker=sender))
        if job.plan is not None:
            job.plan.awaited.discard(sender)
            job.plan.unswitched.discard(sender)
            job.plan.unsettled.discard(sender)

    def _on_exited(self, sender: str, message: m.Exited, now: float) -> None:
        """A process is gone: a member that failed ends the job, a joining process costs its plan at most."""
        job = self.job
        name, status = message.name, message.status
        counts = job.counts_on(name)
        job.gone.add(name)
        role = job.launched.pop(name, None)
        job.processes.pop(name, None)
        self._deferred = [register for register in self._deferred if register.name != name]
        if status:
            job.dead.add(name)
        if counts and status:
            self._end(f"{name} failed with {m.spoken(status)}", status)
        if counts or role is None or name in job.finished or job.over:
            return
        if job.plan is not None and name in members(job.plan.generation):
            self._planner.drop()
        job.target[role] = job.size(role, job.plan.generation if job.plan is not None else None)
        job.answer(error=f"{name} ended with status {status} before it joined; the job goes on without it")

    # ----------------------------------------------------------------------------------- keys and optimizers

    def _on_definekeys(self, sender: str, message: m.DefineKeys, now: float) -> None:
        job = self.job
        job.process(sender)
        among = self._planner.lasting_servers()
        known = len(job.table.keys)
        numbers = []
        for spec in message.keys:
            try:
                job.table.define(spec, among)
            except ValueError as error:
                job.send(sender, m.Refused(reason=str(error)))
                return
            numbers.append(job.table.index[spec.store, spec.key])
        if len(job.table.keys) > known:
            news = self._placed(range(known, len(job.table.keys)))
            for name in job.processes:
                if name != sender:  # every process knows the slices that a plan moves
                    job.send(name, news)
        job.send(sender, self._placed(numbers, message.request))

    def _placed(self, numbers: Iterable[int], request: int = 0) -> m.KeysPlaced:
        assert self.job.generation is not None
        return m.KeysPlaced(
            request=request,
            generation=self.job.generation.number,
            keys=[self.job.table.placed(number) for number in numbers],
        )

    def _on_setoptimizer(self, sender: str, message: m.SetOptimizer, now: float) -> None:
        """Keep a store's optimizer for servers that come later; those there have it from the worker directly."""
        self.job.optimizers[message.store] = message
        for name, process in self.job.processes.items():
            if process.role == "server":
                self.job.send(name, message)

    # ------------------------------------------------------------------------------- what the plan waits for

    def _on_horizon(self, sender: str, message: m.Horizon, now: float) -> None:
        job = self.job
        if job.plan is None or job.plan.generation.number != message.generation:
            return  # it answers a plan that was dropped
        plan = job.plan
        plan.awaited.discard(sender)
        plan.horizon = max(plan.horizon, message.step)

    def _on_switched(self, sender: str, message: m.Switched, now: float) -> None:
        plan = self.job.planned(message.generation, f"{sender} switches to")
        plan.unswitched.discard(sender)
        self._planner.begin(plan, message.position, message.pushed)

    def _on_settled(self, sender: str, message: m.Settled, now: float) -> None:
        for plan in [*self.job.concluded, *([self.job.plan] if self.job.plan else [])]:
            if plan.generation.number == message.generation:
                plan.unsettled.discard(sender)
                plan.stall_seconds = max(plan.stall_seconds, message.stall_seconds)
                plan.median_step_seconds = max(plan.median_step_seconds, message.median_step_seconds)

    def _on_inforce(self, sender: str, message: m.InForce, now: float) -> None:
        plan = self.job.planned(message.generation, f"{sender} reports in force")
        plan.moving.discard(sender)
        plan.bytes_in += message.bytes_in
        plan.unsaved = plan.unsaved or message.unsaved
        plan.migration_seconds = max(plan.migration_seconds, message.seconds)

    # ---------------------------------------------------------------------------------------------- requests

    def _on_scale(self, sender: str, message: m.Scale, now: float) -> None:
        job = self.job
        wanted = {"worker": message.workers, "server": message.servers}
        error = job.why_not(wanted)
        if error:
            job.send(sender, m.Reply(request=message.request, error=error))
            return
        job.target.update({role: size for role, size in wanted.items() if size is not None})
        job.requests.append((sender, message.request, now))
        self._planner.launch_missing()

    def _on_checkpoint(self, sender: str, message: m.Checkpoint, now: float) -> None:
        error = self.job.why_not({"worker": None, "server": None})
        if error:
            self.job.send(sender, m.Reply(request=message.request, error=error))
        else:
            self.job.checkpoints.append((sender, message.request, message.folder))

    def _on_status(self, sender: str, message: m.Status, now: float) -> None:
        self.job.send(sender, m.Reply(request=message.request, body=self.job.status()))

    def _on_stop(self, sender: str, message: m.Stop, now: float) -> None:
        self._end("the job was stopped", -signal.SIGTERM)
        self.job.send(sender, m.Reply(request=message.request))
