"""Write one JSON document per line to a copy of stdout that no library prints to.

ONEDNN_VERBOSE and others write to file descriptor 1 itself, so that descriptor is redirected to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import IO, Any


def open_channel() -> IO[str]:
    """Reserve stdout for records; call this once, before importing TensorFlow."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(stdout, "w", buffering=1)


def send(channel: IO[str], record: Any) -> None:
    """Send one record as one line. Raises ValueError for NaN, which JSON does not have."""
    channel.write(json.dumps(asdict(record), allow_nan=False) + "\n")
    channel.flush()
