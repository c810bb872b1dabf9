"""The control client against a real coordinator process: answers, refusals, and silence told in bounded time."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Iterator, Tuple

import pytest

from elastic_mx import messages as m
from elastic_mx.client import ControlClient, Declined, NoAnswer
from elastic_mx.link import JobError


@pytest.fixture
def coordinator() -> Iterator[Tuple[subprocess.Popen, str]]:
    command = [sys.executable, "-m", "elastic_mx.coordinator", "--name=digits", "--workers=2", "--servers=1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process, json.loads(process.stdout.readline())["coordinator"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_job_that_starts_tells_its_state(coordinator):
    with ControlClient(coordinator[1], "digits") as client:
        body = client.status()
    assert body["name"] == "digits" and body["state"] == "starting"
    assert body["target"] == {"workers": 2, "servers": 1}


def test_a_size_that_cannot_be_is_declined_with_the_reason(coordinator):
    with ControlClient(coordinator[1], "digits") as client, pytest.raises(Declined, match="workers=0 is too few"):
        client.scale(workers=0)


def test_a_launcher_is_asked_for_the_processes_and_a_scale_waits_for_them(coordinator):
    with ControlClient(coordinator[1], "digits", role="launcher") as launcher, ControlClient(coordinator[1]) as client:
        asked = [launcher.receive(5) for _ in range(3)]
        assert sorted(message.name for message in asked) == ["server-0", "worker-0", "worker-1"]
        with pytest.raises(NoAnswer, match=r"is not at 3 workers after 0.5 s"):
            client.scale(workers=3, timeout=0.5)
        assert launcher.receive(5) == m.Launch(role="worker", name="worker-2")


def test_a_scale_that_waits_is_answered_when_the_job_is_stopped(coordinator):
    with ControlClient(coordinator[1]) as client, ControlClient(coordinator[1]) as other:
        stopping = threading.Timer(0.5, other.stop)
        stopping.start()
        with pytest.raises(Declined, match="the job was stopped"):
            client.scale(workers=3)
        stopping.join()


def test_nobody_at_the_address_is_told_with_job_and_address():
    begun = time.monotonic()
    with ControlClient("tcp://127.0.0.1:9", "digits", patience=0.5) as client, pytest.raises(NoAnswer) as error:
        client.status()
    assert "job 'digits' does not answer at tcp://127.0.0.1:9 (waited 0.5 s)" in str(error.value)
    assert time.monotonic() - begun < 2


def test_a_coordinator_that_freezes_while_a_scale_waits_is_noticed(coordinator):
    process, address = coordinator
    with ControlClient(address, "digits", patience=0.8) as client:
        client.status()
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(NoAnswer, match="does not answer"):
            client.scale(workers=3)


def test_a_scale_that_takes_longer_than_the_patience_goes_on_while_the_coordinator_lives(coordinator):
    with ControlClient(coordinator[1], "digits", patience=0.4) as client, pytest.raises(NoAnswer, match=r"after 1.5 s"):
        client.scale(workers=3, timeout=1.5)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "tcp://", "ftp://host:1"])
def test_what_is_no_address_is_refused_at_once(address):
    with pytest.raises(JobError, match="is no address of a job's coordinator"):
        ControlClient(address)


def test_the_client_needs_neither_mxnet_nor_numpy_nor_torch():
    code = "import sys, elastic_mx.client; print(sorted({'mxnet', 'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
