"""Gluon: a convolutional network on scikit-learn's digits, whose servers and workers may change while it trains.

elastic-mx launch --name digits -- python examples/digits.py --epochs 200    # one to two minutes
elastic-mx scale digits --workers 2 --servers 2                              # in a second terminal, meanwhile
elastic-mx status digits
elastic-mx scale digits --workers 1 --servers 1
"""

import argparse

import elastic_mx
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

HELD_OUT = 360


def load():
    """The digits as images of 1 x 8 x 8 in [0, 1], float32, with labels: (training, held out)."""
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.images[order, None] / 16).astype("float32")
    labels = digits.target[order].astype("float32")
    return (images[HELD_OUT:], labels[HELD_OUT:]), (images[:HELD_OUT], labels[:HELD_OUT])


def network():
    net = nn.HybridSequential()
    for channels in (32, 64):
        net.add(nn.Conv2D(channels, kernel_size=3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Conv2D(channels, kernel_size=3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(2))
    net.add(nn.Dense(128, activation="relu"), nn.Dense(10))
    return net


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    options = parser.parse_args()

    mx.random.seed(1)
    (x, y), (x_held_out, y_held_out) = load()
    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": options.learning_rate, "momentum": 0.9, "wd": 1e-4},
        kvstore="dist_elastic",
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    sampler = elastic_mx.data.BatchSampler(len(x), options.batch_size, seed=1)
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), batch_sampler=sampler)

    for epoch in elastic_mx.epochs(options.epochs):
        total = count = 0
        for images, labels in loader:
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(options.batch_size)
            total += loss.sum().asscalar()
            count += len(images)
        if count:
            print(f"epoch {epoch}: mean loss {total / count:.4f} over this worker's {count} samples", flush=True)

    right = net(mx.nd.array(x_held_out)).argmax(axis=1).asnumpy() == y_held_out
    print(f"held-out accuracy {right.mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
