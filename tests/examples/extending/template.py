"""A prompt template that asks for the answer alone. `task.template: terse` trains with it."""

from __future__ import annotations

from evals import Template

terse = Template(
    name="terse",
    version=1,  # raise it with every change, so that scores under two texts never mix
    system="You answer with a number and nothing else.",
    text="{problem}",  # the one hole, where the problem goes
    chat=True,  # a list of messages, which the tokenizer's chat template frames
    stop=("\n",),  # nothing after a line belongs to the answer
)
