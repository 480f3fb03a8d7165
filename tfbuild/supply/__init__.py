"""The supply chain: what is in an image, what made it, and whether a registry's image is the one described.

contents.py      what an image has in it, read out of its files
sbom.py          that as CycloneDX
provenance.py    what made the image, as an in-toto statement
attachments.py   both beside the report and in a registry
described.py     whether an image in a registry is the one that they describe
"""
