"""Module: a multi-layer perceptron on scikit-learn's digits with Module.fit, whose workers may change while it trains.

elastic-mx launch -n 2 --name module -- python examples/module.py --epochs 40 --pause 0.05    # about a minute
elastic-mx scale module --workers 3                                          # in a second terminal, meanwhile
elastic-mx status module
elastic-mx scale module --workers 1 --servers 2
"""

import argparse
import logging
import time

import elastic_mx
import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits

HELD_OUT = 360


def symbol():
    net = mx.sym.Variable("data")
    for number, units in enumerate((128, 64)):
        net = mx.sym.FullyConnected(net, num_hidden=units, name=f"hidden{number}")
        net = mx.sym.Activation(net, act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=10, name="output"), name="softmax")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step, to have time to resize")
    options = parser.parse_args()

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    mx.random.seed(1)
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x, y = (digits.data[order] / 16).astype("float32"), digits.target[order].astype("float32")

    train = elastic_mx.data.NDArrayIter(x[HELD_OUT:], y[HELD_OUT:], options.batch_size, shuffle=True)
    module = mx.mod.Module(symbol())
    module.fit(
        train,
        initializer=mx.init.Xavier(),
        optimizer="adam",
        optimizer_params={"learning_rate": 0.002, "rescale_grad": train.rescale_grad},
        begin_epoch=elastic_mx.epoch(),
        num_epoch=options.epochs,
        kvstore="dist_elastic",
        batch_end_callback=lambda _: time.sleep(options.pause),
    )
    score = dict(module.score(mx.io.NDArrayIter(x[:HELD_OUT], y[:HELD_OUT], 64), "acc"))
    print(f"held-out accuracy {score['accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    main()
