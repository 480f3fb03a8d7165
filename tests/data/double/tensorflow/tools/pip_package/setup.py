"""Holds the version, as TensorFlow's own does."""

_VERSION = "2.20.0"
