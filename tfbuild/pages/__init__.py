"""HTML pages: templates with one style, and charts.

rendering.py  renders a template as a page that loads nothing else
charts.py     draws ratios and curves as parts of a page
"""
