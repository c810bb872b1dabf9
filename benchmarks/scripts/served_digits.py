"""Trains on scikit-learn's digits and writes which samples each step used; for jobs that the service runs.

Each worker appends lines ``epoch index index ...`` to a file of its own in the folder that USED names.
"""

import argparse
import os
from pathlib import Path

import elastic_mx
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

HELD_OUT = 360


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    options = parser.parse_args()

    mx.random.seed(1)
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images, labels = (digits.images[order, None] / 16).astype("float32"), digits.target[order].astype("float32")
    x, y = images[HELD_OUT:], labels[HELD_OUT:]
    net = nn.HybridSequential()
    for channels in (32, 64):
        net.add(nn.Conv2D(channels, kernel_size=3, padding=1, activation="relu"), nn.MaxPool2D(2))
    net.add(nn.Dense(128, activation="relu"), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    how = {"learning_rate": 0.05, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", how, kvstore="dist_elastic")
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    sampler = elastic_mx.data.BatchSampler(len(x), options.batch_size, seed=1)
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y, np.arange(len(x))), batch_sampler=sampler)
    with open(Path(os.environ["USED"]) / f"{os.environ['ELASTIC_MX_NAME']}-{os.getpid()}", "w") as used:
        for epoch in elastic_mx.epochs(options.epochs):
            for batch, target, indices in loader:
                with autograd.record():
                    loss = loss_of(net(batch), target)
                loss.backward()
                trainer.step(options.batch_size)
                print(epoch, *indices.asnumpy().astype(int).tolist(), file=used, flush=True)
    right = net(mx.nd.array(images[:HELD_OUT])).argmax(axis=1).asnumpy() == labels[:HELD_OUT]
    print(f"held-out accuracy {right.mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
