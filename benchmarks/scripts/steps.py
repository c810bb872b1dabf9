"""A worker of benchmarks.resize: steps of a model's size until it is ended; writes when each began and ended.

A step computes for COMPUTE_MS without using a core, as on an accelerator, then pushes and pulls all keys. Each line of
the file OUT holds the step's number and the times in seconds, of the clock that all processes of the host share.
"""

import os
import time

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx
from benchmarks.common import keys
from elastic_mx.kvstore import worker


def main() -> None:
    shapes = keys(os.environ["KEYS"])
    kv = mx.kv.create("dist_elastic")
    names = list(range(len(shapes)))
    gradients = [mx.nd.ones(shape) for shape in shapes]
    weights = [mx.nd.zeros(shape) for shape in shapes]
    mx.nd.waitall()
    kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.01, momentum=0.9))
    kv.init(names, weights)
    kv.pull(names, out=weights)
    mx.nd.waitall()
    with open(os.environ["OUT"], "a") as file:
        while True:
            began = time.monotonic()
            time.sleep(float(os.environ["COMPUTE_MS"]) / 1000)
            kv.push(names, gradients)
            kv.pull(names, out=weights)
            mx.nd.waitall()
            step = (worker().step() or 0) - 1
            print(step, began, time.monotonic(), float(weights[0][0].mean().asscalar()), file=file, flush=True)


if __name__ == "__main__":
    main()
