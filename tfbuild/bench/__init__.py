"""`invoke bench`: the performance guide's claims and questions, each answered by a measurement in an image.

session.py      the order of experiments, the budget, an end by Ctrl-C
command.py      the verbs: options in, reports, comparisons and advice out
inplace.py      pure: what an image sets of what the experiments set, before anything is advised
models.py       `--model`: whole models by name (facts/models.toml)
busy.py         how busy GPUs are on the trainings of `bottleneck`
profiled.py     `--command`: a script of the user's own, watched by TensorFlow's profiler
findings.py     pure: what follows beyond a ratio, such as what limits a training
batch_size.py   pure: which batch size is enough
wording.py      pure: how verdicts, times and caveats read, in every table, page and message
report.py       JSON, Markdown, a table
page.py         one HTML page of a report or a comparison; charts.py what is drawn in it
compare.py      pure: reports side by side; gate.py what `--fail-if` makes of their totals

What times work in containers, and says what the ratios show, is tfbuild/measure/.
"""
