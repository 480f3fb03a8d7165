"""Workloads with a planted mistake or effect, for the benchmark's own tests; copied beside the real ones."""

import time

import tensorflow as tf

from . import FunctionWork, Work, workload
from .compute import normal


def small():
    return lambda x: tf.reduce_sum(tf.tanh(x) * tf.sigmoid(x))


@workload
def plain(size=128):
    return FunctionWork(small(), normal(1, size, size))


class Delayed(FunctionWork):
    """Make a sample a tenth longer, busy or asleep. Sleeping in each call would take twice a tenth of a millisecond,
    because of the kernel's timer slack and waking up. The last part of the sleep is spent awake."""

    how = ""

    def sample(self, inner):
        begin = time.perf_counter(), time.process_time()
        wall, cpu, faults = super().sample(inner)
        if self.how == "sleep":
            time.sleep(0.08 * wall)
            clock, end = time.perf_counter, begin[0] + 1.1 * wall
        else:
            clock, end = time.process_time, begin[1] + 1.1 * cpu
        while clock() < end:
            pass
        return time.perf_counter() - begin[0], time.process_time() - begin[1], faults


@workload
def delayed(how, size=128):
    work = Delayed(small(), normal(1, size, size))
    work.how = how
    return work


class Exact(Work):
    """Take `seconds` of CPU time in each call, whatever else runs."""

    def __init__(self, seconds):
        self.seconds = seconds

    def call(self):
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass


@workload
def trifle(size=128):
    """Use a constant of a few numbers, as Keras' LSTM does, which is no mistake."""
    return FunctionWork(lambda x: small()(x) * tf.reduce_max(tf.constant([1.0, 0.5])), normal(1, size, size))


@workload
def exact(seconds):
    return Exact(seconds)


class Retraced(FunctionWork):
    turn = 0

    def call(self):
        self.turn += 1
        self.function(*self.inputs, self.turn).numpy()

    def value(self):
        return None

    def graph(self):
        return None


@workload
def retraced():
    return Retraced(lambda x, turn: tf.reduce_sum(tf.tanh(x)) * turn, normal(1, 128, 128))


@workload
def constant():
    a, b = normal(1, 512, 512), normal(2, 512, 512)
    return FunctionWork(
        lambda x: tf.reduce_sum(tf.matmul(tf.constant(a.numpy()), tf.constant(b.numpy()))) + x, tf.ones([])
    )


class Kept(Work):
    """Keep an iterator whose buffer is never full, so that it works on while others are timed."""

    def __init__(self):
        body = lambda index: tf.reduce_sum(tf.tanh(tf.ones([10**5]) * tf.cast(index, tf.float32)))  # noqa: E731
        self.iterator = iter(tf.data.Dataset.range(10**9).map(body, num_parallel_calls=2).prefetch(10**6))

    def call(self):
        next(self.iterator)


@workload
def kept():
    return Kept()


@workload
def unfit():
    return FunctionWork(lambda x: tf.raw_ops.NoSuchOperation(x=x), normal(1, 2))


@workload
def dying():
    import os

    os.abort()
