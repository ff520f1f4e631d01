"""The files of a page of samples: samples.html with the first samples, and scripts with the rest.

The page loads a script when the reader asks for its samples. A page opened from disk can load scripts but no other
files, so every data file is a script that passes JSON to one function.

    samples/index.js         what filters need of all samples, by column, in display order
    samples/text-0001.js     CHUNK_SAMPLES samples with their texts, or with the beginnings of long texts
    samples/long-0001.js     long samples in full
    samples/prompts-0001.js  prompts and references

first_samples.html is the same page with only the first samples, in one file. It works without the folder, e.g. in an
email or among the artifacts of MLflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reports.page.templating import render_html, write_text
from reports.samples.reading import FINAL, REASONS, CellSamples, Sample, ShownProblem, is_match, script_json

CHUNK_SAMPLES = 400
CHUNK_PROMPTS = 200
LONG_CHUNK_CHARACTERS = 400_000
FIRST_SAMPLES = 20
"""The number of samples in samples.html itself, for browsers without JavaScript."""
ONE_FILE_SAMPLES = 400
ONE_FILE_CHARACTERS = 2_000_000
"""The bounds of first_samples.html: at most ONE_FILE_SAMPLES samples, and fewer if their texts are longer than this."""

FIRST_PAGE = "first_samples.html"

Place = tuple[str, int]
"""The arm and the seed of a cell."""


@dataclass(frozen=True, slots=True)
class ListedSample:
    """A sample as the page lists it."""

    arm: str
    seed: int
    problem: int
    """The index of its (task, id) in `Collection.problems`."""
    prompt: int
    """The index of its prompt in `Collection.prompts`; -1 if the records have no prompt."""
    flipped: bool
    """True if the baseline's sample with the same noise got the opposite verdict."""
    sample: Sample

    @property
    def sort_key(self) -> tuple[object, ...]:
        """The order of the page: the most interesting samples first, and one of each problem before a second of any."""
        one = self.sample
        kind, _, step = one.when.partition(" ")
        rank = 0 if self.flipped else 1 if one.graders_disagree else 2 if one.is_right is False else 3
        kinds = (FINAL, "training", "evaluation")
        return rank, kinds.index(kind), one.sample, self.seed, int(step or 0), self.problem

    @property
    def flags(self) -> int:
        """A bit field, from the lowest bit: correct, wrong, truncated, graders disagree, flipped."""
        one = self.sample
        bits = (one.is_right is True, one.is_right is False, one.is_cut, one.graders_disagree, self.flipped)
        return sum(1 << place for place, bit in enumerate(bits) if bit)


@dataclass(frozen=True)
class Collection:
    """All samples, problems and prompts of a page."""

    arms: list[str]
    """In display order, including the baseline."""
    baseline: str | None
    """None if the arms have no baseline."""
    listed: list[ListedSample]
    problems: list[tuple[str, str]]
    """The (task, id) of each problem."""
    prompts: list[str]
    """Each prompt as JSON."""

    @property
    def first(self) -> Collection:
        """The first samples that fit into one file, each with the baseline's sample of the same noise.

        Long samples are truncated.
        """
        of_baseline = {_noise(one): number for number, one in enumerate(self.listed) if one.arm == self.baseline}
        kept: set[int] = set()
        prompts: dict[int, int] = {}
        room = ONE_FILE_CHARACTERS
        for number, one in enumerate(self.listed):
            # Keep or leave out complete pairs, so that every flip can be seen.
            new = {number, of_baseline.get(_noise(one), number)} - kept
            asked = {self.listed[place].prompt for place in new} - {*prompts, -1}
            room -= sum(len(self.listed[place].sample.head) for place in new)
            room -= sum(len(self.prompts[place]) for place in asked)
            # Keep the first pair even if it alone exceeds the room.
            if kept and (room < 0 or len(kept) + len(new) > ONE_FILE_SAMPLES):
                break
            kept |= new
            # Renumber prompts, because the file contains only those that its samples need.
            prompts |= {place: len(prompts) + order for order, place in enumerate(sorted(asked))}
        listed = [self.listed[number] for number in sorted(kept)]
        listed = [replace(one, prompt=prompts.get(one.prompt, -1)) for one in listed]
        return replace(self, listed=listed, prompts=[self.prompts[place] for place in prompts])


def _noise(one: ListedSample) -> tuple[int, str, int, int]:
    """Return what two samples shown side by side have in common: seed, time, problem and sample number."""
    return one.seed, one.sample.when, one.problem, one.sample.sample


def collect(cells: Sequence[tuple[Place, CellSamples]], arms: Sequence[str], baseline: str | None) -> Collection:
    """Collect the samples of all cells, in the order of the page."""
    problems: dict[tuple[str, str], int] = {}
    prompts: dict[str, int] = {}

    def numbers(problem: ShownProblem) -> tuple[int, int]:
        name = (problem.task, problem.problem_id)
        asked = problem.prompt
        prompt = -1 if asked is None else prompts.setdefault(asked, len(prompts))
        return problems.setdefault(name, len(problems)), prompt

    placed = [
        (arm, seed, *known[sample.problem], sample)
        for (arm, seed), found in cells
        # A loop over one element binds a name, so that a cell's problems are numbered once instead of for every sample.
        for known in [[numbers(problem) for problem in found.problems]]
        for sample in found.samples
    ]
    of_baseline = {
        (seed, sample.when, problem, sample.sample): sample.is_right
        for arm, seed, problem, _, sample in placed
        if arm == baseline
    }

    def flips(arm: str, seed: int, problem: int, sample: Sample) -> bool:
        other = of_baseline.get((seed, sample.when, problem, sample.sample))
        return arm != baseline and None not in (other, sample.is_right) and other != sample.is_right

    listed = [
        ListedSample(arm, seed, problem, prompt, flips(arm, seed, problem, sample), sample)
        for arm, seed, problem, prompt, sample in placed
    ]
    place = {arm: number for number, arm in enumerate(arms)}
    listed.sort(key=lambda one: (*one.sort_key, place[one.arm]))
    return Collection(list(arms), baseline, listed, list(problems), list(prompts))


def write_files(collection: Collection, content: dict[str, object], out_dir: Path) -> None:
    """Write samples.html, its folder `samples` and first_samples.html.

    content: what the template shows besides the samples.
    """
    folder = out_dir / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    # An earlier page may have had more files. Delete them after the new ones are written.
    stale = {path.name for path in folder.glob("*.js")}
    for name, text in _files(collection):
        write_text(folder / f"{name}.js", _call(name, text))
        stale.discard(f"{name}.js")
    for name in stale:
        (folder / name).unlink()
    _write_page(out_dir / "samples.html", collection, content | {"n_all": len(collection.listed), "data": None})
    first = collection.first
    parts = {"text": [one.sample.head for one in first.listed], "prompts": first.prompts}
    calls = [_call(f"{name}-0001", f"[{','.join(bodies)}]") for name, bodies in parts.items()]
    calls.append(_call("index", script_json(_index(first, ONE_FILE_SAMPLES, max(1, len(first.prompts))))))
    content = content | {"n_all": len(collection.listed), "data": "".join(calls)}
    _write_page(out_dir / FIRST_PAGE, first, content)


def _files(collection: Collection) -> Iterator[tuple[str, str]]:
    """Yield the name and JSON of each file in the folder.

    One file at a time, because together they are as large as all samples.
    """
    yield "index", script_json(_index(collection, CHUNK_SAMPLES, CHUNK_PROMPTS))
    heads, long = _long_apart(collection.listed)
    for name, bodies in [
        *_chunks("text", heads, CHUNK_SAMPLES),
        *_chunks("prompts", collection.prompts, CHUNK_PROMPTS),
    ]:
        yield name, f"[{','.join(bodies)}]"
    yield from long.items()


def _call(name: str, text: str) -> str:
    return f'benchSamples("{name}",{text});\n'


_CALL = re.compile(r'benchSamples\("[\w-]+",(.*)\);')


def hands_on_data(script: str) -> bool:
    """Return whether a script does nothing but pass on JSON, one call per line, like the data files of this page."""
    try:
        for line in filter(None, script.split("\n")):
            json.loads(found[1] if (found := _CALL.fullmatch(line)) else "")
    except (ValueError, RecursionError):
        return False
    return True


def _write_page(path: Path, collection: Collection, content: dict[str, object]) -> None:
    """Write a page. content["data"]: the script with all samples of the page, or None if they are in the folder."""
    listed = collection.listed
    first = [_shown(collection, one) for one in listed[:FIRST_SAMPLES]]
    counts = {"n_shown": len(listed), "without_prompt": sum(one.prompt < 0 for one in listed)}
    write_text(path, render_html("samples.html.j2", content | counts | {"first": first, "first_page": FIRST_PAGE}))


def _long_apart(listed: Sequence[ListedSample]) -> tuple[list[str], dict[str, str]]:
    """Separate long samples. Returns the bodies of all samples, and the files of the long ones by name.

    The body of a long sample is its beginning, with a pointer to the complete sample.
    """
    heads: list[str] = []
    parts: list[list[str]] = []
    room = 0
    for one in listed:
        sample = one.sample
        if not sample.long:
            heads.append(sample.body)
            continue
        if len(sample.body) > room:
            parts.append([])
            room = LONG_CHUNK_CHARACTERS
        room -= len(sample.body)
        # The head is a JSON object. Replacing its closing brace appends a field without parsing it.
        heads.append(f'{sample.head[:-1]},"long":["long-{len(parts):04d}",{len(parts[-1])}]}}')
        parts[-1].append(sample.body)
    return heads, {f"long-{number:04d}": f"[{','.join(bodies)}]" for number, bodies in enumerate(parts, start=1)}


def _chunks(name: str, bodies: Sequence[str], size: int) -> list[tuple[str, Sequence[str]]]:
    starts = range(0, len(bodies), size)
    return [(f"{name}-{number:04d}", bodies[start : start + size]) for number, start in enumerate(starts, start=1)]


def _index(collection: Collection, chunk_samples: int, chunk_prompts: int) -> dict[str, object]:
    whens = sorted({one.sample.when for one in collection.listed}, key=_when_key)
    tasks = sorted({task for task, _ in collection.problems})
    place = {name: number for names in (collection.arms, whens) for number, name in enumerate(names)}
    listed = collection.listed
    return {
        "arms": collection.arms,
        "baseline": collection.baseline,
        "whens": whens,
        "tasks": tasks,
        "problems": [[tasks.index(task), problem_id] for task, problem_id in collection.problems],
        "chunk": {"text": chunk_samples, "prompts": chunk_prompts},
        "reasons": REASONS,
        "arm": [collection.arms.index(one.arm) for one in listed],
        "seed": [one.seed for one in listed],
        "when": [place[one.sample.when] for one in listed],
        "problem": [one.problem for one in listed],
        "sample": [one.sample.sample for one in listed],
        "prompt": [one.prompt for one in listed],
        "tokens": [one.sample.n_tokens for one in listed],
        "flags": [one.flags for one in listed],
    }


def _when_key(when: str) -> tuple[int, int]:
    kind, _, step = when.partition(" ")
    return (FINAL, "evaluation", "training").index(kind), int(step or 0)


def _shown(collection: Collection, one: ListedSample) -> dict[str, object]:
    """Return what the page shows of a sample without JavaScript."""
    task, problem_id = collection.problems[one.problem]
    asked = None if one.prompt < 0 else json.loads(collection.prompts[one.prompt])
    kind, _, step = one.sample.when.partition(" ")
    return {
        "arm": one.arm,
        "seed": one.seed,
        "when": f"{kind}, step {step}" if step else "final evaluation",
        "task": task,
        "problem": problem_id,
        "sample": one.sample.sample,
        "is_right": one.sample.is_right,
        "is_cut": one.sample.is_cut,
        "graders_disagree": one.sample.graders_disagree,
        "flipped": one.flipped,
        "n_tokens": one.sample.n_tokens,
        "prompt": None if asked is None else asked["prompt"]["text"],
        "answer": None if asked is None else asked["answer"]["text"],
        **dict.fromkeys(("length", "extracted")),
        **(body := json.loads(one.sample.head)),
        "written": _in_turns(body),
        "said": _facts(body),
    }


def _in_turns(body: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Return the text turn by turn, each with the environment's reply, or with None if it did not reply."""
    text, begin, found = body["text"], 0, []
    for end, _, reply, _ in body.get("turns", []):
        found.append((text[begin:end], reply or None))
        begin = end
    return [*found, (text[begin:], None)]


def _facts(body: dict[str, Any]) -> list[str]:
    """Return the graders' verdicts, grouped by verdict, and the reward. The first grader decides."""
    graders = body.get("graders", [])
    groups: dict[str, list[str]] = {}
    for number, (name, said, *extracted) in enumerate(graders):
        decides = " (decides)" if number == 0 and len(graders) > 1 else ""
        groups.setdefault(", extracted: ".join([_in_words(said), *extracted]), []).append(f"{name}{decides}")
    facts = [f"{', '.join(names)}\N{NO-BREAK SPACE}{said}" for said, names in groups.items()]
    return facts + ([f"reward {body['reward']}"] if "reward" in body else [])


def _in_words(said: str | float) -> str:
    if isinstance(said, float):
        return f"{said:g}"
    return "✓" if is_match(said) else f"✗ {REASONS.get(said, said)}"
