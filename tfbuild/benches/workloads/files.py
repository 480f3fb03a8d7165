"""Many small files against one TFRecord file with the same records, with the page cache and without it."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from ...smoke.workloads import Timing
from . import Work, workload
from .images import Batches, options, parallel

BATCH = 100


class Read(Batches):
    """Reads all records once a call; `cold`: the kernel is asked to forget the files before each sample."""

    def __init__(self, records: Any, count: int, files: list[str], cold: bool) -> None:
        super().__init__(records.batch(BATCH), count)
        self.files, self.cold = files, cold

    def call(self) -> None:
        self.sample(1)

    def before(self) -> None:
        for path in self.files if self.cold else ():
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)

    def sample(self, inner: int) -> Timing:
        return Work.sample(self, inner) if inner > 1 else self.once()

    def once(self) -> Timing:
        import time

        begin = time.perf_counter(), time.process_time()
        for _ in self.batches:
            pass
        return time.perf_counter() - begin[0], time.process_time() - begin[1]


@workload
def reading(small: bool, cold: bool, calls: int = 0, count: int = 4000, size: int = 3000) -> Read:
    """`count` records of `size` bytes, each a file of its own or all in one TFRecord file, in the container's /tmp."""
    folder = tempfile.mkdtemp(prefix="tfbuild-bench-")
    random = np.random.default_rng(1)
    data = [random.bytes(size) for _ in range(count)]
    if small:
        files = [os.path.join(folder, f"{index:05d}") for index in range(count)]
        for path, record in zip(files, data):
            with open(path, "wb") as file:
                file.write(record)
        records = tf.data.Dataset.from_tensor_slices(files).map(tf.io.read_file, num_parallel_calls=parallel(calls))
    else:
        files = [os.path.join(folder, "all.tfrecord")]
        with tf.io.TFRecordWriter(files[0]) as writer:
            for record in data:
                writer.write(record)
        records = tf.data.TFRecordDataset(files)
    os.sync()
    return Read(records.with_options(options(False, False)), count, files, cold)


@workload
def disk(mib: int = 256) -> Work:
    """Reads one file of `mib` MiB past the page cache (O_DIRECT); a unit is a MiB."""
    return Disk(mib)


class Disk(Work):
    CHUNK = 4 * 2**20

    def __init__(self, mib: int) -> None:
        import mmap

        self.items = mib
        file, self.path = tempfile.mkstemp(prefix="tfbuild-bench-", dir="/var/tmp")
        block = np.random.default_rng(2).bytes(self.CHUNK)
        for _ in range(mib * 2**20 // self.CHUNK):
            os.write(file, block)
        os.fsync(file)
        os.close(file)
        # O_DIRECT wants memory at a page's border.
        self.buffer = mmap.mmap(-1, self.CHUNK)

    def call(self) -> None:
        file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            while os.readv(file, [self.buffer]):
                pass
        finally:
            os.close(file)
