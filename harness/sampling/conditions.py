"""The conditions of sampling and grading: everything but the model that can change a sample or its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from evals.evaluate import graded_rows
from evals.graders import GRADERS, grader_version
from evals.grading.extract import EXTRACTION_VERSION, extraction_identity
from evals.prompts import Template, get_template, template_version
from evals.sampler import Draw, Drawn, SamplingParams
from evals.samples import SampleRow
from evals.tasks import get_task
from evals.tasks.base import Problem, Task
from harness.config.hashing import digest
from harness.config.run_spec import RunSpec
from harness.config.task import EvalSpec
from harness.errors import RefusedError
from harness.random_keys import SEED_OF_ALL_CELLS, Stream
from harness.records.files import Split
from harness.sampling.scoring import choose

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel
    from harness.sampling.sampler import EngineSampler, OnDrawn


@dataclass(frozen=True)
class Conditions:
    """How completions of one task's problems are prompted, sampled and graded.

    The noise of a sample is keyed by seed, split, problem and number.
    """

    task: Task
    template: str
    params: SamplingParams
    grader: str
    seed: int
    split: Split = "test"
    thinking_budget_tokens: int | None = None
    """After so many tokens without the template's end of thinking, the model is told to answer; None: never."""
    fits_context: bool = False
    """The length is an upper bound, lowered to what the model's context has room for."""

    @classmethod
    def of_training(cls, spec: RunSpec) -> Conditions:
        """Return the conditions of rollouts, with the noise of step 0 (before training) and of no cell's seed."""
        rollout, template = spec.rollout, spec.task.template
        stop = rollout.stop + get_template(template).stop
        params = SamplingParams(rollout.max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k, stop)
        # `spec.environment` has the number of turns that the spec sets for training.
        task = replace(get_task(spec.task.train), environment=spec.environment)
        return cls(task, template, params, spec.rollout_grader, SEED_OF_ALL_CELLS, "train")

    @classmethod
    def of_evaluation(cls, spec: EvalSpec, task: Task, seed: int) -> Conditions:
        """Return the conditions of the one evaluation of all arms, with the noise of a cell's seed."""
        template, grader = spec.template, spec.grader
        # Such a task brings its own prompts and comparison, which the spec's must not replace.
        if task.asks_itself:
            template, grader = task.template, task.require_grader()
        stop = spec.stop + get_template(template).stop + task.stop
        params = SamplingParams(spec.max_completion_tokens, spec.temperature, spec.top_p, spec.top_k, stop)
        return cls(task, template, params, grader, seed, thinking_budget_tokens=task.thinking_budget_tokens)

    def samples(self, asked: int) -> int:
        """Return how many samples a problem gets if `asked` are requested: one if all would be equal."""
        return 1 if self.task.gives_choices or self.params.temperature == 0 else asked

    @property
    def stream(self) -> Stream:
        """The stream of random keys that the noise comes from."""
        return "rollout" if self.split == "train" else "eval"

    @property
    def prompts(self) -> Template:
        """The prompt template."""
        return get_template(self.template)

    def draw(
        self,
        sampler: EngineSampler,
        draws: Sequence[Draw],
        params: SamplingParams | None = None,
        on_drawn: OnDrawn = lambda index, drawn: None,
    ) -> list[Drawn]:
        """Sample the completions of these draws, in their order: choices, in turns, under a thinking budget, or plain.

        params: the `sampling_params` of the sampler's model, if they differ from those of the conditions.
        """
        params = params or self.params
        # The order matters: choices are never written, and an environment has no thinking budget.
        if self.task.gives_choices:
            return choose(draws, sampler)
        if self.task.environment is not None:
            return sampler.draw_in_turns(draws, params, self.task.environment, on_drawn)
        if self.thinking_budget_tokens is not None:
            return sampler.draw_within(draws, params, self.thinking_budget_tokens, self.prompts.thinking, on_drawn)
        return sampler.draw(draws, params, on_drawn)

    def sampling_params(self, model: LanguageModel) -> SamplingParams:
        """Return how this model samples: if the length is an upper bound, no longer than its context has room for.

        Raises RefusedError if there is no room at all.
        """
        if not self.fits_context:
            return self.params
        budget, words = self.thinking_budget_tokens, self.prompts.thinking.stop
        other_tokens = 0 if budget is None else budget + len(model.encode_text(words))
        return fitted(self.params, model, self.prompts, self.task.split(self.split).load(), other_tokens)

    def graded(self, draws: Sequence[Draw], drawn: Sequence[Drawn]) -> list[SampleRow]:
        """Grade samples and return their records.

        On training problems only the grader that decides is asked.
        """
        return graded_rows(self.task, draws, drawn, self.grader, ask_others=self.split == "test")

    @property
    def deciding(self) -> dict[str, object]:
        """The identity of everything that decides whether a sample is correct."""
        return {"grader": self.grader, "version": grader_version(self.grader), "extraction": self._extraction}

    @property
    def grading(self) -> dict[str, object]:
        """The identity of everything that stored verdicts depend on."""
        return {"grader": self.grader, "graders": self.graders, "extraction": self._extraction}

    @property
    def _extraction(self) -> dict[str, object]:
        return {"name": extraction_identity(self.task.extract), "version": EXTRACTION_VERSION}

    @property
    def graders(self) -> dict[str, int | str]:
        """The versions of the graders that are asked by name: all that compare answers, and the one that decides."""
        asked = {name for name, grader in GRADERS.all().items() if name == self.grader or not grader.reads_whole}
        return {name: grader_version(name) for name in sorted(asked)}

    def as_json(self, problems: Sequence[Problem]) -> dict[str, object]:
        """Return what two evaluations of one model must have in common for their samples to be mixed.

        The number of problems and of samples is left out, since more can be sampled later. So is the grader, since
        stored text can be graded again. problems: all of the task as they were loaded, since it may have several
        sources.
        """
        stated = [[problem.id, problem.problem, problem.answer] for problem in problems]
        identity: dict[str, object] = {"task": {"name": self.task.name, "problems": digest(stated)}}
        # Neither template nor decoding can change which of the given texts is chosen.
        if self.task.gives_choices:
            return identity | {"choices": self.task.split(self.split).fingerprint}
        return identity | {
            "template": {"name": self.prompts.name, "version": template_version(self.template)},
            "decoding": asdict(self.params) | {"stop": list(self.params.stop), "fits_context": self.fits_context},
            "thinking_budget_tokens": self.thinking_budget_tokens,
            **({} if self.task.environment is None else {"environment": self.task.environment.identity}),
        }


def fitted(
    params: SamplingParams, model: LanguageModel, template: Template, problems: Sequence[Problem], other_tokens: int = 0
) -> SamplingParams:
    """Return the parameters with the length lowered to what the context leaves after the longest prompt.

    problems: of the whole task, so that the length does not depend on how many are requested or missing. other_tokens:
    tokens between prompt and answer. Raises RefusedError if there is no room at all.
    """
    context = model.context_tokens
    if context is None:
        return params
    longest = model.longest(template.ask(problem) for problem in problems)
    room = context - longest - other_tokens
    if room < 1:
        between = f" and {other_tokens} of a thinking budget" if other_tokens else ""
        raise RefusedError(
            "sampling.no_room_for_answer", context_tokens=context, prompt_tokens=longest, between=between
        )
    return replace(params, max_completion_tokens=min(params.max_completion_tokens, room))
