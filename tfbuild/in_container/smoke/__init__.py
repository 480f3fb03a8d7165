"""The smoke test that runs inside an image to verify it, with the standard library, NumPy and TensorFlow only.

`invoke verify` copies this folder into a container and judges the results on the host; `docker run IMAGE tfbuild-smoke`
runs the image's own copy, which judges them itself.

    records.py   the protocol: challenges, and the results of probes as records of one JSON line each
    isolated.py  a start without sitecustomize and .pth files
    probes.py    the probes; each runs in a process of its own
    numerics.py  results against float64 references
    bytecode.py  bytecode against its sources
    judge.py     pure: results + plan -> a judgement; used inside the image and on the host
    command.py   `tfbuild-smoke`
"""
