import os

import tensorflow as tf

assert any(flag.startswith("-I") for flag in tf.sysconfig.get_compile_flags())
assert "-l:libtensorflow_framework.so.2" in tf.sysconfig.get_link_flags()
assert os.path.exists(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2"))
print("passed")
