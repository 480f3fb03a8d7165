"""Time work in containers in interleaved rounds, and say what the ratios show.

records.py      the results: plain records
documents.py    reports as JSON documents, each with its JSON Schema
probe.py        one probe in a container, whose output is not trusted
protocol.py     questions to persistent workers, and the method's limits
experiments.py  the rows of facts/experiments.toml: what is compared with what, and why
workers.py      persistent workers, all paused but the one that is asked
arms.py         the sides of a comparison: where each runs, and with what
case_runner.py  runs the sides in their workers: start, prepare, sample, lose
rounds.py       interleaved rounds in a limited time, of one case or of several that take turns
intervals.py    pure: ratios -> median, interval and conclusion
evaluate.py     pure: rounds -> ratios, intervals, verdicts
case_result.py  pure: sides and rounds -> a case's record
pooled.py       pure: cases that took turns -> one mean
mean_ratio.py   pure: many ratios -> their mean with an interval
"""
