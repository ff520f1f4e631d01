"""How figures are drawn, whatever they show: style, panels, curves, grids of panels, and the files of a figure.

A figure of `reports.figures`, or of a plug-in, returns a `rendering.Drawing`. Matplotlib is imported only inside
functions.
"""
