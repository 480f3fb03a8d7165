"""How many examples a slow property test tries: a quarter of the profile's (tests/conftest.py)."""

from hypothesis import settings

few = settings(max_examples=settings().max_examples // 4)
