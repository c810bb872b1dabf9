"""A Gluon script with deferred shapes and BatchNorm that records which samples it used and what it ends with.

It pauses PAUSE seconds after each step until the file STOP exists.
"""

import json
import os
import time

import elastic_mx
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

N, BATCH, EPOCHS = int(os.environ.get("N", "480")), 48, int(os.environ.get("EPOCHS", "4"))
rng = np.random.RandomState(0)
features = rng.randn(N, 12).astype("float32")
labels = (features @ rng.randn(12, 3)).argmax(axis=1).astype("float32")
indices = np.arange(N, dtype="float32")

mx.random.seed(7)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(16), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"), gluon.nn.Dense(3))
if os.environ.get("NORM") == "0":
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu"), gluon.nn.Dense(3))
net.initialize(mx.init.Xavier())
if os.environ.get("DEFERRED", "1") == "0":
    net(mx.nd.zeros((2, 12)))
trainer = gluon.Trainer(
    net.collect_params(),
    os.environ.get("OPTIMIZER", "sgd"),
    json.loads(os.environ.get("PARAMETERS", '{"learning_rate": 0.1, "momentum": 0.9}')),
    kvstore=os.environ.get("KVSTORE", "dist_elastic"),
    update_on_kvstore=os.environ.get("UPDATE", "server") == "server",
)
loss = gluon.loss.SoftmaxCrossEntropyLoss()
loader = gluon.data.DataLoader(
    gluon.data.ArrayDataset(features, labels, indices),
    batch_sampler=elastic_mx.data.BatchSampler(N, BATCH, seed=3),
    num_workers=int(os.environ.get("LOADERS", "0")),
)
used, before = [], []


def state():
    """All parameters, statistics among them, as one list; None while shapes are not known."""
    parameters = net.collect_params().values()
    if any(p._deferred_init for p in parameters):
        return None
    return [float(x) for p in parameters for x in p.data().asnumpy().ravel()]


for epoch in elastic_mx.epochs(EPOCHS):
    for x, y, index in loader:
        if os.environ.get("STATES"):
            before.append(state())
        used.append([epoch, [int(i) for i in index.asnumpy()]])
        with autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(BATCH)
        value.wait_to_read()
        if not os.path.exists(os.environ.get("STOP", "")):
            time.sleep(float(os.environ.get("PAUSE", "0")))
accuracy = float((net(mx.nd.array(features)).argmax(axis=1).asnumpy() == labels).mean())
if "OUT" in os.environ:
    values = {str(i): p.data().asnumpy() for i, p in enumerate(net.collect_params().values())}
    np.savez(os.environ["OUT"] + ".npz", **values)
    with open(os.environ["OUT"] + ".json", "w") as file:
        json.dump({"used": used, "accuracy": accuracy, "before": before}, file)
