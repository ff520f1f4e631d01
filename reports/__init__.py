"""Reports on the records of a sweep or a search: statistics, figures and pages. No GPU, tracker or network is needed.

From the bottom to the top, each package or module may import those before it:

    statistics          pure functions of arrays
    formats             the form of numbers, tables and rows
    processes           worker processes
    report              the typed tree of report.json
    measure             what is read from records and computed from them
    drawing             how figures are drawn, whatever they show
    thinking_budget     the figure of `bench eval --thinking-budget`
    figures             the figures of a report; a plug-in adds its own
    page                the page of a sweep, and `bench compare`
    samples             the page to read samples on
    search              the page of a search, with its own figures
    home                the overview of a home
    shelves             what few need: fitted laws, words of reflection, over-optimisation
"""
