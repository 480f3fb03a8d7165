"""Times work in containers in interleaved rounds, and says what the ratios show.

records.py      what came out: plain records
documents.py    reports as JSON documents, each with a JSON Schema of its own
probe.py        one probe in a container, its output read as untrusted
protocol.py     questions to persistent workers, and the method's limits
experiments.py  the rows of facts/experiments.toml: what is compared with what, and why
workers.py      persistent paired workers; all are stopped but the one that is asked
arms.py         the sides of a comparison: who runs where, with what
case_runner.py  the sides in their workers: started, made ready, asked for samples, lost
rounds.py       interleaved rounds within their time, of one case or of several that take turns
intervals.py    pure: ratios -> their median, an interval, and what may be concluded
evaluate.py     pure: rounds -> ratios, intervals, verdicts
case_result.py  pure: sides and rounds -> a case's record
pooled.py       pure: cases that took turns -> one mean
means.py        pure: many ratios -> one, as sure as they are
"""
