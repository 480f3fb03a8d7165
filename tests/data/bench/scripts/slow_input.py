"""Train with Keras on rows that take far longer than the steps, without prefetching."""

import time

import numpy as np
import tensorflow as tf


def read(index):
    time.sleep(0.3)
    return np.ones(64, np.float32)


def row(index):
    return tf.ensure_shape(tf.numpy_function(read, [index], tf.float32), [64]), 0.0


model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(64), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.data.Dataset.range(40).map(row).batch(1), verbose=0)
