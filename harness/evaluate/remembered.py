"""A sampler that keeps each completion as it finishes: whoever asks for it again gets it from the file. For whatever
draws in a way of its own, as lm-eval does, so that it too goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from evals.sampler import Draw, Drawn, SamplingParams
from harness.config.hashing import digest
from harness.evaluate.evaluation import OnProgress
from harness.evaluate.store import claimed
from harness.records.files import append_jsonl, keep_jsonl, read_jsonl, typed_rows, write_json
from harness.run.provenance import provenance
from harness.sampling.sampler import EngineSampler


class _Remembered(TypedDict):
    key: str
    text: str
    n_tokens: int
    truncated: bool


@dataclass(frozen=True)
class RememberingSampler:
    """Draws by the sampler that `make_sampler` gives, which is called if anything has to be drawn. Use `opened`."""

    folder: Path
    make_sampler: Callable[[], EngineSampler]
    on_progress: OnProgress
    _known: dict[str, Drawn]

    @classmethod
    @contextmanager
    def opened(
        cls, folder: Path, asked: dict[str, Any], make_sampler: Callable[[], EngineSampler], on_progress: OnProgress
    ) -> Iterator[RememberingSampler]:
        """asked: the conditions of whatever is drawn (`model_conditions`), all but prompt, decoding and names.

        Raises as `store.claimed`.
        """
        with claimed(folder, asked):
            path = folder / "samples.jsonl"
            keep_jsonl(path, lambda row: True)  # without the torn end that a kill may have left
            known = {
                row["key"]: Drawn(row["text"], row["n_tokens"], row["truncated"])
                for row in typed_rows(path, read_jsonl(path), _Remembered)
            }
            yield cls(folder, make_sampler, on_progress, known)

    def draw(self, draws: Sequence[Draw], params: SamplingParams) -> list[Drawn]:
        """As `evals.sampler.Sampler.draw`."""
        keys = [digest([draw.prompt, draw.example, draw.sample, asdict(params)]) for draw in draws]
        missing = [index for index, key in enumerate(keys) if key not in self._known]
        if missing:
            self._draw_missing([draws[index] for index in missing], [keys[index] for index in missing], params)
        return [self._known[key] for key in keys]

    def _draw_missing(self, draws: Sequence[Draw], keys: Sequence[str], params: SamplingParams) -> None:
        there = len(self._known)
        sampler = self.make_sampler()
        self.on_progress(0, len(draws), f"{there} are there already" if there else "drawing")
        write_json(self.folder / "provenance.json", provenance() | {"model": sampler.language_model.account()})
        done = 0

        def keep(index: int, drawn: Drawn) -> None:
            nonlocal done
            named = {"key": keys[index], "example": draws[index].example, "sample": draws[index].sample}
            append_jsonl(self.folder / "samples.jsonl", [named | asdict(drawn)])
            self._known[keys[index]] = drawn
            done += 1
            self.on_progress(done, len(draws), "drawing")

        sampler.draw(draws, params, keep)
