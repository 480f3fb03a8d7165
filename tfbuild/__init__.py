"""tfbuild: TensorFlow images built for the CPU that runs them, and verified to be."""

__version__ = "0.1.0"
