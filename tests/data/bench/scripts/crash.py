"""Ends in an error of its own."""

import tensorflow as tf

tf.ones([2, 3]) @ tf.ones([2, 3])
