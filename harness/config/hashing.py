"""Hashes of a spec, by which cells and evaluations are reused.

Two specs with the same training hash give the same weights, so they share a cell. If they also have the same evaluation
hash, they measure these weights in the same way, so they share an evaluation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from algorithms import RULES, Objective
from evals.graders import GRADERS, grader_version
from evals.grading.extract import EXTRACTION_VERSION, EXTRACTIONS
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

Thing = TypeVar("Thing")

NUMERICS_VERSION = 5
"""Increased whenever the same spec gives different numbers than before. A golden run of five steps guards it.

5: on a CPU, layers of Llama models are computed one block of tokens at a time, which rounds differently.
"""


def training_hash(spec: RunSpec) -> str:
    """Return the hash that identifies the weights with which a cell ends.

    It is a blake2b digest of the active knobs that can change these weights, and of everything they refer to: the
    model, data, template and grader versions, and the source of reward functions and plug-ins. It covers nothing of
    `eval`. Data whose digest is pinned need not be present. If a checkpoint is only evaluated, the hash covers the
    checkpoint's weights and everything else about the model that can change a sample.

    Raises RefusedError if a local model, demonstrations or a reward function are missing, EvalError if problems are.
    """
    return training_hashes(spec, [spec.seed])[spec.seed]


def training_hashes(spec: RunSpec, seeds: Iterable[int]) -> dict[int, str]:
    """Map each seed to the `training_hash` of the cell with that seed. References are resolved only once."""
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
            # An optional entry that does not apply is left out, so that adding it changes no hash of a cell without it.
            **{name: template_version(template) for name, template in spec.scorer_templates.items()},
            **references.teacher_of(spec),
            **references.program_of(spec),
        }
        document = {"training": seeded, "refers_to": refers_to, "numerics": NUMERICS_VERSION}
    hashes = {}
    for seed in seeds:
        # `document` contains `seeded`, so only the seed changes from hash to hash.
        seeded["seed"] = seed
        hashes[seed] = digest(document)
    return hashes


def conditions_of_model(spec: RunSpec) -> dict[str, object]:
    """Return everything about a model that is evaluated as it is that can change a sample, whatever the prompt.

    This covers its weights, its precision, the machine that runs it and the seed of the noise. Raises RefusedError for
    missing files.
    """
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
    """Return a fingerprint of the weights of a model that is evaluated as it is.

    Equal files have equal fingerprints, wherever they are stored. Raises RefusedError for missing files.
    """
    folder = spec.checkpoint_folder
    if folder is None:
        return parse_source(spec.model.source).fingerprint()
    path = folder / "checkpoint.json"
    if not path.is_file():
        raise RefusedError("config.checkpoint_missing", folder=folder)
    meta = read_json(path)
    # A checkpoint of step 0 stores no weights.
    if meta["is_start"]:
        return digest(["the start", starting_point_hash(spec)])
    weights = str(meta["xxh3_128"]["weights.safetensors"])
    # Adapters are meaningless without the weights on which they were trained.
    return digest([weights, starting_point_hash(spec)]) if isinstance(spec.model.lora, Lora) else weights


def evaluation_hash(spec: RunSpec) -> str:
    """Return the hash that identifies how a trained policy is evaluated, whatever the policy is.

    It covers tasks with their problems, prompts, decoding, number of samples, grader and metrics. Raises EvalError if
    problems are missing.
    """
    knobs = {knob: value for knob, value in _chosen(spec, "eval.").items() if acts_of(knob).evaluates}
    return digest({"evaluation": knobs, "refers_to": references.evaluated(spec), "numerics": NUMERICS_VERSION})


def semantic_hash(spec: RunSpec) -> str:
    """Return the hash that identifies all results of a cell, including its evaluation.

    Raises as `training_hash` and `evaluation_hash`.
    """
    refers_to = {
        **references.all_of(spec),
        "reward_functions": _reward_functions(spec),
        **references.outside_rule(spec),
        **references.teacher_of(spec),
        **references.program_of(spec),
    }
    return digest({"knobs": _knobs(spec), "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def _reward_functions(spec: RunSpec) -> dict[str, str]:
    """Return digests of the code of reward functions, and a fingerprint of the generator if it has its own weights."""
    found = {part: source for part in spec.reward.parts if (source := source_digest(part))}
    return found | ({"vr_cli": references.model_fingerprint(spec.reward.generator)} if spec.reward.generator else {})


def user_code(spec: RunSpec) -> list[UserModule]:
    """Return the user's modules that affect a spec's results. Each of them is covered by one of the spec's hashes.

    Raises RefusedError for a module that cannot be found.
    """
    functions = [part for part in spec.reward.parts if is_reference(part)]
    graders = [grader for grader in (spec.reward.grader, spec.eval.grader) if grader is not None]
    objective = spec.objective
    tasks = [spec.task.train, *spec.eval.tasks]
    found = [
        *(plugins.source_of(name.partition(":")[0], f"reward.parts.{name}") for name in functions),
        *(spec.trainer.sources() if isinstance(spec.trainer, OutsideTrainer) and not spec.checkpoint else ()),
        *(module for name in tasks for module in get_task(name).modules),
        *_sources(PARTS, [part for part in spec.reward.parts if part not in functions]),
        *_sources(RULES, [objective.rule.type] if isinstance(objective, Objective) else []),
        *_sources(ENGINES, [spec.rollout.engine]),
        *_sources(TRAINERS, [spec.trainer.type]),
        *_sources(TASKS, [without_mode(name) for name in tasks]),
        *_sources(EXTRACTIONS, [get_task(name).extract for name in tasks]),
        *_sources(TEMPLATES, spec.templates),
        *_sources(GRADERS, graders),
        *_sources(METRICS, METRICS.names()),
    ]
    # Several names may come from the same module.
    return list({module.name: module for module in found}.values())


def _sources(kind: Kind[Thing], names: Iterable[str]) -> Iterator[UserModule]:
    """Yield the plug-ins that define these names. Names that are not of this kind are ignored."""
    yield from (source for name in names if name in kind.names() and (source := kind.source(name)))


def run_by(spec: RunSpec) -> dict[str, str]:
    """Return what else a cell runs or asks, other than `user_code`, with its names in messages.

    It may run an outside program, run a model's own code, and ask judges, to which it sends a key. The keys of the
    mapping identify each of them by content, for `harness.plugins.user_code`.
    """
    # A judge's version does not cover its address, to which a key is sent. The digest of the complete file does.
    files = [(judge.name, judge.file) for judge in spec.judges]
    found = {f"judge {digest(file.model_dump(mode='json'))}": f"the judge {name}" for name, file in files}
    if spec.model.trust_remote_code:
        source = spec.model.source
        found[f"model {references.model_fingerprint(source)}"] = f"the code of the model {source}"
    if isinstance(spec.trainer, OutsideTrainer) and not spec.checkpoint:
        program = digest(spec.trainer.model_dump(mode="json"))
        found[f"trainer {program}"] = f"the program of trainer.type {spec.trainer.type}"
    return found


def own_templates(spec: RunSpec) -> dict[str, Path]:
    """Map the user's own prompt templates, as the spec names them, to their files."""
    return {name: plugins.user_file(name) for name in spec.templates if name.endswith(ENDINGS)}


def code_digests(spec: RunSpec) -> dict[str, str]:
    """Return the digests of all files of `user_code`, `own_templates` and judges, as this process read them.

    Files of modules are named by their dotted names.
    """
    modules = {
        name: hashlib.blake2b(content, digest_size=20).hexdigest()
        for module in user_code(spec)
        for name, content in module.contents.items()
    }
    templates = {name: str(template_version(name)) for name in own_templates(spec)}
    return modules | templates | {judge.name: str(judge.version) for judge in spec.judges}


def data_digests(spec: RunSpec) -> dict[str, str]:
    """Map the data and models that a cell reads, as named in messages, to their present fingerprints."""
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
    """Return the hash that identifies the evaluation of the model before training, with the noise of this spec's seed.

    It does not depend on the training data.
    """
    knobs = _chosen(spec, "model.", "eval.", "rollout.engine", "rollout.dtype", "train.device", "seed")
    refers_to = {"start": references.start_of(spec), **references.evaluated(spec)}
    return digest({"base": knobs, "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def starting_point_hash(spec: RunSpec) -> str:
    """Return the hash that identifies the weights from which training starts: the model after its cold start."""
    # If the spec evaluates a checkpoint, the knobs of the cold start would not be active.
    as_trained = spec.model_copy(update={"checkpoint": None})
    knobs = _chosen(as_trained, "model.cold_start", "model.chat_template", "model.trust_remote_code")
    return digest({"cold_start": knobs, "refers_to": references.start_of(spec), "numerics": NUMERICS_VERSION})


def teacher_hash(spec: RunSpec) -> str:
    """Return the hash that identifies the teacher's weights after its cold start.

    They are trained from the teacher's own source, or from the student's starting weights.
    """
    of_start = ["model.cold_start"] if spec.model_teacher.source is None else []
    knobs = _chosen(spec, *of_start, "teacher.cold_start", "model.chat_template", "model.trust_remote_code")
    return digest({"teacher": knobs, "refers_to": references.teacher_weights_of(spec), "numerics": NUMERICS_VERSION})


def pass_rates_hash(spec: RunSpec) -> str:
    """Return the hash that identifies the pass rates that `task.filter` uses.

    It is the same for all seeds, and for filters that differ only in their bounds.
    """
    return graded_hash("pass_rates", spec, "task.filter.samples", "task.filter.problems")


def graded_hash(what: str, spec: RunSpec, *names: str, **others: int | str) -> str:
    """Return the hash that identifies a result computed from graded completions of the starting weights.

    what: the kind of result.
    names: prefixes of the knobs on which it depends.
    others: further content on which it depends.
    """
    of_start = [knob for knob in _knobs(spec) if "start" in acts_of(knob).on]
    knobs, refers_to = _chosen(spec, *of_start, *names), references.graded_rollouts(spec) | others
    return digest({what: knobs, "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def pairs_hash(spec: RunSpec) -> str:
    """Return the hash that identifies a tokenised set of pairs.

    It also covers what determines their log-probs under the starting weights, where the objective needs them.
    """
    of_pairs = ("pairs.max_tokens", "pairs.too_long", "objective.reference")
    knobs = _chosen(spec, "model.", *of_pairs, "rollout.temperature", "train.device")
    refers_to = {"start": references.start_of(spec), "pairs": references.train_data(spec)}
    return digest({"pairs": knobs, "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def digest(document: object) -> str:
    """Return 40 hexadecimal digits: the blake2b digest of the document's canonical JSON."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(canonical.encode(), digest_size=20).hexdigest()


def _chosen(spec: RunSpec, *names: str) -> dict[str, object]:
    """Return the active knobs that start with one of these names, for results computed from the starting weights.

    Adapters are left out, because they have no effect before they are trained.
    """
    return {
        knob: value
        for knob, value in _knobs(spec).items()
        if knob.startswith(names) and not knob.startswith("model.lora.")
    }


def _knobs(spec: RunSpec) -> dict[str, object]:
    """Return the active knobs in the form in which they enter a hash."""
    knobs: dict[str, object] = {}
    for knob, value in active(spec).items():
        hashed, default = _how_hashed(knob)
        if hashed.by not in ("content", "nothing") and (hashed.at_default or value != default):
            is_name = hashed.by != "value" and isinstance(value, str)
            knobs[knob] = _identity(spec, knob, hashed, str(value)) if is_name else value
    # Each kind of device rounds in its own way. Which of several equal devices is used does not matter.
    return knobs | {"train.device": spec.train.device.partition(":")[0]}


@cached
def _how_hashed(name: str) -> tuple[Hashed, object]:
    knob = knob_at(name)
    # An unknown knob is hashed by its value.
    return (Hashed(), None) if knob is None else (knob.mark(Hashed) or Hashed(), knob.default)


def _identity(spec: RunSpec, knob: str, hashed: Hashed, name: str) -> object:
    """Return what enters the hash in place of the name of a judge, template or grader."""
    if hashed.by == "judge":
        return references.judge_identity(spec.reward.asked_judges[knob])
    return references.template_identity(name) if hashed.by == "template" else references.grader_identity(name)
