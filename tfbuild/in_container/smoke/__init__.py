"""The smoke test that runs inside an image to verify it, with the standard library and TensorFlow only.

`invoke verify` copies this folder into a container and judges the results on the host; `docker run IMAGE tfbuild-smoke`
runs the image's own copy, which judges them itself.

    records.py     the protocol: results of probes as records of one JSON line each
    probes.py      the probes; each runs in a process of its own
    numerics.py    what TensorFlow computes for the check `numerics`
    references.py  pure: the inputs of that, and the right results in float64
    judge.py       pure: the checks of probes, which turn results and a plan into a judgement, here and on the host
    command.py     `tfbuild-smoke`
"""
