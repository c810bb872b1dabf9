"""An ordinary distributed script, with MXNet's own dist_sync; docs/tutorial.md makes it elastic, a line at a time.

elastic-mx launch -n 2 -s 2 --drop-in --name plain -- python examples/dist_sync.py --epochs 200    # about a minute
elastic-mx scale plain --servers 3                                           # in a second terminal, meanwhile
elastic-mx status plain
"""

import argparse

import mxnet as mx
from mxnet import autograd, gluon
from sklearn.datasets import load_digits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    options = parser.parse_args()

    mx.random.seed(1)
    digits = load_digits()
    images, labels = (digits.data / 16).astype("float32"), digits.target.astype("float32")
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(128, activation="relu"), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    store = mx.kv.create("dist_sync")
    mine = slice(store.rank, None, store.num_workers)
    dataset = gluon.data.ArrayDataset(images[mine], labels[mine])
    loader = gluon.data.DataLoader(dataset, options.batch_size // store.num_workers, shuffle=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)

    for epoch in range(options.epochs):
        total = count = 0
        for x, y in loader:
            with autograd.record():
                loss = loss_of(net(x), y)
            loss.backward()
            trainer.step(options.batch_size)
            total += loss.sum().asscalar()
            count += len(x)
        print(f"epoch {epoch}: mean loss {total / count:.4f} over this worker's {count} samples", flush=True)


if __name__ == "__main__":
    main()
