"""The engine's clock, which need not agree with this machine's."""

from datetime import datetime
from typing import Any


def now(client: Any) -> float | None:
    """Return the engine's time, in seconds since the epoch; None where it cannot be read."""
    try:
        return datetime.fromisoformat(str(client.info()["SystemTime"])).timestamp()
    except (KeyError, ValueError):
        return None
