import numpy as np
import tensorflow as tf

picture = np.tile(np.linspace(0, 255, 64, dtype=np.uint8)[:, None, None], (1, 48, 3))
tf.io.write_file("/tmp/a.jpg", tf.io.encode_jpeg(picture, quality=95))
files = tf.data.Dataset.list_files("/tmp/*.jpg").repeat(4)
decoded = files.map(lambda path: tf.io.decode_jpeg(tf.io.read_file(path)), num_parallel_calls=2).batch(4).prefetch(1)
(batch,) = [batch.numpy() for batch in decoded]
assert batch.shape == (4, 64, 48, 3)
assert abs(batch[0].astype(int) - picture).max() < 8
print("passed")
