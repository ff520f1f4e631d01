"""Reports on the records of a sweep or a search: statistics, figures and pages. No GPU, tracker or network is needed.

Listed from the bottom up. Each package or module may import those above it in the list:

    statistics          pure functions of arrays
    formats             how numbers, tables and rows are written
    processes           worker processes
    report              the typed tree of report.json
    measure             what is read from records and computed from them
    drawing             how figures are drawn, whatever they show
    thinking_budget     the figure of `bench eval --thinking-budget`
    figures             the figures of a report; a plug-in adds its own
    page                the page of a sweep, and `bench compare`
    samples             the page for reading samples
    search              the page of a search, with its own figures
    home                the overview of a home
    shelves             optional parts: fitted laws, words of reflection, over-optimisation
"""
