import subprocess

import tensorflow as tf

flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
subprocess.run(["g++", "-shared", "-fPIC", "-O1", "-o", "/op/zero_out.so", "/op/zero_out.cc", *flags], check=True)
