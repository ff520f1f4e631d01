"""Under what conditions completions are drawn and graded: all but the model that can change a sample or its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from evals.evaluate import Request, SampleRow, grade_sample
from evals.grading import GRADERS, GradesWhole, get_grader, grade_ahead, grader_version
from evals.grading.extract import EXTRACTION_VERSION
from evals.prompts import Template, get_template, template_version
from evals.sampler import Drawn, Sampler, SamplingParams
from evals.tasks import get_task
from evals.tasks.base import Problem, Task
from harness.config.hashing import digest
from harness.config.run_spec import RunSpec
from harness.config.task import EvalSpec
from harness.errors import RefusedError
from harness.random_keys import SEED_OF_ALL_CELLS, Stream
from harness.records.files import Split

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel
    from harness.sampling.scoring import Policy


@dataclass(frozen=True)
class Conditions:
    """How completions of one task's problems are prompted, drawn and graded.

    The noise of a sample is keyed by seed, split, problem and number.

    thinking_budget_tokens: after so many tokens without the template's end of thinking the model is told to answer;
        None: never.
    fits_context: the length is an upper bound, lowered to what the model's context has room for.
    """

    task: Task
    template: str
    params: SamplingParams
    grader: str
    seed: int
    split: Split = "test"
    thinking_budget_tokens: int | None = None
    fits_context: bool = False

    @classmethod
    def of_training(cls, spec: RunSpec) -> Conditions:
        """Those of rollouts, but with the noise of step 0, before training, and of no cell's seed."""
        rollout, template = spec.rollout, spec.task.template
        stop = rollout.stop + get_template(template).stop
        params = SamplingParams(rollout.max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k, stop)
        task = replace(get_task(spec.task.train), environment=spec.environment)
        return cls(task, template, params, spec.rollout_grader, SEED_OF_ALL_CELLS, "train")

    @classmethod
    def of_evaluation(cls, spec: EvalSpec, task: Task, seed: int) -> Conditions:
        """Those of the one evaluation of all arms, with the noise of a cell's seed."""
        template, grader = spec.template, spec.grader
        if task.asks_itself:
            template, grader = task.template, task.require_grader()
        stop = spec.stop + get_template(template).stop + task.stop
        params = SamplingParams(spec.max_completion_tokens, spec.temperature, spec.top_p, spec.top_k, stop)
        return cls(task, template, params, grader, seed, thinking_budget_tokens=task.thinking_budget_tokens)

    def samples(self, asked: int) -> int:
        """How many samples a problem has where so many are asked for: one where all would be equal."""
        return 1 if self.task.gives_choices or self.params.temperature == 0 else asked

    @property
    def stream(self) -> Stream:
        return "rollout" if self.split == "train" else "eval"

    @property
    def prompts(self) -> Template:
        return get_template(self.template)

    def drawing(self, sampler: Policy, problems: Sequence[Problem]) -> Sampler:
        """How samples of these problems are drawn: in turns, under a thinking budget, or as completions."""
        if self.task.environment is not None:
            return sampler.in_turns(self.task.environment, {problem.id: problem for problem in problems})
        if self.thinking_budget_tokens is not None:
            return sampler.within(self.thinking_budget_tokens, self.prompts.thinking)
        return sampler

    def grade(self, request: Request, drawn: Drawn) -> SampleRow:
        """The record of a drawn sample. On training problems no other graders are asked than the one that decides."""
        return grade_sample(
            self.task,
            request,
            drawn.text,
            drawn.n_tokens,
            drawn.truncated,
            self.grader,
            ask_others=self.split == "test",
            turns=drawn.turns,
        )

    def grade_ahead(self, requests: Sequence[Request], drawn: Sequence[Drawn]) -> None:
        """Before samples are graded by a grader of whole submissions: see `evals.grading.grade_ahead`."""
        if isinstance(grader := get_grader(self.grader), GradesWhole):
            asked = [
                (request.problem, self.task.graded_text(one.text, one.turns))
                for request, one in zip(requests, drawn, strict=True)
            ]
            grade_ahead(asked, grader, self.task.extract)

    @property
    def graded_together(self) -> int:
        """How many samples are graded at once, where they come one by one."""
        grader = get_grader(self.grader)
        return grader.at_once if isinstance(grader, GradesWhole) else 1

    @property
    def deciding(self) -> dict[str, Any]:
        """What decides whether a sample is correct."""
        extraction = {"name": self.task.extract, "version": EXTRACTION_VERSION}
        return {"grader": self.grader, "version": grader_version(self.grader), "extraction": extraction}

    @property
    def grading(self) -> dict[str, Any]:
        """What stored verdicts depend on."""
        return {
            "grader": self.grader,
            "graders": {name: grader_version(name) for name in sorted(self._asked_graders)},
            "extraction": {"name": self.task.extract, "version": EXTRACTION_VERSION},
        }

    @property
    def _asked_graders(self) -> set[str]:
        """The graders that have a name: all that compare answers, and the one that decides."""
        return {
            name for name, grader in GRADERS.all().items() if name == self.grader or not isinstance(grader, GradesWhole)
        }

    def as_json(self, problems: Sequence[Problem]) -> dict[str, Any]:
        """What two evaluations of one model must have in common for their samples to be mixed.

        Not among it: how many problems and samples there are, and the grader, since more can be drawn later and stored
        text can be graded again. problems: all of the task as they were loaded, since it may have several sources.
        """
        identity: dict[str, Any] = {"task": {"name": self.task.name, "problems": problems_digest(problems)}}
        if self.task.gives_choices:
            return identity | {"choices": self.task.split(self.split).fingerprint}
        return identity | {
            "template": {"name": self.prompts.name, "version": template_version(self.template)},
            "decoding": asdict(self.params) | {"stop": list(self.params.stop), "fits_context": self.fits_context},
            "thinking_budget_tokens": self.thinking_budget_tokens,
            **({} if self.task.environment is None else {"environment": self.task.environment.identity}),
        }


def problems_digest(problems: Sequence[Problem]) -> str:
    """40 hexadecimal digits over ids, statements and answers, in their order."""
    return digest([[problem.id, problem.problem, problem.answer] for problem in problems])


def fitted(
    params: SamplingParams, model: LanguageModel, template: Template, problems: Sequence[Problem], other_tokens: int = 0
) -> SamplingParams:
    """The parameters with the length lowered to what the context has room for behind the longest prompt.

    problems: of the whole task, so that the length does not depend on how many of them are asked for, or are missing.
    other_tokens: that stand between prompt and answer. Raises RefusedError if there is no room at all.
    """
    context = getattr(model.model.config, "max_position_embeddings", None)
    if context is None:
        return params
    longest = max(len(model.encode(template.ask(problem))) for problem in problems)
    room = context - longest - other_tokens
    if room < 1:
        between = f" and {other_tokens} of a thinking budget" if other_tokens else ""
        raise RefusedError(
            f"the model's context of {context} tokens has no room for an answer behind a prompt of {longest}{between}. "
            "Take a model with a longer context, another --template, or a smaller --thinking-budget."
        )
    return replace(params, max_completion_tokens=min(params.max_completion_tokens, room))
