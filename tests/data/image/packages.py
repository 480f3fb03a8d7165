"""Every module outside TensorFlow that is there can be imported, and the public parts of TensorFlow can."""

import importlib
import pkgutil
import subprocess
import sys

# json_format_benchmark imports a module that no protobuf wheel has.
# Modules that start a program, need what no image has (a test runner, another system), or are tests themselves.
ASIDE = (
    "__main__",
    "conftest",
    "tests",
    "test",
    "antigravity",
    "_pytest",
    "msvc",
    "windows",
    "win32",
    "json_format_benchmark",
)
PACKAGES = ("numpy", "h5py", "keras", "ml_dtypes", "google.protobuf", "opt_einsum", "wrapt", "optree", "rich", "absl")
ROOTS = {name.split(".")[0] for name in PACKAGES}

failed = []
for name in PACKAGES:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda name: None):
        if not any(part in ASIDE for part in found.name.split(".")):
            try:
                importlib.import_module(found.name)
            except ImportError as error:
                # Optional companions (torch, jax, pytest...) and other systems are not there in the plain wheel either.
                if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in ROOTS:
                    failed.append((found.name, error))
assert failed == [], failed
subprocess.run([sys.executable, "-m", "pip", "check"], check=True, stdout=sys.stderr)
print("passed")
