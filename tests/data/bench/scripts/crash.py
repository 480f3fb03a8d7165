"""Fail with an error in the script itself."""

import tensorflow as tf

tf.ones([2, 3]) @ tf.ones([2, 3])
