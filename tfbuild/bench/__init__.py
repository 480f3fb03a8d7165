"""`invoke bench`: test the performance guide's claims by measuring in an image.

command.py           the verbs: from options to reports, comparisons and advice
session.py           a run: its order of experiments, its time budget, Ctrl-C
experiment_run.py    pure: an experiment while it is measured
allocators.py        fetches allocators that an image lacks
evidence.py          what is recorded besides times: primitives and memory
user_script.py       `--command`: a user's script under TensorFlow's profiler
findings.py          pure: conclusions beyond a ratio, such as what limits a training or which batch size is enough
advise.py            pure: settings and lines of code with a measured gain (gains.py)
current_settings.py  pure: which settings an image has already
wording.py           pure: the text of verdicts, times and caveats in every table, page and message
report.py            reports as JSON, in pyperf's format and on a terminal
page.py              pages of a report (HTML, Markdown) with its charts, and of a comparison
compare.py           pure: reports side by side, and `--fail-if`; matching.py pairs their rows

tfbuild/measure/ times work in containers and judges the ratios; tfbuild/pages/ renders pages and draws ratios.
"""
