"""Runs inside images on Python 3.7 and later: standard library, NumPy, TensorFlow; imports nothing else of tfbuild."""
