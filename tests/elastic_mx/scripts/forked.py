"""Forks: the child is told that it has no part in the job, and ends as it likes; the script goes on."""

import os
import sys

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx
from elastic_mx.link import JobError

kv = mx.kv.create("dist_elastic")
weight = mx.nd.zeros((3,))
kv.init(0, weight)
for call in (lambda: kv.push(0, weight), lambda: kv.pull(0, out=weight), lambda: kv.init(1, weight)):
    child = os.fork()
    if child == 0:
        try:
            call()
        except JobError as error:
            sys.exit(7 if "was forked from worker-0" in str(error) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
kv.push(0, mx.nd.ones((3,)))
kv.pull(0, out=weight)
assert weight.asnumpy().tolist() == [1, 1, 1]
