"""NN_name.yaml: a claim, the runs that ask about it, and what it predicts of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from docs.findings.measures import Measure
from evals.yaml_file import load_yaml
from harness.errors import RefusedError, UnknownNameError
from harness.plan.sweep_file import SHIPPED
from harness.settings import Settings
from harness.settings.faults import faults_of
from reports.page.requirements import parse_requirement

FOLDER = Path(__file__).parent
RECORDS = FOLDER / "records"
HOME = Path("runs/findings")
"""Each setting of a sweep has a home of its own there, since in a home a sweep's name is one question."""

_MEASURED = re.compile(r"(?P<arm>\S+) (?P<relation>more|less) than (?P<baseline>\S+)")
NO_DIFFERENCE = "0"
"""The baseline of a measure that is a difference itself."""


def _is_measure(text: str) -> str:
    try:
        Measure.parse(text)
    except RefusedError as error:  # pydantic collects ValueErrors only, and adds the file and the key
        raise ValueError(str(error)) from None
    return text


class Run(Settings):
    """A sweep in one setting. sweep, profile: shipped names or files. most_seeds: seeds are added until every contrast
    has a verdict, up to this many; without it the sweep file's own seeds are run. before_and_after: options of `bench
    eval`, which then compares the baseline's first cell with the model that it started from."""

    sweep: str
    profile: str = "tiny"
    set: list[str] = Field([])
    most_seeds: int | None = Field(None, ge=6)
    before_and_after: str | None = None

    @property
    def name(self) -> str:
        """That of the sweep, which may be a file of its own."""
        return Path(self.sweep).stem

    @property
    def sweep_file(self) -> Path:
        path = Path(self.sweep)
        return path if path.suffix == ".yaml" else SHIPPED / f"{self.sweep}.yaml"

    @property
    def place(self) -> str:
        """The name of its home: the profile, and what was set of the training. Another evaluation of the same cells
        has the same home, where nothing is trained for it."""
        return self._slug([setting for setting in self.set if not setting.startswith("eval.")])

    @property
    def is_another_evaluation(self) -> bool:
        """Whether it only evaluates the cells of another run again."""
        return any(setting.startswith("eval.") for setting in self.set)

    @property
    def record(self) -> Path:
        return RECORDS / f"{self.name}-{self._slug(self.set)}"

    @property
    def folder(self) -> Path:
        """That of the sweep, in its home."""
        return HOME / self.place / self.name

    def _slug(self, settings: list[str]) -> str:
        values = [one.rpartition(".")[2] for one in settings]
        return re.sub(r"[^\w.=+-]", "_", "+".join([Path(self.profile).name.removesuffix(".yaml"), *values]))

    @property
    def options(self) -> list[str]:
        """Those of `bench freeze` and `bench run`."""
        looks = [] if self.most_seeds is None else ["--until", "verdict", "--most-seeds", str(self.most_seeds)]
        return [*self._setting, *looks]

    @property
    def command(self) -> str:
        return shlex.join(["bench", "run", self.sweep, *self.options])

    @property
    def command_without_looks(self) -> str:
        """What a number of seeds can be added to."""
        return shlex.join(["bench", "run", self.sweep, *self._setting])

    @property
    def _setting(self) -> list[str]:
        settings = [word for setting in self.set for word in ("--set", setting)]
        return ["--profile", self.profile, *settings, "--home", str(HOME / self.place)]


class Imported(Settings):
    """Runs that others made. Their logs stay out of the repository; the laws fitted to them are kept.

    logs: a folder in $BENCH_EXTERNAL. origin: where the logs are published. ablate: the settings in which they differ.
    """

    logs: str
    origin: str
    ablate: list[str] = Field([])

    @property
    def record(self) -> Path:
        return RECORDS / f"{self.logs}.csv"

    def options(self, source: Path) -> list[str]:
        """Those of `bench import`."""
        return [self.logs, str(source), *(["--ablate", ",".join(self.ablate)] if self.ablate else [])]


class Prediction(Settings):
    """What the claim says of one run. says: as in `bench verdict --require`, with better, worse or equivalent; of a
    measure `ARM more|less than ARM`, or than 0 if the measure is itself a difference. measure: its name in the
    finding."""

    run: str
    says: str
    measure: str | None = None

    @property
    def arms(self) -> tuple[str, str, str]:
        """The arm, the relation, the arm that it is compared with."""
        if self.measure is None:
            asked = parse_requirement(self.says)
            return asked.arm, asked.relation, asked.baseline
        found = _MEASURED.fullmatch(self.says)
        if found is None:
            raise RefusedError(f"{self.says!r}: of a measure say `ARM more than ARM` or `ARM less than ARM`.")
        return found["arm"], found["relation"], found["baseline"]

    @model_validator(mode="after")
    def _is_readable(self) -> Prediction:
        try:
            relation = self.arms[1]
        except RefusedError as error:
            raise ValueError(str(error)) from None
        if self.measure is None and relation not in ("better", "worse", "equivalent"):
            raise ValueError(f"says is {self.says!r}: a claim predicts better, worse or equivalent")
        return self


class Finding(Settings):
    """A claim and how it is asked.

    source: who makes the claim, and where. runs: by a name that the page uses. predicts: nothing for a claim about
    coverage. about: `coverage` for the claim about every run of every finding, that training sharpens. imported: runs
    that others made, by a name that the page uses. measures: what is shown beside the score, by the name that the page
    uses. on_gpu: a run that would need a GPU, which the page names as not run. answer: the answer in a sentence.
    paragraph: how to read it. Both are written by hand, after the run.
    """

    number: int = Field(ge=1)
    name: str
    title: str
    claim: str
    source: str
    about: Literal["predictions", "coverage"] = "predictions"
    runs: dict[str, Run] = Field({})
    imported: dict[str, Imported] = Field({})
    predicts: list[Prediction] = Field([])
    measures: dict[str, Annotated[str, AfterValidator(_is_measure)]] = Field({})
    published_pp: float | None = Field(None, gt=0, description="the effect that the source reports, if it does")
    models: str = Field(
        "the built-in model, which has 0.23M parameters and adds digits", description="the models that the runs trained"
    )
    on_gpu: Run | None = None
    answer: str = ""
    paragraph: str = ""

    @property
    def cited(self) -> str:
        """Return the source with a link for each arXiv id."""
        return re.sub(r"\b(\d{4}\.\d{5})\b", r"[\1](https://arxiv.org/abs/\1)", self.source)

    @model_validator(mode="after")
    def _predicts_of_its_runs(self) -> Finding:
        for prediction in self.predicts:
            if prediction.run not in self.runs:
                raise UnknownNameError("run", prediction.run, self.runs)
            if prediction.measure is not None and prediction.measure not in self.measures:
                raise UnknownNameError("measure", prediction.measure, self.measures)
        if (self.about == "coverage") == bool(self.runs):
            raise ValueError("runs: state them, or set about to coverage, which takes those of all findings")
        return self

    @property
    def page(self) -> str:
        return f"{self.number:02d}_{self.name}.md"


def read_findings(folder: Path = FOLDER) -> list[Finding]:
    """The findings of a folder, by number. Raises RefusedError for a file that is none."""
    return [_read(path) for path in sorted(folder.glob("[0-9][0-9]_*.yaml"))]


def _read(path: Path) -> Finding:
    number, _, name = path.stem.partition("_")
    try:
        return Finding.model_validate(load_yaml(path) | {"number": int(number), "name": name})
    except ValidationError as error:
        raise RefusedError("\n".join(f"{path}: {fault.line}" for fault in faults_of(error, Finding))) from error
