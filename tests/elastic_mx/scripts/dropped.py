"""A push whose gradient MXNet cannot compute, so that MXNet drops it; the script takes no notice."""

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx

kv = mx.kv.create("dist_elastic")
kv.init("a", mx.nd.ones((2, 2)))
try:
    kv.push("a", mx.nd.linalg.potrf(-mx.nd.ones((2, 2))))
    mx.nd.waitall()
except mx.base.MXNetError:
    print("went on")
