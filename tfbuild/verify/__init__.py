"""Verify that an image is what its labels claim: image -> Report.

verification.py  the state of a verification, and the parts of a check
checks/          one file per check: its claim, when it applies, its probe and its judge
libraries.py     TensorFlow's libraries, copied out of an image
session.py       runs the checks, and makes the report of their results
report.py        the report as JSON, Markdown and a terminal table; page.py as an HTML page, wording.py has their texts
"""
