"""The benchmark's part inside an image. Standard library, NumPy and TensorFlow alone; Python 3.7 and later.

`invoke bench` puts this folder, and smoke/ beside it, into a container as files, so that any image with TensorFlow can
be measured; what is timed against what, and what follows from it, is the host's (tfbuild/bench/).

    records.py    what a worker answers: plain records, one JSON line each
    worker.py     the question-and-answer loop, timing.py, a sample
    base.py       what workloads are made of
    validity.py   the mistakes that once faked a result: each is refused or named, never timed
    gpu_utilisation.py  how busy GPUs are meanwhile
    script_profile.py   a script of the user's, watched by TensorFlow's profiler (recorder.py, timeline.py)
    workloads/    what is timed: a function a workload, found by its name
"""
