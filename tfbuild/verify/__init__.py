"""Verify that an image is what its labels claim: image -> Report.

verification.py  the state of a verification, and a check
checks/          the checks: what each proves, when it applies, its probe and its judge
libraries.py     TensorFlow's libraries, copied out of an image
session.py       runs the checks, and makes the report of their results
report.py        the report, its files, and how people see it: as a page, as Markdown and in the terminal
"""
