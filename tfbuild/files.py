"""Files that are written whole or not at all."""

import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes) -> Path:
    """Puts `content` at `path`; whoever reads it meanwhile gets the old or the new. Raises OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
