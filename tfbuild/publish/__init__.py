"""A verified image <-> a registry: indexes, SBOM, provenance, signature, choice, check; wheels -> a static index."""
