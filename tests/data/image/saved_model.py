import tensorflow as tf


class Double(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x):
        return 2 * x


tf.saved_model.save(Double(), "/tmp/double")
assert tf.saved_model.load("/tmp/double")(tf.constant([3.0])).numpy().tolist() == [6.0]
print("passed")
