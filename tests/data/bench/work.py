"""Prints what each work computes that is named on stdin, as a workload and its parameters in a line of JSON each.

Run in tfbuild/, by a Python with TensorFlow.
"""

import itertools
import json
import os
import sys
import tempfile
from functools import cache

import tensorflow as tf
from in_container.bench import workloads
from in_container.bench.workloads.images import Batches, FileRead
from in_container.smoke.probes import Unfit


def shapes(tensors):
    return [list(tensor.shape) for tensor in tf.nest.flatten(tensors)]


def made_of(function, *inputs):
    """Return how many operations a tf.function has, and the functions that it calls, and whether XLA compiles it."""
    graph = function.get_concrete_function(*inputs).graph.as_graph_def()
    called = sum(len(inner.node_def) for inner in graph.library.function)
    return len(graph.node), called, bool(function._jit_compile)


def counted(work, count):
    """Return how many batches a sample of so many takes, and how often it runs the step."""
    whole, step, batches, steps = work.batches, work.step, [], []
    work.batches = (batches.append(batch) or batch for batch in whole)
    work.step = step and (lambda batch: steps.append(batch) or step(batch))
    work.sample(count)
    work.batches, work.step = whole, step
    return len(batches), len(steps)


def read_in_order(work, count):
    """Return how many files a sample of so many has the kernel drop, then how often it reads, and so on."""
    done = []
    os.posix_fadvise = lambda *told: done.append(told[1:] == (0, 0, os.POSIX_FADV_DONTNEED))
    work.call = lambda: done.append("read")
    work.sample(count)
    return [len(list(part)) for _, part in itertools.groupby(done)]


def of_batches(work):
    batch = next(iter(work.batches))
    value = float(work.step(batch) if work.step else tf.reduce_mean(tf.cast(batch, tf.float32)))
    made = made_of(work.step, batch) if work.step else ()
    if not isinstance(work.batches, tf.data.Dataset):
        return value, shapes(batch), made, *counted(work, 2)
    graph = tf.compat.v1.GraphDef.FromString(work.batches._as_serialized_graph().numpy())
    made = [*made, *(node.op.removesuffix("Dataset") for node in graph.node if "Dataset" in node.op)]
    options = work.batches.options()
    known = options.autotune.enabled, options.experimental_optimization.apply_default_optimizations
    return value, shapes(work.batches.element_spec), made, known, *counted(work, 2)


def computed(work):
    """Return the result, the shapes of what goes into it, and what it is made of."""
    if isinstance(work, Batches):
        return of_batches(work)
    if isinstance(work, FileRead):
        shown = shapes(list(work.batches))
        return shown, [os.path.getsize(file) for file in work.files][:2], len(work.files), *read_in_order(work, 2)
    if not work.graph():
        return work.value(), work.nodes()
    value = float(work.function(*work.inputs))
    return value, work.value(), shapes(work.inputs), work.nodes(), made_of(work.function, *work.inputs)


class Models(tf.Module):
    """Functions that become SavedModels by their names."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, 2], name="x"), tf.TensorSpec([None], tf.int64, name="n")])
    def open(self, x, n):
        return {"sum": tf.reduce_sum(x, [1, 2]) * tf.cast(n, tf.float32), "text": tf.strings.as_string(n)}

    @tf.function(input_signature=[tf.TensorSpec([8, 16], tf.uint8, name="picture")])
    def fixed(self, picture):
        return tf.cast(picture, tf.float32) @ tf.ones([16, 4])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.string, name="text")])
    def words(self, text):
        return tf.strings.split(text).to_tensor()


@cache
def saved(name):
    """Return the folder of the SavedModel of a function; of no function, one without a signature."""
    module, folder = Models(), tempfile.mkdtemp()
    tf.saved_model.save(module, folder, signatures=getattr(module, name, None))
    return folder


for line in sys.stdin:
    name, params, *_ = json.loads(line)
    tf.keras.utils.set_random_seed(1)
    try:
        own = {"path": saved(params["path"])} if "path" in params else {}
        work = workloads.registered()[name](**params | own)
        work.call()
        traces = work.traces()
        wall, cpu, _ = work.sample(1)
        assert 0 < wall < 100
        assert 0 <= cpu < 100
        told = [work.items, work.error, work.note, traces, *computed(work)]
    except Unfit as error:
        told = [str(error)]
    whole = json.dumps([name, params, told])
    print(json.dumps(json.loads(whole, parse_float=lambda digits: float(f"{float(digits):.6g}"))), flush=True)
