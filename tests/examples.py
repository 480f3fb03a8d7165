"""How many examples a property test tries that is slow or very quick: a share of the profile's (tests/conftest.py)."""

from hypothesis import settings

few = settings(max_examples=settings().max_examples // 4)
many = settings(max_examples=settings().max_examples * 3)
