"""A raw kvstore script: STEPS rounds of pushing and pulling sums, or until the file STOP exists for some worker."""

import json
import os
import time

import elastic_mx
import mxnet as mx
import numpy as np

steps = int(os.environ.get("STEPS", "20"))
stop = os.environ.get("STOP", "")
shapes = [(3,), (700, 100), (1,), (40, 5, 2)]
kv = mx.kv.create("dist_elastic")
for i, shape in enumerate(shapes):
    kv.init(i, mx.nd.zeros(shape))
kv.init("stop", mx.nd.zeros((1,)))
totals, resizes = [], []
elastic_mx.on_resize(lambda event: resizes.append({**event, "dead": kv.get_num_dead_node()}))  # asks the job within
for _ in range(steps):
    outs = [mx.nd.zeros(shape) for shape in shapes]
    for i, shape in enumerate(shapes):
        kv.push(i, mx.nd.ones(shape) * (i + 1))
        kv.pull(i, out=outs[i])
    if stop:
        asked = mx.nd.ones((1,)) * os.path.exists(stop)
        kv.pushpull("stop", asked)
    totals.append([float(out.asnumpy().mean()) for out in outs])
    if stop and asked.asscalar() > 0:
        break
    time.sleep(float(os.environ.get("PAUSE", "0")))
if "OUT" in os.environ:
    np.save(os.environ["OUT"] + ".npy", np.array(totals))
    with open(os.environ["OUT"] + ".json", "w") as file:
        json.dump(resizes, file)
