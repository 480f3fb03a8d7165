"""Proves that an image is what its labels claim: image -> Report.

verification.py  an image while it is verified, and what a check of it is made of
checks/          one file a check: its claim, when it applies, its probe and its judge
libraries.py     TensorFlow's libraries, taken out of an image
session.py       walks the checks; what they found becomes the report
"""
