"""Trains a small dense net on data that depends on the worker's rank, with any kvstore; saves the weights.

For STEPS steps, or until the file STOP exists for some worker.
"""

import json
import os
import time

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

steps = int(os.environ.get("STEPS", "12"))
stop = os.environ.get("STOP", "")
kv = mx.kv.create(os.environ.get("KVSTORE", "dist_elastic"))
rng = np.random.RandomState(100 + kv.rank)
mx.random.seed(7)
net = gluon.nn.Sequential()
net.add(gluon.nn.Dense(300, in_units=40, activation="tanh"), gluon.nn.Dense(10, in_units=300))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(
    net.collect_params(),
    os.environ.get("OPTIMIZER", "sgd"),
    json.loads(os.environ.get("PARAMETERS", '{"learning_rate": 0.05}')),
    kvstore=kv,
    update_on_kvstore=os.environ.get("UPDATE", "server") == "server",
)
if os.environ.get("KVSTORE") == "dist_sync" and os.environ.get("UPDATE") == "worker":
    # A push does not wait there for the pull of the first weights, which may then bring gradients instead.
    trainer._init_kvstore()
    trainer._init_params()
    mx.nd.waitall()
if stop:
    asking = mx.kv.create("dist_elastic")
    asking.init("stop", mx.nd.zeros((1,)))
loss = gluon.loss.L2Loss()
for step in range(steps):
    x = mx.nd.array(rng.randn(16, 40))
    y = mx.nd.array(rng.randn(16, 10))
    with autograd.record():
        value = loss(net(x), y)
    value.backward()
    trainer.step(16 * kv.num_workers)
    value.wait_to_read()
    if stop:
        asked = mx.nd.ones((1,)) * os.path.exists(stop)
        asking.pushpull("stop", asked)
        if asked.asscalar() > 0:
            steps = step + 1
            break
        time.sleep(0.01)
if "OUT" in os.environ:
    values = [p.data().asnumpy() for p in net.collect_params().values()]
    np.savez(os.environ["OUT"] + ".npz", *values, steps=steps)
if os.environ.get("KVSTORE") == "dist_sync":
    kv._barrier()
