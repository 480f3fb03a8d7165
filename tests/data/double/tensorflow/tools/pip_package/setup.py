"""Holds the version, as TensorFlow's own does."""

_VERSION = "2.13.1"
