"""Compare bytecode with its sources. Run with `-X pycache_prefix=NOWHERE`, so that none of it runs meanwhile."""

from __future__ import annotations

import marshal
import os
import re
import sys
import warnings
from types import CodeType
from typing import Any, Iterable, Iterator, List, Tuple

CACHED = re.compile(r"(.+)\.{}(?:\.opt-([12]))?\.pyc".format(re.escape(sys.implementation.cache_tag or "none")))
HEADER = 16
MOST_WRONG = 20
# Where code came from. Lines matter to tracebacks alone.
WITHOUT = ("co_filename", "co_lnotab")


def compared(folders: Iterable[str]) -> Tuple[int, Tuple[str, ...]]:
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
            return _same(loaded, compiled)
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, RecursionError):
        return False


def _is_stale(content: bytes, source: os.stat_result) -> bool:
    """Return whether the header says that the bytecode is of another source, so that Python passes it over."""
    flags, modified, size = (int.from_bytes(content[start : start + 4], "little") for start in (4, 8, 12))
    return flags == 0 and (modified, size) != (int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, CodeType):
        return all(_same(getattr(one, name), getattr(other, name)) for name in _parts(one))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    # Sets have no order. By their texts, 1 is not True and 0.0 is not -0.0.
    return (
        sorted(map(repr, one)) == sorted(map(repr, other)) if isinstance(one, frozenset) else repr(one) == repr(other)
    )


def _parts(code: CodeType) -> List[str]:
    return [
        name
        for name in dir(code)
        if name.startswith("co_") and name not in WITHOUT and not callable(getattr(code, name))
    ]
