"""repack.py WHEEL...: rewrites each wheel with fixed dates and modes, so that the same files give the same bytes.

TensorFlow's own packing takes both from Bazel's outputs, where they depend on whether a file was compiled or came from
a cache (2.14.1 packed by two builders: 9,404 equal files, of which 9,214 had other dates and 68 other modes).
"""

import os
import shutil
import sys
import zipfile

# The first that a ZIP file can have.
DATE = (1980, 1, 1, 0, 0, 0)

for wheel in sys.argv[1:]:
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(wheel + ".part", "w") as new:
        for entry in old.infolist():
            mode = 0o100755 if entry.external_attr >> 16 & 0o111 else 0o100644
            same = zipfile.ZipInfo(entry.filename, DATE)
            same.external_attr = mode << 16
            same.compress_type = entry.compress_type
            # zipfile decides by the size whether to use ZIP64.
            same.file_size = entry.file_size
            with old.open(entry) as source, new.open(same, "w") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    os.replace(wheel + ".part", wheel)
