"""Do without what Python runs by itself at every start.

Verification starts Python with -I and -S: no sitecustomize, no .pth file and no variable of the environment can come
before the probes.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


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
