"""Read many small files, or one TFRecord file with the same records, with and without the page cache."""

from __future__ import annotations

import mmap
import os
import tempfile
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from . import Timing, Work, workload
from .images import options

BATCH = 100


class FileRead(Work):
    """Read all records in each call. `cold`: ask the kernel to drop the files from its cache before, untimed."""

    def __init__(self, records: Any, count: int, files: tuple[str, ...], cold: bool) -> None:
        self.batches, self.items, self.files, self.cold = records.batch(BATCH), count, files, cold

    def call(self) -> None:
        for _ in self.batches:
            pass

    def sample(self, inner: int) -> Timing:
        wall = cpu = 0.0
        for _ in range(inner):
            self.drop_cache()
            timing = super().sample(1)
            wall, cpu = wall + timing[0], cpu + timing[1]
        return wall, cpu

    def drop_cache(self) -> None:
        for path in self.files if self.cold else ():
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


@cache
def stored(small: bool, count: int, size: int) -> tuple[str, ...]:
    """Write `count` records of `size` bytes into the container's /tmp, once for all arms; return the files."""
    folder = tempfile.mkdtemp(prefix="tfbuild-bench-")
    random = np.random.default_rng(1)
    data = [random.bytes(size) for _ in range(count)]
    if small:
        files = [os.path.join(folder, f"{index:05d}") for index in range(count)]
        for path, record in zip(files, data, strict=True):
            with open(path, "wb") as file:
                file.write(record)
    else:
        files = [os.path.join(folder, "all.tfrecord")]
        with tf.io.TFRecordWriter(files[0]) as writer:
            for record in data:
                writer.write(record)
    # The kernel can only drop pages that are on disk.
    os.sync()
    return tuple(files)


@workload
def reading(small: bool, cold: bool, calls: int = 0, count: int = 4000, size: int = 3000) -> FileRead:
    """Read all records, each from a file of its own or all from one TFRecord file."""
    files = stored(small, count, size)
    if small:
        paths = tf.data.Dataset.from_tensor_slices(list(files))
        records = paths.map(tf.io.read_file, num_parallel_calls=calls or None)
    else:
        records = tf.data.TFRecordDataset(list(files))
    return FileRead(records.with_options(options(False, False)), count, files, cold)


class Disk(Work):
    """Read a file of `mib` MiB past the page cache (O_DIRECT); an item is a MiB."""

    CHUNK = 4 * 2**20

    def __init__(self, mib: int) -> None:
        self.items = mib
        file, self.path = tempfile.mkstemp(prefix="tfbuild-bench-", dir="/var/tmp")
        block = np.random.default_rng(2).bytes(self.CHUNK)
        for _ in range(mib * 2**20 // self.CHUNK):
            os.write(file, block)
        os.fsync(file)
        os.close(file)
        # O_DIRECT requires memory aligned to a page.
        self.buffer = mmap.mmap(-1, self.CHUNK)

    def call(self) -> None:
        file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            while os.readv(file, [self.buffer]):
                pass
        finally:
            os.close(file)


@workload
def disk(mib: int) -> Disk:
    return Disk(mib)
