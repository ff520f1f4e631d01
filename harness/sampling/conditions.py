"""The conditions of sampling and grading: everything other than the model that can change a sample or its verdict."""

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

    The noise of a sample is keyed by seed, split, problem and sample number.
    """

    task: Task
    template: str
    params: SamplingParams
    grader: str
    seed: int
    split: Split = "test"
    thinking_budget_tokens: int | None = None
    """Number of tokens after which a model that is still thinking is told to answer; None: no limit."""
    fits_context: bool = False
    """True if `params.max_completion_tokens` may be lowered to fit into the model's context."""

    @classmethod
    def of_training(cls, spec: RunSpec) -> Conditions:
        """Return the conditions of rollouts before training, with noise that does not depend on a cell's seed."""
        rollout, template = spec.rollout, spec.task.template
        stop = rollout.stop + get_template(template).stop
        params = SamplingParams(rollout.max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k, stop)
        # `spec.environment` has the spec's number of turns for training.
        task = replace(get_task(spec.task.train), environment=spec.environment)
        return cls(task, template, params, spec.rollout_grader, SEED_OF_ALL_CELLS, "train")

    @classmethod
    def of_evaluation(cls, spec: EvalSpec, task: Task, seed: int) -> Conditions:
        """Return the conditions of the evaluation that all arms share, with the noise of a cell's seed."""
        template, grader = spec.template, spec.grader
        # Such a task has its own prompts and comparison, which the spec must not replace.
        if task.asks_itself:
            template, grader = task.template, task.require_grader()
        stop = spec.stop + get_template(template).stop + task.stop
        params = SamplingParams(spec.max_completion_tokens, spec.temperature, spec.top_p, spec.top_k, stop)
        return cls(task, template, params, grader, seed, thinking_budget_tokens=task.thinking_budget_tokens)

    def samples(self, asked: int) -> int:
        """Return how many samples a problem gets if `asked` are requested: 1 if all samples would be equal."""
        return 1 if self.task.gives_choices or self.params.temperature == 0 else asked

    @property
    def stream(self) -> Stream:
        """The stream of random keys for the noise."""
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
        """Sample one completion for each draw, in order.

        Depending on the task, completions are choices, several turns, written under a thinking budget, or plain.

        params: default: the conditions' own. Pass `sampling_params` of the sampler's model if these differ.
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
        """Return the sampling parameters for this model, with the length lowered to its context if `fits_context`.

        Raises RefusedError if the context has no room for a completion.
        """
        if not self.fits_context:
            return self.params
        budget, words = self.thinking_budget_tokens, self.prompts.thinking.stop
        other_tokens = 0 if budget is None else budget + len(model.encode_text(words))
        return fitted(self.params, model, self.prompts, self.task.split(self.split).load(), other_tokens)

    def graded(self, draws: Sequence[Draw], drawn: Sequence[Drawn]) -> list[SampleRow]:
        """Grade samples and return their records. On training problems, only the deciding grader is asked."""
        return graded_rows(self.task, draws, drawn, self.grader, ask_others=self.split == "test")

    @property
    def deciding(self) -> dict[str, object]:
        """The identity of the grader and extraction that decide whether a sample is correct."""
        return {"grader": self.grader, "version": grader_version(self.grader), "extraction": self._extraction}

    @property
    def grading(self) -> dict[str, object]:
        """The identity of all graders and the extraction that stored verdicts depend on."""
        return {"grader": self.grader, "graders": self.graders, "extraction": self._extraction}

    @property
    def _extraction(self) -> dict[str, object]:
        return {"name": extraction_identity(self.task.extract), "version": EXTRACTION_VERSION}

    @property
    def graders(self) -> dict[str, int | str]:
        """Grader -> version, for all graders that compare answers and for the deciding grader."""
        asked = {name for name, grader in GRADERS.all().items() if name == self.grader or not grader.reads_whole}
        return {name: grader_version(name) for name in sorted(asked)}

    def as_json(self, problems: Sequence[Problem]) -> dict[str, object]:
        """Return the conditions that two evaluations of a model must share for their samples to be mixed.

        The numbers of problems and samples are left out, because more can be sampled later. The grader is left out,
        because stored text can be graded again.

        problems: all problems of the task as they were loaded, because a task may have several sources.
        """
        stated = [[problem.id, problem.problem, problem.answer] for problem in problems]
        identity: dict[str, object] = {"task": {"name": self.task.name, "problems": digest(stated)}}
        # Template and decoding cannot change which of the given texts is chosen.
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
    """Return the parameters with max_completion_tokens lowered to the room that the longest prompt leaves.

    problems: all problems of the task, so that the limit does not depend on which are requested or missing.
    other_tokens: number of tokens between prompt and answer.
    Raises RefusedError if there is no room for an answer.
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
