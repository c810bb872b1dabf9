"""Every call of MXNet's KVStore, from two workers at once."""

import pytest

from tests.elastic_mx.harness import Job


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_every_call_does_what_mxnet_documents(tmp_path, transport):
    with Job("calls.py", workers=2, servers=2, out=tmp_path, transport=transport, slice_bytes=1024) as job:
        assert set(job.wait().values()) == {0}
