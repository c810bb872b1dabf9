"""A job goes on from a checkpoint that was taken while it trained, with other numbers of servers and workers."""

import json

import numpy as np
import pytest

from elastic_mx import messages as m
from elastic_mx.checkpoint import CheckpointError, Reader, read_manifest
from tests.elastic_mx.harness import Job


def results(folder):
    return {
        path.stem: (json.loads(path.read_text()), dict(np.load(path.with_suffix(".npz"))))
        for path in folder.glob("*.json")
    }


@pytest.mark.parametrize("update", ["server", "worker"])
def test_a_job_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path, update):
    before, after, saved = tmp_path / "before", tmp_path / "after", tmp_path / "checkpoint"
    for folder in (before, after, saved):
        folder.mkdir()
    env = dict(UPDATE=update, EPOCHS=12, NORM=0, OPTIMIZER="adam", PARAMETERS='{"learning_rate": 0.01}')
    with Job("gluon.py", workers=2, servers=1, out=before, PAUSE=0.05, **env) as job:
        job.wait_for_step(25)
        reply = job.request(m.Checkpoint(request=1, folder=str(saved)))
        assert reply.error == ""
        assert set(job.wait().values()) == {0}
    parts = list(saved.glob("parts-*"))
    with Job("gluon.py", workers=3, servers=2, out=after, restore=saved, **env) as job:
        assert job.request(m.Checkpoint(request=1, folder=str(saved))).error == ""
        assert set(job.wait().values()) == {0}
    assert len(parts) == 1 and not parts[0].exists(), "never written over, but replaced when the next one was whole"
    step = reply.body["step"]
    first, second = results(before), results(after)
    used = [i for record, _ in first.values() for _, batch in record["used"][:step] for i in batch]
    used += [i for record, _ in second.values() for _, batch in record["used"] for i in batch]
    assert sorted(used) == sorted(list(range(480)) * 12), "each sample once per epoch across the two jobs"
    for parameter, value in second["worker-0"][1].items():
        np.testing.assert_allclose(value, first["worker-0"][1][parameter], rtol=1e-4, atol=1e-5)


def test_a_folder_without_a_checkpoint_is_told_in_one_line(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no checkpoint: manifest\.json cannot be read"):
        read_manifest(tmp_path)


def test_a_part_that_is_cut_off_is_found_out(tmp_path):
    with Job("rounds.py", workers=1, servers=1, STEPS=100000, PAUSE=0.01, STOP=tmp_path / "stop") as job:
        job.wait_for_step(3)
        assert job.request(m.Checkpoint(request=1, folder=str(tmp_path))).error == ""
        (tmp_path / "taken").write_text("")
        refused = job.request(m.Checkpoint(request=2, folder=str(tmp_path / "taken")))
        assert refused.error.startswith("there is no new checkpoint, and the job goes on: server-0 cannot write")
        assert job.request(m.Checkpoint(request=3, folder=str(tmp_path))).error == ""
        (tmp_path / "stop").touch()
        assert set(job.wait().values()) == {0}
    parts = list(tmp_path.glob("parts-*/server-0.part"))
    assert len(parts) == 1, "the checkpoint before is gone"
    Reader(tmp_path)
    with open(parts[0], "r+b") as file:
        file.truncate(parts[0].stat().st_size - 10)
    with pytest.raises(CheckpointError, match=r"server-0.part is damaged: it ends after"):
        Reader(tmp_path)
    parts[0].unlink()
    with pytest.raises(CheckpointError, match=r"is not whole: parts-.*/server-0.part is missing"):
        Reader(tmp_path)
