"""Hashes of a spec: two with the same training hash give the same weights, so one cell serves both; two with the same
evaluation hash as well measure them alike, so one evaluation serves both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from algorithms import RULES, Objective
from evals.grading import GRADERS, grader_version
from evals.grading.extract import EXTRACTION_VERSION
from evals.metrics import METRICS, metric_sources
from evals.pairs import parse_pair_source
from evals.prompts import TEMPLATES, template_version
from evals.tasks import TASKS, get_task, task_source
from evals.yaml_file import ENDINGS
from harness import plugins
from harness.config.engine import AUTO, ENGINES
from harness.config.knobs import active
from harness.config.model import Lora
from harness.config.model_source import parse_source
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.plugins import Kind, UserModule
from harness.records.files import read_json
from harness.rewards.base import PARTS
from harness.rewards.total import is_reference, source_digest

NUMERICS_VERSION = 4
"""Raised whenever the same spec gives other numbers than before; a golden five-step run guards it. 4: kernels of
decoding, attention and AdamW round differently on a CPU, and entropy/* and mismatch/* may stand on a sample of rows."""

# These may be paths. What lies there is hashed in their place.
_REFERRING = ("model.source", "model.cold_start.data", "task.train", "eval.tasks", "pairs.data")
# These too, but the name of a template that has one is hashed as well.
_TEMPLATES = ("task.template", "eval.template", "model.cold_start.template")

# Another GPU needs another share of its memory for the same numbers, and what is only recorded changes none. How many
# processes train a cell changes no more than rounding, as threads and processors do; each start records it.
_NOT_HASHED = (
    *("rollout.vllm_memory_frac", "train.token_records_max_tokens"),
    *("train.processes", "train.sharding"),
)

# Knobs of a later version than cells that are filed already. Left at these values they change nothing.
_HASHED_UNLESS: dict[str, Any] = {"eval.stop": []}

# They say how often training is watched. Noise is keyed, so watching it changes no weight and no final score.
_OF_CURVES = ("eval.every", "eval.curve_samples")

# What decides how a completion of the starting weights is drawn and graded. Knobs that start with one of these.
_OF_GRADED_ROLLOUTS = (
    "model.",
    "task.template",
    "reward.grader",
    "rollout.engine",
    "rollout.max_completion_tokens",
    "rollout.temperature",
    "rollout.top_",
    "rollout.stop",
    "train.device",
)
_OF_PASS_RATES = (*_OF_GRADED_ROLLOUTS, "task.filter.samples", "task.filter.problems")
_OF_REWARD_MODEL = (*_OF_GRADED_ROLLOUTS, "reward.reward_model.")


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
        document: dict[str, Any] = {"checkpoint": seeded, "refers_to": _outside_engine(spec)}
    else:
        seeded = {knob: value for knob, value in _knobs(spec).items() if not knob.startswith("eval.")}
        grader = spec.reward.grader
        refers_to = {
            **_outside_engine(spec),
            **_outside_rule(spec),
            "start": _start(spec),
            "train": _train_data(spec),
            "extraction_version": EXTRACTION_VERSION,
            "template": template_version(spec.task.template),
            "grader": None if grader is None else grader_version(grader),
            "reward_functions": _reward_functions(spec),
        }
        document = {"training": seeded, "refers_to": refers_to, "numerics": NUMERICS_VERSION}
    hashes = {}
    for seed in seeds:
        seeded["seed"] = seed
        hashes[seed] = digest(document)
    return hashes


def conditions_of_model(spec: RunSpec) -> dict[str, Any]:
    """What of a model that is evaluated as it is, of the machine that runs it and of the noise can change a sample,
    whatever the prompt. Raises RefusedError for files that are not there."""
    return {
        "model": {
            "weights": weights_fingerprint(spec),
            "dtype": spec.model.dtype,
            "chat_template": spec.model.chat_template,
        },
        "seed": spec.seed,
        "engine": spec.rollout.engine,
        "device": spec.train.device.partition(":")[0],
        "numerics": NUMERICS_VERSION,
    }


def weights_fingerprint(spec: RunSpec) -> str:
    """Identifies the weights of a model that is evaluated as it is: equal for equal files, wherever they lie.

    Raises RefusedError for files that are not there.
    """
    folder = spec.checkpoint_folder
    if folder is None:
        return parse_source(spec.model.source).fingerprint()
    path = folder / "checkpoint.json"
    if not path.is_file():
        raise RefusedError(f"checkpoint {folder}: there is no such checkpoint any more. Restore it, or name another.")
    meta = read_json(path)
    if meta.get("is_start"):
        return digest(["the start", starting_point_hash(spec)])
    weights = str(meta["blake2b"]["weights.safetensors"])
    # Adapters mean nothing without what they were put on.
    return digest([weights, starting_point_hash(spec)]) if isinstance(spec.model.lora, Lora) else weights


def evaluation_hash(spec: RunSpec) -> str:
    """Names how a trained policy is measured, whatever it is: tasks with their problems, prompts, decoding, how many
    samples, grader, metrics. Raises EvalError if problems are missing."""
    knobs = {knob: value for knob, value in _chosen(spec, "eval.").items() if knob not in _OF_CURVES}
    return digest({"evaluation": knobs, "refers_to": _evaluated(spec), "numerics": NUMERICS_VERSION})


def semantic_hash(spec: RunSpec) -> str:
    """Names all numbers of a cell, those of its evaluation included. Earlier versions filed cells under it.

    Raises as `training_hash` and `evaluation_hash`.
    """
    return _semantic_hash(spec, {})


def earlier_hash(spec: RunSpec) -> str | None:
    """The semantic hash of versions that fingerprinted a model's folder otherwise; None if it is the same. Raises as
    `semantic_hash`."""
    earlier = _earlier_fingerprint(spec.model.source)
    return None if earlier == _fingerprint(spec.model.source) else _semantic_hash(spec, {"model": earlier})


def _semantic_hash(spec: RunSpec, instead: dict[str, Any]) -> str:
    refers_to = _references(spec) | {"reward_functions": _reward_functions(spec)} | _outside_rule(spec) | instead
    return digest({"knobs": _knobs(spec), "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def _reward_functions(spec: RunSpec) -> dict[str, str]:
    return {part: source for part in spec.reward.parts if (source := source_digest(part))}


def user_code(spec: RunSpec) -> list[UserModule]:
    """The modules of the user's that the numbers of a spec depend on; each stands in one of its hashes.

    Raises RefusedError for one that cannot be found.
    """
    functions = [part for part in spec.reward.parts if is_reference(part)]
    graders = [grader for grader in (spec.reward.grader, spec.eval.grader) if grader is not None]
    recipe = spec.model.cold_start
    objective = spec.objective
    named: list[tuple[Kind[Any], list[str]]] = [
        (PARTS, [part for part in spec.reward.parts if part not in functions]),
        (RULES, [objective.rule.type] if isinstance(objective, Objective) else []),
        (ENGINES, [spec.rollout.engine]),
        (TASKS, [spec.task.train, *spec.eval.tasks]),
        (TEMPLATES, [spec.task.template, spec.eval.template, *([recipe.template] if recipe.type == "sft" else [])]),
        (GRADERS, graders),
        (METRICS, list(METRICS.names())),
    ]
    found = [
        *(plugins.source_of(name.partition(":")[0], f"reward.parts.{name}") for name in functions),
        *(source for kind, names in named for name in names if name in kind.names() and (source := kind.source(name))),
    ]
    return list({module.name: module for module in found}.values())


def own_templates(spec: RunSpec) -> dict[str, Path]:
    """The files of prompt templates of the user's own, by the names that the spec gives them."""
    recipe = spec.model.cold_start
    named = [spec.task.template, spec.eval.template, *([recipe.template] if recipe.type == "sft" else [])]
    return {name: plugins.user_file(name) for name in named if name.endswith(ENDINGS)}


def code_digests(spec: RunSpec) -> dict[str, str]:
    """The digest of every file of `user_code`, by its dotted name, and of `own_templates`, as this process has read
    them."""
    modules = {
        name: hashlib.blake2b(content, digest_size=20).hexdigest()
        for module in user_code(spec)
        for name, content in module.contents.items()
    }
    return modules | {name: str(template_version(name)) for name in own_templates(spec)}


def data_digests(spec: RunSpec) -> dict[str, str]:
    """What a cell reads besides code, as it is now: what to call it in a message -> its fingerprint."""
    rows = {f"the problems of {task} (test)": _problems(task, "test") for task in spec.eval.tasks}
    if spec.checkpoint:
        model = {f"the model {spec.checkpoint}": weights_fingerprint(spec)}
        return {name: digest(one) for name, one in rows.items()} | model
    if spec.pairs.type == "dataset":
        rows[f"the pairs of {spec.pairs.data}"] = _train_data(spec)
    else:
        rows[f"the problems of {spec.task.train} (train)"] = _train_data(spec)
    return {name: digest(one) for name, one in rows.items()} | {
        f"the model {spec.model.source}": _fingerprint(spec.model.source)
    }


def base_evaluation_hash(spec: RunSpec) -> str:
    """Names the evaluation of the model before training, with the noise of this spec's seed; whatever is trained on."""
    knobs = _chosen(spec, "model.", "eval.", "rollout.engine", "train.device", "seed")
    refers_to = {"start": _start(spec), **_evaluated(spec)}
    return digest({"base": knobs, "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def starting_point_hash(spec: RunSpec) -> str:
    """Names the weights that reinforcement learning starts from: the model after its cold start."""
    as_trained = spec.model_copy(update={"checkpoint": None})
    knobs = _chosen(as_trained, "model.cold_start", "model.chat_template", "model.trust_remote_code")
    return digest({"cold_start": knobs, "refers_to": _start(spec), "numerics": NUMERICS_VERSION})


def pass_rates_hash(spec: RunSpec) -> str:
    """Names the pass rates that `task.filter` goes by; the same for all seeds, and for filters that differ in their
    bounds only."""
    knobs = _chosen(spec, *_OF_PASS_RATES)
    return digest({"pass_rates": knobs, "refers_to": _graded_rollouts(spec), "numerics": NUMERICS_VERSION})


def pairs_hash(spec: RunSpec) -> str:
    """Names a set of pairs as tokens, with their log-probs under the starting weights where they are wanted."""
    of_pairs = ("pairs.max_tokens", "pairs.too_long", "objective.reference")
    knobs = _chosen(spec, "model.", *of_pairs, "rollout.temperature", "train.device")
    refers_to = {"start": _start(spec), "pairs": _train_data(spec)}
    return digest({"pairs": knobs, "refers_to": refers_to, "numerics": NUMERICS_VERSION})


def reward_model_hash(spec: RunSpec) -> str:
    """Names a reward model: the same for all seeds, and whatever is learned from it."""
    knobs = _chosen(spec, *_OF_REWARD_MODEL)
    return digest({"reward_model": knobs, "refers_to": _graded_rollouts(spec), "numerics": NUMERICS_VERSION})


def best_of_n_hash(spec: RunSpec) -> str:
    """Names the choice among the starting weights' samples by a reward model."""
    return digest({"best_of_n": [base_evaluation_hash(spec), reward_model_hash(spec)]})


def digest(document: Any) -> str:
    """40 hexadecimal digits over canonical JSON."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(canonical.encode(), digest_size=20).hexdigest()


def _chosen(spec: RunSpec, *names: str) -> dict[str, Any]:
    """Those of the knobs that start with one of the names, for what is made of the start: adapters change nothing until
    they are trained."""
    return {
        knob: value
        for knob, value in _knobs(spec).items()
        if knob.startswith(names) and not knob.startswith("model.lora.")
    }


def _knobs(spec: RunSpec) -> dict[str, Any]:
    knobs = {
        knob: value
        for knob, value in active(spec).items()
        if knob not in (*_REFERRING, *_NOT_HASHED) and _HASHED_UNLESS.get(knob, ...) != value
    }
    # The kind of device rounds in its own way; which one of a kind does not matter.
    knobs["train.device"] = spec.train.device.partition(":")[0]
    knobs |= {knob: _template_name(knobs[knob]) for knob in _TEMPLATES if knob in knobs}
    return knobs


def _outside_engine(spec: RunSpec) -> dict[str, str]:
    """The source of an engine that is a plug-in; nothing for shipped ones, which NUMERICS_VERSION covers."""
    source = None if spec.rollout.engine == AUTO else ENGINES.source(spec.rollout.engine)
    return {} if source is None else {"engine": source.digest}


def _graded_rollouts(spec: RunSpec) -> dict[str, Any]:
    """What completions of the starting weights on the training problems, and their verdicts, come from."""
    return {
        **_outside_engine(spec),
        "start": _start(spec),
        "train": _problems(spec.task.train, "train"),
        "extraction_version": EXTRACTION_VERSION,
        "template": template_version(spec.task.template),
        "grader": grader_version(spec.rollout_grader),
    }


def _outside_rule(spec: RunSpec) -> dict[str, str]:
    """Identifies the code of a rule that a plug-in brings; the code of ours is under NUMERICS_VERSION."""
    source = RULES.source(spec.objective.rule.type) if isinstance(spec.objective, Objective) else None
    return {} if source is None else {"rule": source.digest}


def _start(spec: RunSpec) -> dict[str, Any]:
    """What reinforcement learning starts from."""
    start: dict[str, Any] = {"model": _fingerprint(spec.model.source)}
    recipe = spec.model.cold_start
    if recipe.type == "sft":
        start |= {"demonstrations": _demonstrations(recipe.data), "template": template_version(recipe.template)}
    return start


def _demonstrations(data: str) -> str:
    """Identifies demonstrations: a digest of a file's content; the name of generated ones."""
    if data.startswith("demonstrations:"):
        return data
    try:
        return hashlib.blake2b(Path(data).read_bytes(), digest_size=20).hexdigest()
    except OSError as error:
        raise RefusedError(
            f"model.cold_start.data {data}: cannot be read ({error.strerror}). Give a JSONL file with `problem` and "
            "`solution` a line, or demonstrations:arithmetic."
        ) from None


def _template_name(given: str) -> str:
    """A template's name; for the path of a file, the digest of its content, wherever the file lies."""
    return str(template_version(given)) if given.endswith(ENDINGS) else given


def _problems(task_name: str, split: str) -> dict[str, str]:
    task, source = get_task(task_name), task_source(task_name)
    problems = {"task": task.name, "extract": task.extract, "rows": task.split(split).fingerprint}
    return problems if source is None else problems | {"source": source}


def _train_data(spec: RunSpec) -> dict[str, str]:
    """Identifies what is learned from: a set of pairs, or the problems to which completions are drawn."""
    if spec.pairs.type == "dataset":
        return {"pairs": parse_pair_source(spec.pairs.data, spec.pairs.split).fingerprint}
    return _problems(spec.task.train, "train")


def _evaluated(spec: RunSpec) -> dict[str, Any]:
    """What an evaluation refers to."""
    return {
        **_outside_engine(spec),
        "eval": [_problems(name, "test") for name in spec.eval.tasks],
        "extraction_version": EXTRACTION_VERSION,
        "template": template_version(spec.eval.template),
        "grader": grader_version(spec.eval.grader),
        **({"metrics": own} if (own := metric_sources()) else {}),
    }


def _references(spec: RunSpec) -> dict[str, Any]:
    graders = {name for name in (spec.reward.grader, spec.eval.grader) if name is not None}
    return {
        **_outside_engine(spec),
        **_start(spec),
        "train": _train_data(spec),
        "eval": [_problems(name, "test") for name in spec.eval.tasks],
        "extraction_version": EXTRACTION_VERSION,
        "templates": {_template_name(one): template_version(one) for one in (spec.task.template, spec.eval.template)},
        "graders": {name: grader_version(name) for name in sorted(graders)},
        **({"metrics": own} if (own := metric_sources()) else {}),
    }


@lru_cache
def _fingerprint(source: str) -> str:
    return parse_source(source).fingerprint()


@lru_cache
def _earlier_fingerprint(source: str) -> str:
    return parse_source(source).earlier_fingerprint()
