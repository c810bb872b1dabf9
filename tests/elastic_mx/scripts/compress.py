"""Pushes seeded gradients under COMPRESSION into SGD with rate 1; saves the weights, residuals and gradients' sums."""

import json
import os
import time

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx
import numpy as np

steps = int(os.environ.get("STEPS", "8"))
stop = os.environ.get("STOP", "")
native = os.environ.get("KVSTORE") == "dist_sync"
kv = mx.kv.create(os.environ.get("KVSTORE", "dist_elastic"))
kv.set_gradient_compression(json.loads(os.environ["COMPRESSION"]))
kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=1.0, rescale_grad=1.0))
shapes = [(700, 100), (1,), (3, 37)]
outs = [mx.nd.zeros(shape) for shape in shapes]
kv.init(list(range(3)), outs)
rng = np.random.RandomState(kv.rank)
sums = [np.zeros(shape) for shape in shapes]
if stop:
    asking = mx.kv.create("dist_elastic")
    asking.init("stop", mx.nd.zeros((1,)))
mx.nd.waitall()
for _ in range(steps):
    gradients = [rng.randn(*shape).astype("float32") for shape in shapes]
    for i, gradient in enumerate(gradients):
        sums[i] += gradient
        kv.push(i, mx.nd.array(gradient))
        kv.pull(i, out=outs[i])
    mx.nd.waitall()
    if stop:
        asked = mx.nd.ones((1,)) * os.path.exists(stop)
        asking.pushpull("stop", asked)
        if asked.asscalar() > 0:
            break
        time.sleep(0.01)
residuals = [] if native else [kv.residual(i) for i in range(3)]
np.savez(os.environ["OUT"] + ".npz", *[out.asnumpy() for out in outs], *residuals, *sums)
if native:
    kv._barrier()
