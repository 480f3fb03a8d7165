"""`invoke bench`: the performance guide's claims and questions, each answered by a measurement in an image.

experiments.py  the rows of facts/experiments.toml: what is compared with what, and why
results.py      what came out: plain records (schema tfbuild.bench/1)
workers.py      persistent paired workers; all are stopped but the one that is asked
rounds.py       interleaved rounds of one comparison within its time
evaluate.py     pure: rounds -> ratios, intervals, verdicts
models.py       `--model`: whole models by name (facts/models.toml)
busy.py         how busy GPUs are on the trainings of `bottleneck`
profiled.py     `--command`: a script of the user's own, watched by TensorFlow's profiler
findings.py     pure: what follows beyond a ratio, such as a batch size
session.py      the order of experiments, the budget, an end by Ctrl-C
report.py       JSON, Markdown, a table
"""
