"""Find what Python runs by itself at every start, and do without it.

Verification starts Python with -I and -S: no sitecustomize, no .pth file and no variable of the environment can come
before the probes.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import Iterator, List, Tuple

# What Debian's Python has as its sitecustomize.
DEBIAN = (
    "# install the apport exception handler if available\n"
    "try:\n    import apport_python_hook\nexcept ImportError:\n    pass\nelse:\n    apport_python_hook.install()\n"
)
# How the code begins that setuptools writes into .pth files, for itself and for namespace packages.
SETUPTOOLS = ("import os; var = 'SETUPTOOLS_USE_DISTUTILS'", "import sys, types, os;")
MOST_FILES = 50


def site_packages() -> str:
    """Return the folder of packages of the virtual environment that this Python was started from."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
    return os.path.join(prefix, "lib", "python{}.{}".format(*sys.version_info[:2]), "site-packages")


def add_site_packages() -> None:
    """Do what the module `site` would have done for packages, if Python was started without it."""
    if not sys.flags.no_site:
        return
    sys.path.append(site_packages())
    if not has_distutils(os.path.dirname(os.__file__)):
        # Packages then rely on the one that setuptools brings by its .pth file.
        try:
            from _distutils_hack import add_shim
        except ImportError:
            return
        add_shim()


def has_distutils(library: str) -> bool:
    """Return whether all of distutils is in the standard library. It went in 3.12; Debian packages it apart before."""
    return PathFinder.find_spec("spawn", [os.path.join(library, "distutils")]) is not None


def startup() -> Tuple[str, ...]:
    """Return the files whose code a plain start of Python runs, beside the standard library's and setuptools'."""
    return tuple(found for _, found in zip(range(MOST_FILES), _startup()))  # noqa: B905


def _startup() -> Iterator[str]:
    for module in ("sitecustomize", "apport_python_hook"):
        spec = PathFinder.find_spec(module, [*sys.path, site_packages()])
        if spec and not _is_debians(spec.origin or ""):
            yield spec.origin or module
    folder = site_packages()
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith(".pth") and not all(line.startswith(SETUPTOOLS) for line in _code(os.path.join(folder, name))):
            yield os.path.join(folder, name)


def _is_debians(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(len(DEBIAN) + 1) == DEBIAN
    except OSError:
        return False


def _code(path: str) -> List[str]:
    """Return the lines of a .pth file that are code; the others are folders."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return [line for line in file if line.startswith(("import ", "import\t"))]
