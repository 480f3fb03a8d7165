"""Runs inside images: standard library, NumPy, TensorFlow; imports nothing else of tfbuild."""
