"""The smoke benchmark: what runs inside an image to prove it. Standard library, NumPy and TensorFlow alone.

Written for Python 3.7 and later, since old releases run on old Pythons. `invoke verify` puts its own copy of this
folder into a container and judges on the host; `docker run IMAGE tfbuild-smoke` runs the image's copy and
judges by itself.

    records.py   what a probe finds: plain records, one JSON line each
    channel.py   the line protocol on a file descriptor that no library prints to
    probes.py    the probes; each runs in a process of its own
    numerics.py  results against float64 references
    judge.py     pure: what was found + what was planned -> a check; used inside the image and by the host
    command.py   `tfbuild-smoke`
"""
