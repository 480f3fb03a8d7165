"""One JSON document a line, on a copy of stdout that no library prints to.

oneDNN's ONEDNN_VERBOSE and others write to file descriptor 1 itself, so that one is pointed at stderr.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import IO, Any


def open_channel() -> IO[str]:
    """Takes stdout away from everybody else; call it once, before TensorFlow is imported."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", buffering=1)


def send(channel: IO[str], record: Any) -> None:
    """One record as one line; JSON has no NaN, so a record that holds one is an error here already."""
    channel.write(json.dumps(asdict(record), allow_nan=False) + "\n")
    channel.flush()
