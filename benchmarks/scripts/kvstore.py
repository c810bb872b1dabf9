"""A worker of benchmarks.kvstore: pushes and pulls all keys when it is told to, and reports how long that took.

Works with either store; which one, KVSTORE says.
"""

import os
import time

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx
from benchmarks.common import keys
from benchmarks.turns import Turns

PARAMETERS = {"sgd": {"learning_rate": 0.01, "momentum": 0.9}, "adam": {"learning_rate": 0.001}}


def main() -> None:
    shapes = keys(os.environ["KEYS"])
    optimizer = os.environ["OPTIMIZER"]
    kv = mx.kv.create(os.environ.get("KVSTORE", "dist_elastic"))
    names = list(range(len(shapes)))
    gradients = [mx.nd.ones(shape) for shape in shapes]
    outs = [mx.nd.zeros(shape) for shape in shapes]
    if optimizer != "none":
        kv.set_optimizer(mx.optimizer.create(optimizer, rescale_grad=1.0, **PARAMETERS[optimizer]))
    kv.init(names, outs)
    kv.pull(names, out=outs)
    mx.nd.waitall()
    turns = Turns(rank=kv.rank)
    for message in turns:
        iterations = message["iterations"]
        for gradient in gradients:
            gradient[:] = 1  # dist_sync's pull writes into what was pushed
        mx.nd.waitall()
        began = time.perf_counter()
        for _ in range(iterations):
            kv.push(names, gradients)
            kv.pull(names, out=outs)
            mx.nd.waitall()
        elapsed = time.perf_counter() - began
        turns.report(ms=1000 * elapsed / iterations, values=[float(outs[i][0].mean().asscalar()) for i in (0, -1)])
    kv._barrier()


if __name__ == "__main__":
    main()
