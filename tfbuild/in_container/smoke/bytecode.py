"""Compare bytecode with its sources. Run with `-X pycache_prefix=NOWHERE`, so that none of it runs meanwhile."""

from __future__ import annotations

import marshal
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import CodeType

CACHED = re.compile(rf"(.+)\.{re.escape(sys.implementation.cache_tag or 'none')}(?:\.opt-([12]))?\.pyc")
HEADER = 16
MOST_WRONG = 20


def compared(folders: Iterable[str]) -> tuple[int, tuple[str, ...]]:
    """Return how many files of bytecode Python would load from folders and those below, and the wrong ones."""
    warnings.simplefilter("ignore")
    paths = sorted({path for folder in folders for path in _bytecode(folder)})
    wrong = [path for path in paths if not _comes_from_source(path)]
    return len(paths), tuple(wrong[:MOST_WRONG])


def _bytecode(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        cached = os.path.basename(place) == "__pycache__"
        for name in names:
            # Python looks into __pycache__ only for files of its own version, and elsewhere for any.
            if name.endswith(".pyc") and (CACHED.fullmatch(name) or not cached):
                yield os.path.realpath(os.path.join(place, name))


def _comes_from_source(path: str) -> bool:
    """Return whether Python loads no other code from this file than from its source; it needs a source."""
    folder, name = os.path.split(path)
    match = CACHED.fullmatch(name)
    if not match or os.path.basename(folder) != "__pycache__":
        return False
    source = os.path.join(os.path.dirname(folder), match.group(1) + ".py")
    if not os.path.exists(source):
        return True  # never loaded
    try:
        with open(path, "rb") as file, open(source, "rb") as text:
            content = file.read()
            if _is_stale(content, os.stat(source)):
                return True
            loaded = marshal.loads(content[HEADER:])
            compiled = compile(text.read(), source, "exec", dont_inherit=True, optimize=int(match.group(2) or 0))
            return isinstance(loaded, CodeType) and _same(loaded, compiled)
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, RecursionError):
        return False


def _is_stale(content: bytes, source: os.stat_result) -> bool:
    """Return whether the header says that the bytecode is of another source, so that Python passes it over."""
    flags, modified, size = (int.from_bytes(content[start : start + 4], "little") for start in (4, 8, 12))
    return flags == 0 and (modified, size) != (int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)


def _same(one: CodeType, other: CodeType) -> bool:
    """Return whether two code objects do the same: == compares all but the file and, before 3.12, exception tables."""
    inner = [[part for part in code.co_consts if isinstance(part, CodeType)] for code in (one, other)]
    tables = [getattr(code, "co_exceptiontable", b"") for code in (one, other)]
    return one == other and tables[0] == tables[1] and all(map(_same, *inner))
