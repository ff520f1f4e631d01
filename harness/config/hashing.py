"""Hashes of a spec: two with the same training hash give the same weights, so one cell serves both; two with the same
evaluation hash as well measure them alike, so one evaluation serves both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from algorithms import RULES, Objective
from evals.graders import GRADERS, grader_version
from evals.grading.extract import EXTRACTION_VERSION
from evals.grading.pair_judge import read_pair_judge
from evals.metrics import METRICS
from evals.prompts import TEMPLATES, template_version
from evals.tasks import TASKS, get_task, without_mode
from evals.yaml_file import ENDINGS
from harness import plugins
from harness.config import references
from harness.config.engine import ENGINES
from harness.config.knobs import active, acts_of, knob_at
from harness.config.model import Lora
from harness.config.model_source import parse_source
from harness.config.run_spec import RunSpec
from harness.config.trainer import TRAINERS, OutsideTrainer
from harness.errors import RefusedError
from harness.plugins import Kind, UserModule, cached
from harness.records.files import read_json
from harness.rewards.base import PARTS
from harness.rewards.total import is_reference, source_digest
from harness.settings.marks import Hashed

NUMERICS_VERSION = 5
"""Raised whenever the same spec gives other numbers than before; a golden five-step run guards it. 5: layers of the
Llama kind are computed a block of tokens at a time on a CPU, which rounds differently."""


def training_hash(spec: RunSpec) -> str:
    """Names the weights that a cell ends with: blake2b over the active knobs that can change them, and over what these
    refer to: the model, data, template and grader versions, source of reward functions and of plug-ins. Nothing of
    `eval` is in it. Needs no data where their digest is pinned.

    Of a checkpoint that is evaluated only: blake2b over its weights and what else of the model draws samples.

    Raises RefusedError if a local model, demonstrations or a reward function are missing, EvalError if problems are.
    """
    return training_hashes(spec, [spec.seed])[spec.seed]


def training_hashes(spec: RunSpec, seeds: Iterable[int]) -> dict[int, str]:
    """By seed the `training_hash` of cells with the same settings; what these refer to is looked up once."""
    if spec.checkpoint:
        seeded = conditions_of_model(spec)
        document: dict[str, object] = {"checkpoint": seeded, "refers_to": references.outside_engine(spec)}
    else:
        seeded = {knob: value for knob, value in _knobs(spec).items() if not knob.startswith("eval.")}
        grader = spec.reward.grader
        refers_to = {
            **references.outside_engine(spec),
            **references.outside_rule(spec),
            "start": references.start_of(spec),
            "train": references.train_data(spec),
            "extraction_version": EXTRACTION_VERSION,
            "template": template_version(spec.task.template),
            "grader": None if grader is None else grader_version(grader),
            "reward_functions": _reward_functions(spec),
            **({"judge_template": template_version(judge)} if (judge := spec.judge_template) else {}),
            **references.teacher_of(spec),
            **references.program_of(spec),
        }
        document = {"training": seeded, "refers_to": refers_to, "numerics": NUMERICS_VERSION}
    hashes = {}
    for seed in seeds:
        seeded["seed"] = seed
        hashes[seed] = digest(document)
    return hashes


def conditions_of_model(spec: RunSpec) -> dict[str, object]:
    """What of a model that is evaluated as it is, of the machine that runs it and of the noise can change a sample,
    whatever the prompt. Raises RefusedError for files that are not there."""
    return {
        "model": {
            "weights": weights_fingerprint(spec),
            "dtype": spec.model.dtype,
            "chat_template": spec.model.chat_template,
            **_chosen(spec, "model.head_dtype", "rollout.dtype"),
        },
        "seed": spec.seed,
        "engine": spec.rollout.engine,
        "device": spec.train.device.partition(":")[0],
        "numerics": NUMERICS_VERSION,
    }


def weights_fingerprint(spec: RunSpec) -> str:
    """Identifies the weights of a model that is evaluated as it is: equal for equal files, wherever they lie. Raises
    RefusedError for files that are not there."""
    folder = spec.checkpoint_folder
    if folder is None:
        return parse_source(spec.model.source).fingerprint()
    path = folder / "checkpoint.json"
    if not path.is_file():
        raise RefusedError(f"checkpoint {folder}: there is no such checkpoint any more. Restore it, or name another.")
    meta = read_json(path)
    if meta["is_start"]:
        return digest(["the start", starting_point_hash(spec)])
    weights = str(meta["xxh3_128"]["weights.safetensors"])
    # Adapters mean nothing without what they were put on.
    return digest([weights, starting_point_hash(spec)]) if isinstance(spec.model.lora, Lora) else weights


def evaluation_hash(spec: RunSpec) -> str:
    """Names how a trained policy is measured, whatever it is: tasks with their problems, prompts, decoding, how many
    samples, grader, metrics. Raises EvalError if problems are missing."""
    knobs = {knob: value for knob, value in _chosen(spec, "eval.").items() if acts_of(knob).evaluates}
    return digest({"evaluation": knobs, "refers_to": references.evaluated(spec), "numerics": NUMERICS_VERSION})


def semantic_hash(spec: RunSpec) -> str:
    """Name all numbers of a cell, its evaluation included. Raises as `training_hash` and `evaluation_hash`."""
    refers_to = {
        **references.all_of(spec),
        "reward_functions": _reward_functions(spec),
        **references.outside_rule(spec),
        **references.teacher_of(spec),
        **references.program_of(spec),
    }
    return digest({"knobs": _knobs(spec), "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def _reward_functions(spec: RunSpec) -> dict[str, str]:
    """Identifies the code of reward functions, and the frozen generator where it is not the start."""
    found = {part: source for part in spec.reward.parts if (source := source_digest(part))}
    return found | ({"vr_cli": references.model_fingerprint(spec.reward.generator)} if spec.reward.generator else {})


def user_code(spec: RunSpec) -> list[UserModule]:
    """The modules of the user's that the numbers of a spec depend on; each stands in one of its hashes.

    Raises RefusedError for one that cannot be found.
    """
    functions = [part for part in spec.reward.parts if is_reference(part)]
    graders = [grader for grader in (spec.reward.grader, spec.eval.grader) if grader is not None]
    objective = spec.objective
    named: list[tuple[Kind[Any], list[str]]] = [
        (PARTS, [part for part in spec.reward.parts if part not in functions]),
        (RULES, [objective.rule.type] if isinstance(objective, Objective) else []),
        (ENGINES, [spec.rollout.engine]),
        (TRAINERS, [spec.trainer.type]),
        (TASKS, [without_mode(name) for name in (spec.task.train, *spec.eval.tasks)]),
        (TEMPLATES, spec.templates),
        (GRADERS, graders),
        (METRICS, list(METRICS.names())),
    ]
    found = [
        *(plugins.source_of(name.partition(":")[0], f"reward.parts.{name}") for name in functions),
        *(spec.trainer.sources() if isinstance(spec.trainer, OutsideTrainer) and not spec.checkpoint else ()),
        *(module for name in (spec.task.train, *spec.eval.tasks) for module in get_task(name).modules),
        *(source for kind, names in named for name in names if name in kind.names() and (source := kind.source(name))),
    ]
    return list({module.name: module for module in found}.values())


def run_by(spec: RunSpec) -> dict[str, str]:
    """Map what else a cell runs or asks, besides `user_code`, to what messages call it: a program with its settings, a
    model's own code, and judges, which are sent a key. The keys are for `harness.plugins.user_code`."""
    # Not by its version: that leaves out the address, to which a key is sent.
    files = [(judge.name, judge.file) for judge in spec.judges if judge.file is not None]
    found = {f"judge {digest(file.model_dump(mode='json'))}": f"the judge {name}" for name, file in files}
    if spec.model.trust_remote_code:
        source = spec.model.source
        found[f"model {references.model_fingerprint(source)}"] = f"the code of the model {source}"
    if isinstance(spec.trainer, OutsideTrainer) and not spec.checkpoint:
        program = digest(spec.trainer.model_dump(mode="json"))
        found[f"trainer {program}"] = f"the program of trainer.type {spec.trainer.type}"
    return found


def own_templates(spec: RunSpec) -> dict[str, Path]:
    """The files of prompt templates of the user's own, by the names that the spec gives them."""
    return {name: plugins.user_file(name) for name in spec.templates if name.endswith(ENDINGS)}


def code_digests(spec: RunSpec) -> dict[str, str]:
    """The digest of every file of `user_code`, by its dotted name, and of `own_templates` and judges, as this
    process has read them."""
    modules = {
        name: hashlib.blake2b(content, digest_size=20).hexdigest()
        for module in user_code(spec)
        for name, content in module.contents.items()
    }
    templates = {name: str(template_version(name)) for name in own_templates(spec)}
    return modules | templates | {judge.name: str(judge.version) for judge in spec.judges}


def data_digests(spec: RunSpec) -> dict[str, str]:
    """What a cell reads besides code, as it is now: what to call it in a message -> its fingerprint."""
    rows = {f"the problems of {task} (test)": references.problems_of_split(task, "test") for task in spec.eval.tasks}
    if spec.checkpoint:
        model = {f"the model {spec.checkpoint}": weights_fingerprint(spec)}
        return {name: digest(one) for name, one in rows.items()} | model
    if spec.pairs.type == "dataset":
        rows[f"the pairs of {spec.pairs.data}"] = references.train_data(spec)
    else:
        rows[f"the problems of {spec.task.train} (train)"] = references.train_data(spec)
    models = {spec.model.source, *filter(None, [spec.reward.generator])}
    if spec.teacher.type == "model" and spec.teacher.source is not None:
        models.add(spec.teacher.source)
    return {name: digest(one) for name, one in rows.items()} | {
        f"the model {source}": references.model_fingerprint(source) for source in sorted(models)
    }


def base_evaluation_hash(spec: RunSpec) -> str:
    """Names the evaluation of the model before training, with the noise of this spec's seed; whatever is trained on."""
    knobs = _chosen(spec, "model.", "eval.", "rollout.engine", "rollout.dtype", "train.device", "seed")
    refers_to = {"start": references.start_of(spec), **references.evaluated(spec)}
    return digest({"base": knobs, "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def starting_point_hash(spec: RunSpec) -> str:
    """Names the weights that reinforcement learning starts from: the model after its cold start."""
    as_trained = spec.model_copy(update={"checkpoint": None})
    knobs = _chosen(as_trained, "model.cold_start", "model.chat_template", "model.trust_remote_code")
    return digest({"cold_start": knobs, "refers_to": references.start_of(spec), "numerics": NUMERICS_VERSION})


def teacher_hash(spec: RunSpec) -> str:
    """Names the weights of the teacher: its source, or what the student starts from, after its cold start."""
    of_start = ["model.cold_start"] if spec.model_teacher.source is None else []
    knobs = _chosen(spec, *of_start, "teacher.cold_start", "model.chat_template", "model.trust_remote_code")
    return digest({"teacher": knobs, "refers_to": references.teacher_weights_of(spec), "numerics": NUMERICS_VERSION})


def pass_rates_hash(spec: RunSpec) -> str:
    """Names the pass rates that `task.filter` goes by; the same for all seeds, and for filters that differ in their
    bounds only."""
    return graded_hash("pass_rates", spec, "task.filter.samples", "task.filter.problems")


def graded_hash(what: str, spec: RunSpec, *names: str, **others: int | str) -> str:
    """Names what is made of graded completions of the starting weights, by the knobs that start with one of the names.
    others: what else it refers to."""
    of_start = [knob for knob in _knobs(spec) if "start" in acts_of(knob).on]
    knobs, refers_to = _chosen(spec, *of_start, *names), references.graded_rollouts(spec) | others
    return digest({what: knobs, "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def pairs_hash(spec: RunSpec) -> str:
    """Names a set of pairs as tokens, with their log-probs under the starting weights where they are wanted."""
    of_pairs = ("pairs.max_tokens", "pairs.too_long", "objective.reference")
    knobs = _chosen(spec, "model.", *of_pairs, "rollout.temperature", "train.device")
    refers_to = {"start": references.start_of(spec), "pairs": references.train_data(spec)}
    return digest({"pairs": knobs, "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def reward_model_hash(spec: RunSpec) -> str:
    """Names a reward model: the same for all seeds, and whatever is learned from it."""
    return graded_hash("reward_model", spec, "reward.reward_model.")


def best_of_n_hash(spec: RunSpec) -> str:
    """Names the choice among the starting weights' samples by a reward model."""
    return digest({"best_of_n": [base_evaluation_hash(spec), reward_model_hash(spec)]})


def digest(document: object) -> str:
    """40 hexadecimal digits over canonical JSON."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(canonical.encode(), digest_size=20).hexdigest()


def _chosen(spec: RunSpec, *names: str) -> dict[str, object]:
    """Those of the knobs that start with one of the names, for what is made of the start: adapters change nothing until
    they are trained."""
    return {
        knob: value
        for knob, value in _knobs(spec).items()
        if knob.startswith(names) and not knob.startswith("model.lora.")
    }


def _knobs(spec: RunSpec) -> dict[str, Any]:
    knobs = {}
    for knob, value in active(spec).items():
        hashed, default = _how_hashed(knob)
        if hashed.by not in ("content", "nothing") and (hashed.at_default or value != default):
            knobs[knob] = value if value is None or hashed.by == "value" else _identity(hashed, value)
    # The kind of device rounds in its own way; which one of a kind does not matter.
    return knobs | {"train.device": spec.train.device.partition(":")[0]}


@cached
def _how_hashed(name: str) -> tuple[Hashed, Any]:
    """How a knob enters hashes, and its default."""
    knob = knob_at(name)
    return (Hashed(), None) if knob is None else (knob.mark(Hashed) or Hashed(), knob.default)


def _identity(hashed: Hashed, name: str) -> object:
    """What stands in a hash for the name of something."""
    if hashed.by == "template":
        return references.template_identity(name)
    return (
        references.grader_identity(name) if hashed.by == "grader" else references.judge_identity(read_pair_judge(name))
    )
