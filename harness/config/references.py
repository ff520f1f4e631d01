"""The identity of everything that a spec refers to by name: models, data, templates, graders, plug-ins.

In a hash, each of them is identified by its content. Paths are never hashed.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from algorithms import RULES, Objective
from evals.graders import grader_version, judge_of
from evals.grading.asked_model import Asking
from evals.grading.extract import EXTRACTION_VERSION, extraction_identity
from evals.metrics import metric_sources
from evals.pairs import parse_pair_source
from evals.prompts import template_version
from evals.tasks import get_task, task_source
from evals.yaml_file import ENDINGS
from harness.config.engine import AUTO, ENGINES
from harness.config.model import SOLUTIONS_OF, ColdStart
from harness.config.model_source import parse_source
from harness.config.run_spec import RunSpec
from harness.config.trainer import TRAINERS, OutsideTrainer
from harness.errors import RefusedError


def outside_engine(spec: RunSpec) -> dict[str, str]:
    """Return the digest of an engine that is a plug-in, or {} for shipped engines, which NUMERICS_VERSION covers."""
    source = None if spec.rollout.engine == AUTO else ENGINES.source(spec.rollout.engine)
    return {} if source is None else {"engine": source.digest}


def graded_rollouts(spec: RunSpec) -> dict[str, object]:
    """Return the identity of all that determines the starting weights' graded completions of training problems."""
    return {
        **outside_engine(spec),
        "start": start_of(spec),
        "train": problems_of_split(spec.task.train, "train"),
        "extraction_version": EXTRACTION_VERSION,
        "template": template_version(spec.task.template),
        "grader": grader_version(spec.rollout_grader),
    }


def outside_rule(spec: RunSpec) -> dict[str, str]:
    """Return the digest of a rule that is a plug-in, or {} for shipped rules, which NUMERICS_VERSION covers."""
    source = RULES.source(spec.objective.rule.type) if isinstance(spec.objective, Objective) else None
    return {} if source is None else {"rule": source.digest}


def start_of(spec: RunSpec) -> dict[str, object]:
    """Return the identity of the weights from which reinforcement learning starts."""
    return {"model": model_fingerprint(spec.model.source), **_demonstrated(spec.model.cold_start)}


def teacher_of(spec: RunSpec) -> dict[str, object]:
    """Return the identity of the teacher's weights and prompt, or {} if there is no teacher."""
    if spec.teacher.type == "none":
        return {}
    return {"teacher": teacher_weights_of(spec) | {"prompt": template_version(spec.teacher_template)}}


def program_of(spec: RunSpec) -> dict[str, object]:
    """Return the identity of the program that trains a cell, or {} if bench trains.

    The path of the program's interpreter is left out.
    """
    trainer = spec.trainer
    if not isinstance(trainer, OutsideTrainer) or spec.checkpoint:
        return {}
    # Paths and the seed differ from cell to cell, so placeholders stand in for them.
    command, *words = trainer.argv("{config}", "{output}", 0)
    files = {source.name: source.digest for source in trainer.sources()}
    plugin = TRAINERS.source(trainer.type)
    own = {} if plugin is None else {"plugin": plugin.digest}
    return {"program": {"command": [Path(command).name, *words], "files": files, **own}}


def teacher_weights_of(spec: RunSpec) -> dict[str, object]:
    """Return the identity of what a teacher's weights are made from, except the knobs of its cold start."""
    teacher = spec.model_teacher
    own = start_of(spec) if teacher.source is None else {"model": model_fingerprint(teacher.source)}
    return {"source": own, "cold_start": _demonstrated(teacher.cold_start)}


def _demonstrated(recipe: ColdStart) -> dict[str, object]:
    """Return the identity of the data of a cold start, or {} if there is no cold start."""
    if recipe.type == "none":
        return {}
    return {"demonstrations": _demonstrations(recipe.data), "template": template_version(recipe.template)}


def _demonstrations(data: str) -> str | dict[str, str]:
    """Return the identity of demonstrations.

    It is the digest of a file, the name of generated demonstrations, or the problems to which the solutions belong.
    """
    if data.startswith("demonstrations:"):
        return data
    if data.startswith(SOLUTIONS_OF):
        return problems_of_split(data.removeprefix(SOLUTIONS_OF), "train")
    try:
        return hashlib.blake2b(Path(data).read_bytes(), digest_size=20).hexdigest()
    except OSError as error:
        raise RefusedError("config.demonstrations_unreadable", data=data, reason=error.strerror) from None


def template_identity(given: str) -> str:
    """Return a template's name or, for the path of a file, the digest of its content."""
    return str(template_version(given)) if given.endswith(ENDINGS) else given


def grader_identity(given: str | None) -> object:
    """Return a grader's name or, for a judge, its `judge_identity`."""
    judge = judge_of(given)
    return given if judge is None else judge_identity(judge)


def judge_identity(judge: Asking) -> object:
    """Return the digest of those fields of a judge's file that can change a verdict.

    If the judge has a `source`, the fingerprint of its model's files is added.
    """
    return judge.version if judge.file.source is None else [judge.version, model_fingerprint(judge.file.source)]


def problems_of_split(task_name: str, split: str) -> dict[str, str]:
    """Return the identity of one split of a task: its problems, and how answers are extracted from completions."""
    task, source = get_task(task_name), task_source(task_name)
    problems = {"task": task.name, "extract": extraction_identity(task.extract), "rows": task.split(split).fingerprint}
    if task.environment is not None:
        problems["environment"] = "v{version}, {max_turns} turns".format(**task.environment.identity)
    return problems if source is None else problems | {"source": source}


def train_data(spec: RunSpec) -> dict[str, str]:
    """Return the identity of the training data: a set of pairs, or the problems for which completions are sampled."""
    if spec.pairs.type == "dataset":
        return {"pairs": parse_pair_source(spec.pairs.data, spec.pairs.split).fingerprint}
    return problems_of_split(spec.task.train, "train")


def evaluated(spec: RunSpec) -> dict[str, object]:
    """Return the identity of everything that an evaluation refers to."""
    return {
        **outside_engine(spec),
        "eval": [problems_of_split(name, "test") for name in spec.eval.tasks],
        "extraction_version": EXTRACTION_VERSION,
        "template": template_version(spec.eval.template),
        "grader": grader_version(spec.eval.grader),
        **({"metrics": own} if (own := metric_sources()) else {}),
    }


def all_of(spec: RunSpec) -> dict[str, object]:
    """Return the identity of everything that training and evaluation refer to."""
    graders = {name for name in (spec.reward.grader, spec.eval.grader) if name is not None}
    templates = (spec.task.template, spec.eval.template)
    return {
        **outside_engine(spec),
        **start_of(spec),
        "train": train_data(spec),
        "eval": [problems_of_split(name, "test") for name in spec.eval.tasks],
        "extraction_version": EXTRACTION_VERSION,
        "templates": {template_identity(name): template_version(name) for name in templates},
        "graders": {str(grader_identity(name)): grader_version(name) for name in sorted(graders)},
        **({"metrics": own} if (own := metric_sources()) else {}),
    }


# The result is cached, because computing it reads all files of the model.
@lru_cache
def model_fingerprint(source: str) -> str:
    return parse_source(source).fingerprint()
