"""Uses a key with an array of another size, as CALL says; writes what it is told, and must not wait for ever."""

import os
from pathlib import Path

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx
from elastic_mx.link import JobError

kv = mx.kv.create("dist_elastic")
kv.init("a", mx.nd.ones((3, 4)))
getattr(kv, os.environ["CALL"])("a", mx.nd.ones((5,)))
mx.nd.waitall()
weight = mx.nd.zeros((3, 4))
try:
    while True:
        kv.pull("a", out=weight)
        weight.wait_to_read()
except JobError as error:
    Path(os.environ["OUT"]).write_text(str(error))
