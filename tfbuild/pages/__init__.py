"""HTML pages: templates with one style, and charts of ratios.

rendering.py  renders a template as a page that loads nothing else, and writes it
charts.py     draws ratios, bars and curves as parts of a page
"""
