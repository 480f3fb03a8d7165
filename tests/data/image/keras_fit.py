import numpy as np
import tensorflow as tf

rng = np.random.default_rng(1)
inputs = rng.normal(size=(64, 8, 8, 3)).astype("float32")
labels = rng.integers(0, 2, size=64)
layers = tf.keras.layers
model = tf.keras.Sequential(
    [layers.Input((8, 8, 3)), layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(2)]
)
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(inputs, labels, epochs=1, verbose=0)
model.summary()
model.save("/tmp/model.keras")
again = tf.keras.models.load_model("/tmp/model.keras")
np.testing.assert_allclose(model.predict(inputs, verbose=0), again.predict(inputs, verbose=0), rtol=1e-5)
print("passed")
