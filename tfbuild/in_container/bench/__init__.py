"""The part of the benchmark that runs inside an image: standard library, NumPy and TensorFlow.

`invoke bench` copies this folder and smoke/ into a container, so that it can measure any image with TensorFlow. The
host (tfbuild/bench/) decides what is compared and what follows from the results.
"""
