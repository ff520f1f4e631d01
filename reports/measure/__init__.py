"""What is read from the records of a sweep and computed from them: no drawing and no page.

`measurements` reads a cell. `arms`, `cost` and `contrasts` summarise and compare arms; `analysis` holds all of them.
The other modules compute one thing each from an analysis: curves, problems, flips, samples, ...
"""
