"""A prompt template that asks only for the answer. `task.template: terse` trains with it."""

from __future__ import annotations

from evals import Template

terse = Template(
    name="terse",
    version=1,  # raise it with every change, so that scores of two texts never mix
    system="You answer with a number and nothing else.",
    text="{problem}",  # the placeholder of the problem
    chat=True,  # a list of messages, formatted by the tokenizer's chat template
    stop=("\n",),  # a line break ends the answer
)
