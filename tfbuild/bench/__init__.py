"""`invoke bench`: the performance guide's claims and questions, each answered by a measurement in an image.

experiments.py  the rows of facts/experiments.toml: what is compared with what, and why
results.py      what came out: plain records (schema tfbuild.bench/1)
workers.py      persistent paired workers; all are stopped but the one that is asked
arms.py         the sides of a comparison: who runs where, with what
crew.py         the sides in their workers: started, made ready, asked for samples, lost
rounds.py       interleaved rounds within their time, of one case or of several that take turns
evaluate.py     pure: rounds -> ratios, intervals, verdicts
inplace.py      pure: what an image sets of what the experiments set, before anything is advised
outcome.py      pure: sides and rounds -> a case's record
together.py     pure: cases that took turns -> one mean
models.py       `--model`: whole models by name (facts/models.toml)
busy.py         how busy GPUs are on the trainings of `bottleneck`
profiled.py     `--command`: a script of the user's own, watched by TensorFlow's profiler
findings.py     pure: what follows beyond a ratio, such as a batch size
session.py      the order of experiments, the budget, an end by Ctrl-C
report.py       JSON, Markdown, a table
"""
