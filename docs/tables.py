"""What the pages of docs/ take from the code, written in by mkdocs as it builds them (`hooks:` in mkdocs.yml).

A page says `<!-- table: metrics -->` where a table goes. A line that holds nothing but a link to a file outside docs/,
`[tests/some.py](../tests/some.py)`, is replaced by the file. Readers of the repository see the link and, below it, an
excerpt of the file, which `python -m docs.tables` writes.
"""

from __future__ import annotations

import ast
import html
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.testing import CliRunner

from algorithms import RULES, AnyObjective, Objective, PreferenceObjective, active_knobs, describe, presets
from algorithms.dialects import DIALECTS, Config, Dialect, differences, translate, understand, yaml_scalar
from algorithms.overrides import family_of
from docs.notebook import as_markdown
from evals.graders import GRADERS
from evals.metrics import METRICS
from evals.prompts import TEMPLATES
from evals.tasks import TASKS
from evals.yaml_file import load_yaml
from harness.cli.app import app
from harness.config.engine import ENGINES
from harness.config.knobs import knob_facts
from harness.config.search import KnobRange, Pruner, Search, SearchBudget, SearchSampler, Tune
from harness.errors import RefusedError
from harness.executors.base import EXECUTORS
from harness.plan.sweep_file import SHIPPED, ComparisonSettings, Screening, SweepFile, load_sweep, shipped
from harness.rewards.base import nameable_parts
from harness.run.health import FLAGS
from harness.settings import defaults
from harness.shelves.selftest.checks import CHECKS
from reports.figures import FIGURES
from reports.formats import markdown_table

ROOT = Path(__file__).parents[1]
FILE_LINK = re.compile(
    r"^\[(?P<path>.+)\]\((?:\.\./)+(?P=path)\)\n(?P<excerpt>\n```\w+\n(?s:.*?)^```\n)?", re.MULTILINE
)
MOST_EXCERPT_LINES = 32

_COLUMNS = ("baseline", "scale", "ratio", "aggregation")
_PREFERENCE_COLUMNS = ("link", "logp", "reference", "beta")
_ALWAYS = ("kl.estimator", "kl.beta")


def policy_gradient_presets() -> str:
    rows = []
    for name in presets("policy_gradient"):
        preset = describe(name)
        knobs = _shown(preset.objective)
        baseline, scale, ratio, aggregation = (knobs.get(column, "none") for column in _COLUMNS)
        rule = _call(knobs["rule.type"], {k: v for k, v in knobs.items() if k.startswith("rule.") and k != "rule.type"})
        plain = Objective(aggregation="token_mean")
        beside = [k for k in _beside(preset.objective, plain, _COLUMNS, _ALWAYS) if not k.startswith("rule.")]
        rows.append([f"`{name}`", baseline, scale, ratio, rule, aggregation, _extra(knobs, beside), preset.source])
    return _table(["name", "baseline", "scale", "ratio", "rule", "aggregation", "extra", "source"], rows)


def preference_presets() -> str:
    rows = []
    for name in presets("preference"):
        preset = describe(name)
        knobs = _shown(preset.objective)
        beside = _beside(preset.objective, PreferenceObjective(link="logistic"), _PREFERENCE_COLUMNS)
        columns = (knobs[column] for column in _PREFERENCE_COLUMNS)
        rows.append([f"`{name}`", *columns, _extra(knobs, beside), preset.source])
    return _table(["name", *_PREFERENCE_COLUMNS, "extra", "source"], rows)


def names_elsewhere() -> str:
    dialects = DIALECTS.all()
    rows = []
    for name in presets():
        objective = describe(name).objective
        rows.append([f"`{name}`", *(_elsewhere(dialect, objective) for dialect in dialects.values())])
    return _table(["name", *(dialect.title for dialect in dialects.values())], rows)


def _elsewhere(dialect: Dialect, objective: AnyObjective) -> str:
    if family_of(objective) not in {config.family for config in dialect.configs}:
        return ""
    translation = translate(dialect, objective)
    if translation.verdict != "cannot be expressed":
        return translation.verdict
    short = (name.rpartition(".")[2] if name in translation.point.outside else name for name in translation.lost)
    return f"differs in {', '.join(f'`{name}`' for name in short)}"


def defaults_elsewhere() -> str:
    """What settings that bear an algorithm's name compute if all others are left at their defaults."""
    rows = []
    for dialect in DIALECTS.all().values():
        for config in dialect.configs:
            if config.promise is not None:
                instead = _instead(dialect, config, {}, config.promise)
                rows.append([dialect.title, f"`{config.name}`", f"`{config.promise}`", instead])
            for (setting, value), name in config.promises.items():
                instead = _instead(dialect, config, {setting: value}, name)
                rows.append([dialect.title, f"`{setting}: {yaml_scalar(value)}`", f"`{name}`", instead])
    return _table(["trainer", "what is set", "what one expects", "what it has instead"], rows)


def _instead(dialect: Dialect, config: Config, settings: dict[str, Any], name: str) -> str:
    try:
        understood = understand(dialect, config, settings)
    except RefusedError as error:
        return str(error)
    apart = differences(describe(name).objective, understood.objective)
    pairs = [f"`{knob}` {'none' if there is None else there}" for knob, (_, there) in apart.items()]
    return "; ".join([*pairs, *understood.point.outside.values()]) or "the same"


def rules() -> str:
    return _named((name, (rule.__doc__ or "").partition("\n")[0]) for name, rule in RULES.all().items())


def knobs() -> str:
    sections: dict[str, list[list[str]]] = {}
    for knob, facts in knob_facts().items():
        row = [f"`{knob}`", facts.type, facts.default, facts.range, facts.description]
        sections.setdefault(knob.partition(".")[0], []).append(row)
    heading = ["knob", "type", "default", "range", "meaning"]
    return "\n".join(f"## {section}\n\n{_table(heading, rows)}" for section, rows in sections.items())


def metrics() -> str:
    rows = [
        [f"`{metric.name}`", metric.unit, metric.better or "", "yes" if metric.compares_arms else "", metric.meaning]
        for metric in METRICS.all().values()
    ]
    return _table(["name", "unit", "better", "compares arms", "meaning"], rows)


def tasks() -> str:
    rows = [
        [f"`{task.name}`", f"`{task.template}`", f"`{task.grader}`", ", ".join(task.splits)]
        for task in TASKS.all().values()
    ]
    return _table(["name", "template", "grader", "splits"], rows)


def templates() -> str:
    rows = [
        [f"`{one.name}`", "a chat" if one.chat else "plain text", f"`{' '.join(one.text.split())[:100]}`"]
        for one in TEMPLATES.all().values()
    ]
    return _table(["name", "form", "begins"], rows)


def graders() -> str:
    return _named((name, grader.meaning) for name, grader in GRADERS.all().items())


def reward_parts() -> str:
    return _named((name, part.summary()) for name, part in nameable_parts().items())


def engines() -> str:
    return _named((name, engine.description) for name, engine in ENGINES.all().items())


def flags() -> str:
    return _named((flag.name, flag.meaning) for flag in FLAGS)


def executors() -> str:
    return _named((name, executor.summary) for name, executor in EXECUTORS.all().items())


def checks() -> str:
    return _named((name, check.summary) for name, check in CHECKS.all().items())


def figures() -> str:
    return _table(
        ["name", "title", "group"], [[f"`{one.name}`", one.title, one.group] for one in FIGURES.all().values()]
    )


def sweeps() -> str:
    return _named((name, load_sweep(str(path))[0].question) for name, path in shipped(SHIPPED).items())


def profiles() -> str:
    paths = shipped(SHIPPED / "profiles")
    return _named((name, str(load_yaml(path).get("description", ""))) for name, path in paths.items())


def commands() -> str:
    """The help of every verb."""
    parts = []
    for command in app.registered_commands:
        name = command.name or ""
        text = CliRunner().invoke(app, [name, "--help"], prog_name="bench").output
        parts.append(f"## bench {name}\n\n```text\n{inspect.cleandoc(text)}\n```\n")
    return "\n".join(parts)


def _fields(model: type[BaseModel]) -> Callable[[], str]:
    def table() -> str:
        rows = []
        for name, field in model.model_fields.items():
            default = field.get_default(call_default_factory=True, validated_data={})
            rows.append([f"`{field.alias or name}`", _default(default), field.description or ""])
        return _table(["key", "default", "meaning"], rows)

    return table


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel) or value in (None, (), {}, []):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


TABLES: Mapping[str, Callable[[], str]] = {
    "policy gradient presets": policy_gradient_presets,
    "preference presets": preference_presets,
    "names elsewhere": names_elsewhere,
    "defaults elsewhere": defaults_elsewhere,
    "rules": rules,
    "knobs": knobs,
    "metrics": metrics,
    "tasks": tasks,
    "templates": templates,
    "graders": graders,
    "reward parts": reward_parts,
    "engines": engines,
    "executors": executors,
    "checks": checks,
    "flags": flags,
    "figures": figures,
    "sweeps": sweeps,
    "profiles": profiles,
    "commands": commands,
    "notebook": as_markdown,
    "sweep file": _fields(SweepFile),
    "compare": _fields(ComparisonSettings),
    "search": _fields(Search),
    "tune": _fields(Tune),
    "screening": _fields(Screening),
    "range": _fields(KnobRange),
    "search budget": _fields(SearchBudget),
    "sampler": _fields(SearchSampler),
    "pruner": _fields(Pruner),
}


def with_tables(markdown: str) -> str:
    """A page with its tables and files. Raises KeyError for an unknown table, OSError for a missing file."""
    markdown = re.sub(r"<!-- table: (.+?) -->", lambda mark: TABLES[mark[1]](), markdown)
    return FILE_LINK.sub(lambda link: _code(link["path"]), markdown)


def with_excerpts(markdown: str) -> str:
    """Write the excerpt of each linked file below its link. Raises OSError for a missing file."""
    return FILE_LINK.sub(lambda link: f"{link[0].partition(chr(10))[0]}\n{_excerpt(link['path'])}", markdown)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs for each page before it is rendered."""
    return with_tables(markdown)


def _code(path: str) -> str:
    return f"`{path}`:\n\n{_block(path, (ROOT / path).read_text(encoding='utf-8'))}"


def _excerpt(path: str) -> str:
    """Return a block of the file's last top-level statements without imports, as many as fit."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".py"):
        return f"\n{_block(path, text)}"
    lines, statements = text.splitlines(), ast.parse(text).body
    first = len(lines)
    for before, statement in zip(statements[-2::-1], statements[:0:-1], strict=True):
        start = before.end_lineno or 0  # a comment above a statement belongs to it
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.If) or len(lines) - start > MOST_EXCERPT_LINES:
            break
        first = start
    return f"\n{_block(path, chr(10).join(lines[first:]).strip() + chr(10))}"


def _block(path: str, code: str) -> str:
    language = {".py": "python", ".yaml": "yaml"}[Path(path).suffix]
    return f"```{language}\n{code}```\n"


def _named(rows: Iterable[tuple[str, str]]) -> str:
    return _table(["name", "what it is"], [[f"`{name}`", text] for name, text in rows])


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown_table(list(map(_cell, heading)), [list(map(_cell, row)) for row in rows]) + "\n"


def _cell(text: str) -> str:
    """Text in which Markdown sees nothing but code between backticks."""
    parts = text.split("`")
    parts[::2] = [html.escape(part, quote=False).replace("*", "&#42;") for part in parts[::2]]
    return "`".join(parts)


def _shown(objective: AnyObjective) -> dict[str, str]:
    return {knob: "off" if value is None else str(value) for knob, value in active_knobs(objective).items()}


def _call(kind: str, knobs: Mapping[str, str]) -> str:
    set_here = [
        f"{knob.rpartition('.')[2]} {value}" for knob, value in knobs.items() if value not in ("off", "none", "0.0")
    ]
    return f"{kind} ({', '.join(set_here)})" if set_here else kind


def _extra(knobs: Mapping[str, str], names: Iterable[str]) -> str:
    return ", ".join(f"{knob}={knobs[knob]}" for knob in names)


def _beside(
    objective: AnyObjective, plain: AnyObjective, columns: Sequence[str], always: Sequence[str] = ()
) -> list[str]:
    """Knobs beside the columns that are not at their defaults."""
    unmoved = defaults(objective) | active_knobs(plain)
    return [
        knob
        for knob, value in active_knobs(objective).items()
        if knob not in columns and (knob in always or value != unmoved[knob])
    ]


if __name__ == "__main__":
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if (written := with_excerpts(text)) != text:
            page.write_text(written, encoding="utf-8")
