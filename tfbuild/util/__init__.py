"""General tools that know nothing of TensorFlow, CPUs or images; standard library, rich and msgspec only."""
