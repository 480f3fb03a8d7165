"""Time work in containers in interleaved rounds, and say what the ratios show.

records.py      the results, as plain records and as JSON documents
probe.py        one probe in a container, whose output is not trusted
experiments.py  the rows of facts/experiments.toml and models.toml: what is compared with what, and why
workers.py      persistent workers, all paused but the one that is asked, and the sides that they time
rounds.py       interleaved rounds in a limited time, of one case or of several that take turns, and their result
evaluate.py     pure: rounds -> ratios, intervals, verdicts
"""
