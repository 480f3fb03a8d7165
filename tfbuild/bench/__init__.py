"""`invoke bench`: test the performance guide's claims by measuring in an image.

command.py         from options to a report
session.py         a run: its experiments in order, its time budget, Ctrl-C
evidence.py        what is recorded besides times: primitives and memory
findings.py        pure: conclusions beyond a ratio, such as what limits a training or which batch size is enough
advise.py          pure: settings and lines of code that gained and never lost
wording.py         pure: the text of verdicts, times and caveats in every table, page and message
report.py           reports as JSON, on a terminal, and as an HTML page with its charts

tfbuild/measure/ times work in containers and judges the ratios; tfbuild/pages/ renders pages and draws charts.
"""
