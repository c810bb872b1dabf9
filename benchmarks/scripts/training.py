"""A worker of benchmarks.training: trains a model on made-up data with Gluon's Trainer, so many steps a turn.

Works with either store; which one, KVSTORE says. What of a step is spent waiting for communication is measured by the
same step without it, each worker for itself, in the turn "alone".
"""

import os
import time

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx
from benchmarks.turns import Turns
from mxnet import autograd, gluon

WORDS, EMBEDDING, HIDDEN, LENGTH = 2000, 128, 256, 16


class LanguageModel(gluon.HybridBlock):
    """Embedding, two LSTM layers and a projection to the vocabulary: next-word scores of shape (time, batch, words)."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed = gluon.nn.Embedding(WORDS, EMBEDDING)
            self.lstm = gluon.rnn.LSTM(HIDDEN, num_layers=2, input_size=EMBEDDING)
            self.project = gluon.nn.Dense(WORDS, flatten=False, in_units=HIDDEN)

    def hybrid_forward(self, F, words):
        return self.project(self.lstm(self.embed(words)))


def build(model, batch):
    """The network, its loss, and one batch: (network, loss, inputs, targets)."""
    if model == "lstm":
        words = mx.nd.random.randint(0, WORDS, (LENGTH, batch)).astype("float32")
        return LanguageModel(), gluon.loss.SoftmaxCrossEntropyLoss(), words, words
    network = gluon.model_zoo.vision.get_resnet(1, 18, thumbnail=True, classes=10)
    images = mx.nd.random.uniform(shape=(batch, 3, 32, 32))
    return network, gluon.loss.SoftmaxCrossEntropyLoss(), images, mx.nd.arange(batch) % 10


def main() -> None:
    mx.random.seed(1)
    batch = int(os.environ["BATCH"])
    network, loss, inputs, targets = build(os.environ["MODEL"], batch)
    network.initialize(mx.init.Xavier())
    network.hybridize(static_alloc=True)
    kv = mx.kv.create(os.environ.get("KVSTORE", "dist_elastic"))
    # The optimizer goes to the servers before the first step, so it must know by then what a step divides by.
    parameters = {"learning_rate": 0.01, "momentum": 0.9, "rescale_grad": 1 / (batch * kv.num_workers)}
    trainer = gluon.Trainer(network.collect_params(), "sgd", parameters, kvstore=kv, update_on_kvstore=True)

    def step(communicate):
        with autograd.record():
            value = loss(network(inputs), targets)
        value.backward()
        if communicate:
            trainer.step(1)
        return value

    step(False)
    trainer._init_kvstore()
    trainer._init_params()
    mx.nd.waitall()
    turns = Turns(rank=kv.rank)
    for message in turns:
        began = time.perf_counter()
        for _ in range(message["steps"]):
            value = step(message["command"] == "train")
        mx.nd.waitall()
        elapsed = time.perf_counter() - began
        turns.report(ms=1000 * elapsed / message["steps"], loss=float(value.mean().asscalar()))
    kv._barrier()


if __name__ == "__main__":
    main()
