"""The registry protocol; knows nothing of tfbuild's labels or of Docker's engine."""
