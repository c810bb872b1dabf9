"""`NDArrayIter`: arrays in memory for ``Module.fit``, dealt by a `BatchSampler`.

Takes the place of ``mx.io.NDArrayIter``; what Module does with batches whose size changes is MXNet's work.
"""

from typing import Any, Iterator, List, Optional, Tuple

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.io.utils import _init_data

from elastic_mx.data.sampler import Batch, BatchSampler
from elastic_mx.data.session import Session


class NDArrayIter(mx.io.DataIter):
    """An iterator over arrays in memory, each epoch of which is dealt among the job's workers.

    ``module.fit(it, begin_epoch=elastic_mx.epoch(), optimizer_params={..., 'rescale_grad': it.rescale_grad})``.
    Every batch carries its own shapes: this worker's share, whose size changes at a resize and by one within an
    epoch; Module binds anew when it does. For validation use ``mx.io.NDArrayIter``: each pass over this one counts
    as training.

    Args:
        data: NDArray, numpy.ndarray, or a list or dict of them; first axis: samples. numpy becomes float32.
        label: like `data`, or None.
        batch_size: samples per batch of all workers together; with `per_worker`, of each worker.
        shuffle: a new order in each epoch; off by default, as in ``mx.io.NDArrayIter``.
        data_name, label_name: names of single arrays.
        seed, per_worker, batches_per_step, max_workers, session: as for `BatchSampler`.

    Raises:
        ValueError: the arrays differ in their number of samples, or as `BatchSampler`.
        RuntimeError: at the first batch of an epoch that was over when this worker joined: Module cannot have an
            empty epoch, so the script must say ``begin_epoch=elastic_mx.epoch()``.
        SystemExit: status 0, at the beginning of an epoch after this worker has left its job: Module has no other
            way to end.
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        data_name: str = "data",
        label_name: str = "softmax_label",
        seed: int = 0,
        per_worker: bool = False,
        batches_per_step: int = 1,
        max_workers: Optional[int] = None,
        session: Optional[Session] = None,
    ) -> None:
        super().__init__(batch_size)
        self._data = _named_arrays(data, data_name, allow_empty=False)
        self._label = _named_arrays(label, label_name, allow_empty=True)
        counts = {name: len(array) for name, array in self._data + self._label}
        if len(set(counts.values())) != 1:
            raise ValueError(f"arrays with different numbers of samples {counts}: the first axis must agree")
        self.sampler = BatchSampler(
            next(iter(counts.values())),
            batch_size,
            seed=seed,
            shuffle=shuffle,
            per_worker=per_worker,
            batches_per_step=batches_per_step,
            max_workers=max_workers,
            session=session,
        )
        self._epoch: Optional[Iterator[Batch]] = None

    @property
    def rescale_grad(self) -> float:
        """Module's ``rescale_grad``: right for every membership, unlike the value that Module computes itself.

        That is 1 / (this worker's batch at the start * workers at the start), which is off, and differs between
        workers, when shares are uneven.
        """
        return self.sampler.rescale_grad

    @property
    def provide_data(self) -> List[mx.io.DataDesc]:
        """Names, shapes and types of the data of this worker's next batch."""
        return self._describe(self._data)

    @property
    def provide_label(self) -> List[mx.io.DataDesc]:
        """Names, shapes and types of the labels of this worker's next batch."""
        return self._describe(self._label)

    def _describe(self, arrays: List[Tuple[str, npt.NDArray[Any]]], rows: Optional[int] = None) -> List[mx.io.DataDesc]:
        if rows is None:
            rows = self.sampler.next_size() or self.batch_size
        return [mx.io.DataDesc(name, (rows, *array.shape[1:]), array.dtype) for name, array in arrays]

    def reset(self) -> None:
        """Go to the next epoch."""
        self._epoch = None

    def next(self) -> mx.io.DataBatch:
        """Return this worker's next batch; StopIteration at the end of an epoch, else as the class says."""
        first = self._epoch is None
        if self._epoch is None:
            self._epoch = self.sampler.batches()
        batch = next(self._epoch, None)
        if batch is not None:
            return self._take(batch)
        if first and self.sampler.session.retired:
            raise SystemExit(0)
        if first:
            raise RuntimeError(
                f"this epoch was over when this worker joined in epoch {self.sampler.session.position().epoch}: "
                "pass begin_epoch=elastic_mx.epoch() to fit, or loop over elastic_mx.epochs(n)"
            )
        raise StopIteration

    def _take(self, batch: Batch) -> mx.io.DataBatch:
        def rows(arrays: List[Tuple[str, npt.NDArray[Any]]]) -> List[mx.nd.NDArray]:
            return [mx.nd.array(array[batch.indices], dtype=array.dtype) for _, array in arrays]

        return mx.io.DataBatch(
            data=rows(self._data),
            label=rows(self._label),
            pad=0,
            index=batch.indices,
            provide_data=self._describe(self._data, len(batch.indices)),
            provide_label=self._describe(self._label, len(batch.indices)),
        )


def _named_arrays(source: Any, name: str, allow_empty: bool) -> List[Tuple[str, npt.NDArray[Any]]]:
    """Return (name, array) pairs as MXNet names them, as numpy: rows are picked there without engine operations."""
    named = []
    for key, array in _init_data(source, allow_empty=allow_empty, default_name=name):
        if getattr(array, "stype", "default") != "default":
            raise ValueError(f"array {key!r} has storage type {array.stype!r}: make it dense with tostype('default')")
        named.append((key, array.asnumpy() if isinstance(array, mx.nd.NDArray) else np.asarray(array)))
    return named
