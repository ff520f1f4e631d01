"""A card on what was trained and how, from the recorded specs and provenance, never from the clock."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.words import said
from reports.formats import Table, count, in_words, tokens
from reports.measure import Analysis
from reports.page.record_tables import knob_table

MOST_FORMS = 3
"""If a setting has more variants than this, the card counts them, and the table of knobs lists each arm's."""

TITLE = said("reports.paired_resumable_honestly_analysed")
"""The title of the package in a citation."""


@dataclass(frozen=True)
class Setup:
    """The contents of the setup card."""

    entries: list[tuple[str, str]]
    """(name, text) of each setting that was recorded."""
    command: str
    """The command that reruns the sweep."""
    knobs: Table | None
    """The knobs that differ between arms."""
    config: str
    """The resolved settings of the baseline's first cell."""
    citation: str
    """BibTeX."""


def setup_of(analysis: Analysis) -> Setup:
    sweep = analysis.sweep
    specs = {arm: cells[0].cell.spec for arm, cells in analysis.measurements.items() if cells}
    # Fall back to another arm's settings if the baseline has no finished cell.
    baseline = specs.get(sweep.baseline) or next(iter(specs.values()), {})
    known = _Provenance(analysis)
    entries = {
        "Model": _each(specs, lambda spec: _model(spec, known)),
        "Checkpoint": sweep.checkpoint or "",
        "Data": _each(specs, _data),
        "Algorithm": _each(specs, _algorithm, "; ") if analysis.trains else "",
        "Batch": _each(specs, _batch, "; ") if analysis.trains else "",
        "Learning rate": _each(specs, _learning_rate) if analysis.trains else "",
        "Budget": "; ".join(filter(None, [_each(specs, _budget), _ends(analysis)])) if analysis.trains else "",
        "Evaluation": _each(specs, _evaluation, "; "),
        "Hardware": known.hardware(),
        "Versions": known.versions(),
        "Dates": known.dates(),
        "Profile": sweep.profile,
    }
    return Setup(
        entries=[(name, words) for name, words in entries.items() if words],
        command=sweep.command,
        knobs=knob_table(analysis),
        config=_as_lines(baseline),
        citation=_citation(analysis, known),
    )


def _each(specs: dict[str, dict[str, object]], say: Callable[[dict[str, object]], list[str]], mark: str = ", ") -> str:
    """Join what the specs of all arms say, part by part; a part in which arms differ names each of its few forms."""
    return mark.join(filter(None, map(_part, zip(*map(say, specs.values()), strict=True), itertools.repeat([*specs]))))


def _part(found: tuple[str, ...], arms: list[str]) -> str:
    """Return the text of one part: the common text, else each variant with its arms, or the number of variants."""
    forms = {words: [arm for arm, one in zip(arms, found, strict=True) if one == words] for words in found}
    if len(forms) == 1:
        return found[0]
    if len(forms) > MOST_FORMS:
        return said("reports.or_another_all_arm", first=found[0], n_forms=len(forms))
    each = [f"{words or 'none'} ({'arm' if len(by) == 1 else 'arms'} {', '.join(by)})" for words, by in forms.items()]
    return in_words(each, "or")


def _at(spec: Mapping[str, object], name: str) -> Any:
    """Return the value of a knob like `rollout.temperature`, or None if this arm has none."""
    value: object = spec
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _type(spec: Mapping[str, object], name: str) -> str:
    """Format a choice: `{"type": "ppo_clip", "clip_low": 0.2}` as `ppo_clip (clip_low 0.2)`; "" if there is none."""
    value = _at(spec, name)
    chosen = value.get("type") if isinstance(value, dict) else value
    if chosen in (None, "none"):
        return ""
    settings = value.items() if isinstance(value, dict) else ()
    rest = [f"{key} {_written(one)}" for key, one in settings if key != "type" and one is not None]
    return f"{chosen} ({', '.join(rest)})" if rest else str(chosen)


def _written(value: object) -> str:
    """Format the value of a setting for a reader."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_written, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_written(one)}" for key, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _said(value: object, words: str) -> str:
    """Insert the value into the words; "" if the value is empty."""
    return words.format(_written(value)) if value else ""


def _model(spec: Mapping[str, object], known: _Provenance) -> list[str]:
    start = _type(spec, "model.cold_start")
    return [
        _said(_at(spec, "model.source"), "{}"),
        *known.of_model(),
        _said(_at(spec, "model.dtype"), "{}"),
        _said(start, "cold start {}"),
        _type(spec, "model.lora"),
    ]


def _data(spec: Mapping[str, object]) -> list[str]:
    trained = _at(spec, "task.train") if _at(spec, "train") else None
    return [_said(trained, "trained on {}"), _said(_at(spec, "eval.tasks"), "evaluated on {}")]


def _algorithm(spec: Mapping[str, object]) -> list[str]:
    pairs = _type(spec, "pairs")
    baseline, scale = _at(spec, "objective.baseline"), _at(spec, "objective.scale")
    kl = _at(spec, "objective.kl")
    where = kl.get("where") if isinstance(kl, dict) else None
    scaled = {"none": "undivided", "whiten_tokens": "whitened over tokens"}.get(scale) or _said(scale, "divided by {}")
    return [
        _said(pairs, "pairs: {}"),
        _said("" if pairs else baseline, "advantage: reward minus {}").replace(" minus none", ""),
        "" if pairs else scaled,
        _said(_type(spec, "objective.rule"), "loss: {}"),
        _said(_at(spec, "objective.aggregation"), "{}"),
        "no KL" if where == "none" else _said(where, "KL in the {}"),
    ]


def _batch(spec: Mapping[str, object]) -> list[str]:
    prompts, samples = _at(spec, "rollout.prompts_per_step"), _at(spec, "rollout.samples_per_prompt")
    updates = _at(spec, "train.updates_per_rollout")
    known = prompts and samples
    return [
        said("reports.prompts_samples_completions_step", prompts=prompts, samples=samples, prompts_2=prompts * samples)
        if known
        else "",
        _said(_at(spec, "rollout.max_completion_tokens"), "up to {} tokens each"),
        _temperature(_at(spec, "rollout.temperature")),
        f"{count(updates, 'update')} per step" if updates else "",
    ]


def _temperature(value: float | None) -> str:
    return "" if value is None else f"temperature {value:g}"


def _learning_rate(spec: Mapping[str, object]) -> list[str]:
    warm_up = _at(spec, "train.warmup_steps")
    return [
        _said(_at(spec, "train.learning_rate"), "{}"),
        _said(_at(spec, "train.lr_schedule"), "{}"),
        f"{count(warm_up, 'step')} of warm-up" if warm_up else "",
    ]


def _budget(spec: Mapping[str, object]) -> list[str]:
    budget, steps = _at(spec, "budget.tokens"), _at(spec, "train.steps")
    if budget and steps:
        return [said("reports.budget_or_steps", budget=tokens(budget), steps=steps)]
    return [f"{tokens(budget)} generated tokens" if budget else "", _said(steps, "{} steps")]


def _ends(analysis: Analysis) -> str:
    """Say after how many steps the finished runs ended; "" unless a budget ended one before its last step."""
    cells = [m.cell for some in analysis.measurements.values() for m in some]
    ended = [(cell.step, _at(cell.spec, "train.steps")) for cell in cells]
    if not any(planned and 0 < step < planned for step, planned in ended):
        return ""
    low, high = min(step for step, _ in ended), max(step for step, _ in ended)
    return said("reports.runs_ended_after", steps=count(high, "step") if low == high else f"{low} to {high} steps")


def _evaluation(spec: Mapping[str, object]) -> list[str]:
    problems, samples = _at(spec, "eval.problems"), _at(spec, "eval.samples")
    every, fewer = _at(spec, "eval.every"), _at(spec, "eval.curve_samples")
    along = every and fewer and _at(spec, "train")
    return [
        f"{'final: ' if along else ''}{problems} problems × {samples} samples" if problems and samples else "",
        said("reports.evaluations_along_training_setup", every=every, samples=count(fewer, "sample")) if along else "",
        _temperature(_at(spec, "eval.temperature")),
    ]


class _Provenance:
    """The provenance of all launches of the finished cells."""

    def __init__(self, analysis: Analysis) -> None:
        cells = [m.cell for some in analysis.measurements.values() for m in some]
        self.starts = [start for cell in cells for start in cell.read_starts()]

    def _values(self, name: str) -> list[Any]:
        """Return the distinct values of a field, in the order of the cells."""
        found = [value for start in self.starts if (value := _at(start, name)) is not None]
        # Values may be lists and dicts, which cannot be members of a set.
        return [value for i, value in enumerate(found) if value not in found[:i]]

    def of_model(self) -> Iterator[str]:
        for parameters in self._values("model.parameters"):
            yield f"{tokens(parameters)} parameters"
        yield from self._values("model.architecture")

    def hardware(self) -> str:
        threads = [count(value, "thread") for value in self._values("torch_threads")]
        gpus = [_written(value) for value in self._values("gpu")]
        return "; ".join([*gpus, *map(str, self._values("processor") or self._values("cpu")), *threads])

    def versions(self) -> str:
        packages = self._values("packages")
        names = dict.fromkeys(itertools.chain.from_iterable(packages))
        shown = [name for name in ("bench-rl", "torch", "transformers", "vllm", "math-verify") if name in names]
        parts = [f"{name} {_written(values)}" for name in shown if (values := self._values(f"packages.{name}"))]
        parts += [f"python {_written(found)}"] if (found := self._values("python")) else []
        parts += [f"torch {_written(found)}"] if not packages and (found := self._values("torch")) else []
        return ", ".join(parts + [f"commit {commit[:10]}" for commit in self._values("commit")])

    def dates(self) -> str:
        times = sorted(time for time in self._values("time") if isinstance(time, str))
        if not times:
            return ""
        first, last = (time.replace("T", " ").removesuffix("Z") for time in (times[0], times[-1]))
        return said("reports.first_cell_began_utc", first=first) + (f", last {last} UTC" if last != first else "")

    def version(self) -> str:
        return _written(self._values("packages.bench-rl"))

    def year(self) -> str:
        return max((str(time)[:4] for time in self._values("time")), default="")

    def commits(self) -> str:
        return _written(self._values("commit"))


def _as_lines(spec: Mapping[str, object]) -> str:
    """Return the settings one per line, under the full names that `--set` takes."""
    return "\n".join(f"{name}={value}" for name, value in _flat(spec, ""))


def _flat(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _flat(one, f"{name}.{key}" if name else key)
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def _citation(analysis: Analysis, known: _Provenance) -> str:
    """Return the sweep as BibTeX, with what a reader needs to run it again."""
    fields = {
        "title": f"{{{analysis.sweep.name}: {analysis.sweep.question}}}",
        "howpublished": f"{{bench-rl {known.version()}: {TITLE}}}" if known.version() else f"{{bench-rl: {TITLE}}}",
        "year": f"{{{known.year()}}}" if known.year() else "",
        "note": f"{{commit {known.commits()}; {analysis.sweep.command}}}" if known.commits() else "",
    }
    lines = [f"  {name} = {value}," for name, value in fields.items() if value]
    return "\n".join([f"@misc{{{analysis.sweep.name},", *lines, "}"])
