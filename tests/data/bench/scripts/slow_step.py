"""Train in a custom loop whose steps take far longer than its prefetched batches."""

import time

import tensorflow as tf

weights = [tf.Variable(tf.random.normal([1024, 1024]) * 0.03) for _ in range(3)]


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        y = x
        for weight in weights:
            y = tf.nn.relu(y @ weight)
        loss = tf.reduce_mean(y * y)
    for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(1e-6 * slope)
    return loss


data = tf.data.Dataset.range(10**9).map(lambda _: tf.ones([256, 1024])).prefetch(2)
end = time.monotonic() + 9
for batch in data:
    step(batch).numpy()
    if time.monotonic() > end:
        break
