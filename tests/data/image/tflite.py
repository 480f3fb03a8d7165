import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, activation="relu")])
interpreter = tf.lite.Interpreter(model_content=tf.lite.TFLiteConverter.from_keras_model(model).convert())
interpreter.allocate_tensors()
inputs = np.ones((1, 4), np.float32)
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], inputs)
interpreter.invoke()
found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
np.testing.assert_allclose(found, model(inputs), rtol=1e-5)
print("passed")
