"""What the records of a sweep or a search say: statistics, figures, pages. No GPU, tracker or network is needed.

From the bottom to the top, each room may import those before it:

    statistics  laws                  pure functions of arrays
    formats  processes                how numbers are written; worker processes
    measure                           what is read from records and computed from them
    drawing                           how figures are drawn, whatever they show
    thinking_budget                   the figure of thinking budgets
    shelves                           what few need: fitted laws, words of reflection, over-optimisation
    figures                           the figures of a report; a plug-in adds its own
    page                              the page of a sweep, and `bench compare`
    search                            the page of a search, with its own figures
"""
