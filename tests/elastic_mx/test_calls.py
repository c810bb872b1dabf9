"""Every call of MXNet's KVStore, from two workers at once."""

import pytest

from tests.elastic_mx.harness import Job


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_every_call_does_what_mxnet_documents(tmp_path, transport):
    with Job("calls.py", workers=2, servers=2, out=tmp_path, transport=transport, slice_bytes=1024) as job:
        assert set(job.wait().values()) == {0}


@pytest.mark.parametrize("call", ["push", "pull"])
def test_an_array_of_another_size_than_its_key_ends_the_job_and_names_the_key(tmp_path, call):
    with Job("wrong_size.py", workers=2, servers=1, out=tmp_path, CALL=call) as job:
        ended = job.wait(30)
    assert (ended["worker-0"], ended["worker-1"]) == (1, 1)
    told = (tmp_path / "worker-0").read_text()
    assert told == "key 'a' of shape (3, 4): an array of 5 float32 is used with a key of 12 float32"


def test_a_push_that_mxnet_drops_is_not_waited_for_and_the_script_has_not_succeeded(tmp_path):
    with Job("dropped.py", workers=1, servers=1, out=tmp_path) as job:
        assert job.wait(20)["worker-0"] == 1


def test_a_fork_of_a_worker_is_told_that_it_has_no_part_in_the_job(tmp_path):
    with Job("forked.py", workers=1, servers=1, out=tmp_path) as job:
        assert set(job.wait(30).values()) == {0}
