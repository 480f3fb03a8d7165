"""Input: decode JPEGs, alone or in a pipeline, and read many small files or one TFRecord file with the same records."""

import os
import tempfile
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from ...smoke.probes import Unfit
from . import FunctionWork, Timing, Work, normal, passed, workload

IMAGES = 16
BATCHES_DISCARDED = 3
CROP = [75, 138, 224, 224]
SIZE = 128
CHANNELS = 32
SHUFFLED = 256
READ_BATCH = 100


@cache
def pictures() -> Any:
    """Return JPEGs with the entropy of photographs (63 KB at 375x500); smooth shapes would decode far too fast."""
    random = np.random.default_rng(7)
    return tf.stack([tf.io.encode_jpeg(photograph(random), quality=90) for _ in range(IMAGES)])


def photograph(random: Any) -> Any:
    smooth = np.zeros((375, 500, 3), np.float32)
    for size in (4, 8, 16, 32, 64, 128):
        noise = random.standard_normal((size, size, 3)).astype(np.float32)
        smooth += tf.image.resize(noise, (375, 500), method="bicubic").numpy() / size**0.7
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min()) * 255
    grain = random.standard_normal(smooth.shape) * 9
    return tf.constant(np.clip(smooth + grain, 0, 255).astype(np.uint8))


class Decode(FunctionWork):
    """Decode each picture once, by one function of its bytes and a window."""

    def __init__(self, fused: bool, window: list[int]) -> None:
        self.fused, self.pictures, self.window = fused, tf.unstack(pictures()), tf.constant(window)
        super().__init__(self.corner, self.pictures[0], self.window, items=IMAGES)

    def corner(self, data: Any, crop: Any) -> Any:
        return tf.cast(cropped(data, crop, self.fused)[2, 2, 0], tf.float32)

    def call(self) -> None:
        for picture in self.pictures:
            self.function(picture, self.window).numpy()

    def value(self) -> float:
        """Return the mean of the inside: pixels at the border may differ by a few grey levels, because chroma is scaled
        up with other neighbours."""
        inside = cropped(self.pictures[0], self.window, self.fused)[2:-2, 2:-2]
        return float(tf.reduce_mean(tf.cast(inside, tf.float32)))


@workload
def decode(fused: bool, window: list[int]) -> Decode:
    """`window`: top, left, height and width in a picture of 375x500."""
    return Decode(fused, window)


def cropped(data: Any, crop: Any, fused: bool) -> Any:
    if fused:
        return tf.io.decode_and_crop_jpeg(data, crop, channels=3)
    return tf.slice(tf.io.decode_jpeg(data, channels=3), [crop[0], crop[1], 0], [crop[2], crop[3], 3])


class Batches(Work):
    """A tf.data pipeline, alone or with a step on each batch. Each sample has a fresh iterator and discards its first
    batches, because an idle iterator would go on filling its buffers while others are timed."""

    def __init__(self, batches: Any, items: int, step: Any = None, discarded: int = BATCHES_DISCARDED) -> None:
        self.batches, self.items, self.step, self.discarded = batches, items, step, discarded

    def call(self) -> None:
        self.sample(1)

    def sample(self, inner: int) -> Timing:
        iterator = iter(self.batches)
        for _ in range(self.discarded):
            self.use(next(iterator))
        begin = passed()
        for _ in range(inner):
            self.use(next(iterator))
        timing = passed(begin)
        del iterator
        return timing

    def use(self, batch: Any) -> None:
        if self.step is not None:
            self.step(batch).numpy()

    def traces(self) -> int:
        return int(self.step.experimental_get_tracing_count()) if self.step else 1


def options(defaults: bool, autotune: bool) -> Any:
    """Return options with tf.data's default optimisations and autotuning on or off.

    With both off, tf.data does only what the rows say; its defaults would speed up the slow arms too.
    """
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = defaults
    options.autotune.enabled = autotune
    return options


def network(fused: bool) -> Any:
    """Return a training step of three convolutions with batch norm on 128x128 pictures."""
    shapes = [[3, 3, 3, CHANNELS], [3, 3, CHANNELS, CHANNELS], [3, 3, CHANNELS, CHANNELS]]
    weights = [tf.Variable(normal(seed, *shape) * 0.05) for seed, shape in enumerate(shapes)]
    scales = [tf.Variable(tf.ones([CHANNELS])) for _ in shapes]
    offsets = [tf.Variable(tf.zeros([CHANNELS])) for _ in shapes]
    variables = weights + scales + offsets

    def norm(x: Any, index: int) -> Any:
        if fused:
            return tf.compat.v1.nn.fused_batch_norm(x, scales[index], offsets[index], epsilon=1e-3)[0]
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        return tf.nn.batch_normalization(x, mean, variance, offsets[index], scales[index], 1e-3)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for index, weight in enumerate(weights):
                x = tf.nn.relu(norm(tf.nn.conv2d(x, weight, 2, "SAME"), index))
            loss = tf.reduce_mean(tf.square(tf.reduce_mean(x, [1, 2]) - 1.0))
        for variable, slope in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(1e-6 * slope)
        return loss

    return step


@workload
def pipeline(
    calls: int = 0,
    prefetch: int = 0,
    fused_decode: bool = False,
    defaults: bool = False,
    autotune: bool = False,
    cache: str = "",
    step: bool = False,
    fused_norm: bool = True,
    random_crops: bool = False,
    shuffle: str = "",
    batch: int = 16,
    size: int = SIZE,
) -> Batches:
    """Decode, crop, resize to `size` and batch, with a parameter for each option of tf.data. `calls`, `prefetch`: 0
    for none, -1 for tf.data.AUTOTUNE; `cache`: "", "bytes" or "decoded"; `shuffle`: likewise, through a buffer of 256.
    """
    windows = tf.constant(inception() if random_crops else [CROP] * IMAGES)

    def read(index: Any, data: Any) -> Any:
        image = tf.image.convert_image_dtype(cropped(data, windows[index], fused_decode), tf.float32)
        return tf.ensure_shape(tf.image.resize(image, [size, size]), [size, size, 3])

    rows = tf.data.Dataset.from_tensor_slices((np.arange(IMAGES), pictures()))
    if cache == "bytes":
        rows = rows.cache()
    if cache != "decoded":
        rows = rows.repeat()
    if shuffle == "bytes":
        rows = rows.shuffle(SHUFFLED, seed=1)
    images = rows.map(read, num_parallel_calls=calls or None)
    if cache == "decoded":
        images = images.cache().repeat()
    if shuffle == "decoded":
        images = images.shuffle(SHUFFLED, seed=1)
    batches = images.batch(batch, drop_remainder=True)
    if prefetch:
        batches = batches.prefetch(prefetch)
    return Batches(batches.with_options(options(defaults, autotune)), batch, network(fused_norm) if step else None)


@workload
def python_feed(step: bool = True) -> Batches:
    """Feed as feed_dict did: Python reads and decodes one picture after another and passes NumPy arrays."""
    files = [bytes(picture) for picture in pictures().numpy()]

    def feed() -> Any:
        while True:
            images = [cropped(data, CROP, False) for data in files]
            small = [tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), [SIZE, SIZE]) for image in images]
            yield tf.constant(np.stack([image.numpy() for image in small]))

    return Batches(feed(), IMAGES, network(True) if step else None)


@workload
def synthetic() -> FunctionWork:
    """Run the step on one batch that is ready in memory, as if the input pipeline cost nothing."""
    step = network(True)
    return FunctionWork(lambda x: step(x), normal(5, IMAGES, SIZE, SIZE, 3), items=IMAGES)


@workload
def remote(cycle: int, calls: int, latency: int = 2000, readers: int = 4) -> Batches:
    """Read from `readers` sources that take `latency` microseconds for each record, as remote storage does."""
    from tensorflow.python.data.experimental.ops import testing

    def source(_: Any) -> Any:
        return tf.data.Dataset.range(10**6).apply(testing.sleep(latency))

    records = tf.data.Dataset.range(readers).repeat()
    records = records.interleave(source, cycle_length=cycle, block_length=1, num_parallel_calls=calls or None)
    return Batches(records.batch(8).with_options(options(False, False)), 8)


def inception() -> list[list[int]]:
    """Return a window for each picture, with 8 to 100 percent of its area, always the same ones."""
    random = np.random.default_rng(11)
    windows = []
    for _ in range(IMAGES):
        share = random.uniform(0.08, 1.0) ** 0.5
        height, width = int(375 * share), int(500 * share)
        top, left = random.integers(0, 375 - height + 1), random.integers(0, 500 - width + 1)
        windows.append([int(top), int(left), height, width])
    return windows


@workload
def jpeg(calls: int = 2, batch: int = 8) -> Batches:
    """Decode, slice and batch with `calls` threads; verification times this."""
    rows = tf.data.Dataset.from_tensor_slices(pictures()).repeat()
    decoded = rows.map(lambda data: cropped(data, CROP, False), num_parallel_calls=calls)
    batches = decoded.batch(batch, drop_remainder=True).prefetch(1)
    # The parallelism is fixed; autotuning would change it between samples.
    return Batches(batches.with_options(options(True, False)), batch)


# --- files -----------------------------------------------------------------------------------------------------------


class FileRead(Work):
    """Read all records in each call. `cold`: ask the kernel to drop the files from its cache before, untimed."""

    def __init__(self, records: Any, count: int, files: tuple[str, ...], cold: bool) -> None:
        self.batches, self.items, self.files, self.cold = records.batch(READ_BATCH), count, files, cold

    def call(self) -> None:
        for _ in self.batches:
            pass

    def sample(self, inner: int) -> Timing:
        wall, cpu, faults = 0.0, 0.0, 0
        for _ in range(inner):
            self.drop_cache()
            timing = super().sample(1)
            wall, cpu, faults = wall + timing[0], cpu + timing[1], faults + timing[2]
        return wall, cpu, faults

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


def in_memory(path: str) -> bool:
    """Whether a file is on a file system without a disk."""
    place = os.stat(path).st_dev
    own = f" {os.major(place)}:{os.minor(place)} "
    with open("/proc/self/mountinfo") as file:
        return any(own in line and line.split(" - ")[1].startswith(("tmpfs", "ramfs")) for line in file)


@workload
def reading(small: bool, cold: bool, calls: int = 0, count: int = 4000, size: int = 3000) -> FileRead:
    """Read all records, each from a file of its own or all from one TFRecord file."""
    files = stored(small, count, size)
    if cold and in_memory(files[0]):
        raise Unfit("the folder for temporary files is in memory: nothing there is read from a disk")
    if small:
        paths = tf.data.Dataset.from_tensor_slices(list(files))
        records = paths.map(tf.io.read_file, num_parallel_calls=calls or None)
    else:
        records = tf.data.TFRecordDataset(list(files))
    return FileRead(records.with_options(options(False, False)), count, files, cold)
