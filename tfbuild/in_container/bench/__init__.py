"""The part of the benchmark that runs inside an image: standard library, NumPy and TensorFlow.

`invoke bench` copies this folder and smoke/ into a container, so that it can measure any image with TensorFlow. The
host (tfbuild/bench/) decides what is compared and what follows from the results.

    records.py    a worker's answers: plain records, one line of JSON each
    worker.py     the loop that answers questions, and takes samples
    validity.py   checks against mistakes that falsify results, and readings of memory
    workloads/    the work that is timed: one function for each workload, looked up by name
"""
