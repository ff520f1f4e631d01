"""What the README shows must work."""

from __future__ import annotations

import re
from pathlib import Path

from harness.cli.app import app
from harness.plan import make_plan

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_sweep_plans_clean(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    path = tmp_path / "example.yaml"
    path.write_text(example, encoding="utf-8")
    plan = make_plan(str(path))
    plan.require_answerable()
    assert plan.gate.differs == ["rollout.temperature"]


def test_every_verb_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:\.venv/bin/|`)bench ([a-z]+)", README))
    verbs = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert named
    assert named <= verbs


def test_every_file_that_is_linked_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
