"""Raw kvstore: a least-squares fit by hand with init, push and pull, whose servers and workers may change meanwhile.

elastic-mx launch -n 2 -s 2 --name fit -- python examples/raw_kvstore.py --pause 0.05    # about a minute
elastic-mx scale fit --servers 1                                             # in a second terminal, meanwhile
elastic-mx status fit
elastic-mx scale fit --workers 3 --servers 2
"""

import argparse
import time

import elastic_mx
import mxnet as mx
import numpy as np

SAMPLES, FEATURES = 6_000, 50


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=100, help="of all workers together")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step, to have time to resize")
    options = parser.parse_args()

    rng = np.random.RandomState(0)
    x = rng.randn(SAMPLES, FEATURES).astype("float32")
    truth = rng.randn(FEATURES).astype("float32")
    y = x @ truth

    store = mx.kv.create("dist_elastic")
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / options.batch_size))
    weight = mx.nd.zeros((FEATURES,))
    store.init("weight", weight)
    store.pull("weight", out=weight)
    for batch in elastic_mx.data.batches(SAMPLES, options.batch_size, options.epochs):
        inputs, targets = mx.nd.array(x[batch.indices]), mx.nd.array(y[batch.indices])
        gradient = mx.nd.dot(inputs.T, mx.nd.dot(inputs, weight) - targets)
        store.push("weight", gradient)  # the servers add what all workers push, then update the weight
        store.pull("weight", out=weight)
        if batch.number == 0:
            error = np.abs(weight.asnumpy() - truth).max()
            print(f"epoch {batch.epoch}, {batch.num_workers} worker(s): largest error {error:.6f}", flush=True)
        time.sleep(options.pause)
    print(f"largest error {np.abs(weight.asnumpy() - truth).max():.6f}", flush=True)


if __name__ == "__main__":
    main()
