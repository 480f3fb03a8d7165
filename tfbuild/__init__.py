"""tfbuild: TensorFlow images built for the CPU that runs them, and proof that they are."""

__version__ = "0.1.0"
