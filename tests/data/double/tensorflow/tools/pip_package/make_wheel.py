"""make_wheel.py NAME VERSION PYTHON_TAG LIBRARY FOLDER: the test double's wheel, by the wheel format's own rules."""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

INIT = '''"""A test double, not TensorFlow: which macros its library and its host tools were compiled with."""

import ctypes
from pathlib import Path

library = ctypes.CDLL(str(Path(__file__).with_name("libtensorflow_double.so")))
library.double_macros.restype = library.double_host_macros.restype = ctypes.c_char_p
macros = library.double_macros().decode().split()
host_macros = library.double_host_macros().decode().split()
'''

name, version, python, library, folder = *sys.argv[1:4], *map(Path, sys.argv[4:])
TAG = f"{python}-{python}-linux_x86_64"
info = f"{name}-{version}.dist-info"
metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: a test double\n"
files = {
    "tensorflow/__init__.py": INIT.encode(),
    "tensorflow/libtensorflow_double.so": library.read_bytes(),
    f"{info}/METADATA": metadata.encode(),
    f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: double\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(),
}


def record(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


listing = "".join(record(name, content) for name, content in files.items()) + f"{info}/RECORD,,\n"
folder.mkdir(parents=True, exist_ok=True)
with zipfile.ZipFile(folder / f"{name}-{version}-{TAG}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    for name, content in {**files, f"{info}/RECORD": listing.encode()}.items():
        wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
