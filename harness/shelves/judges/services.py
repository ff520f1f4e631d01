"""The cache of judges' replies in a home: a question that was answered once is never asked again.

`<home>/cache/judges/<digest>/` holds the replies of one model under one decoding, whichever sweep, cell or judge asked
(see `remembered`). Each reply is on disk before it is used. A cell that repeats steps from its checkpoint therefore
gets the same verdicts, even from a server whose replies vary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.grading import JudgeReply
from evals.grading.asked_model import Asking, Question, lent
from evals.shelves.judges.model_file import ModelFile
from harness.config.hashing import digest
from harness.config.references import model_fingerprint
from harness.errors import RefusedError
from harness.sampling.remembered import Remembered
from harness.sampling.services import OnWaiting, Service
from harness.shelves.judges.chat_client import ChatClient, ChatReply, read_key

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel

FOLDER = "judges"


class Replies(Remembered[JudgeReply]):
    """The replies in one folder, by the names of their questions."""

    def add(self, reply: JudgeReply) -> None:
        """Keep a reply under the name of its question."""
        self.keep(reply.question, reply)

    def _row_of(self, name: str, item: JudgeReply) -> dict[str, object]:
        return {"question": name, "text": item.text, "tokens": [item.prompt_tokens, item.completion_tokens]}

    def _item_in(self, row: dict[str, Any]) -> tuple[str, JudgeReply]:
        prompt_tokens, completion_tokens = row["tokens"]
        name = str(row["question"])
        return name, JudgeReply(name, str(row["text"]), int(prompt_tokens), int(completion_tokens))


@dataclass
class JudgeMessenger:
    """Asks judges, by address or in process, the questions to which the home has no reply yet."""

    home: Path
    on_waiting: OnWaiting = lambda sentence, is_away: None
    """Called while a judge keeps us waiting."""
    requests: int = 0
    """Requests sent to addresses, retries included."""
    _replies: dict[str, Replies] = field(default_factory=dict)

    def ask(self, judge: Asking, questions: Sequence[Question]) -> list[JudgeReply]:
        """Implement `evals.grading.asked_model.Messenger.ask`. Raises as `ChatClient.ask`, and as `load_model`."""
        # Equal questions have one name, so each is asked once.
        replies = self._replies_of(judge)
        by_name = {question.name: question for question in questions}
        missing = replies.missing([*by_name])
        if missing:
            asked = [by_name[name] for name in missing]

            def keep(index: int, said: ChatReply) -> None:
                replies.add(JudgeReply(missing[index], said.text, said.prompt_tokens, said.completion_tokens))

            if _file_of(judge).address is None:
                _ask_in_process(judge, asked, keep)
            else:
                self._ask_address(judge, asked, keep)
        return [replies[question.name] for question in questions]

    def require(self, judge: Asking) -> None:
        """Implement `evals.grading.asked_model.Messenger.require`."""
        file = _file_of(judge)
        if file.address is not None and file.api_key_env is not None:
            read_key(file.api_key_env, file.address)
        if file.source is not None:
            model_fingerprint(file.source)

    def _replies_of(self, judge: Asking) -> Replies:
        weights = _file_of(judge).source and model_fingerprint(_file_of(judge).source)  # unknown for a server's model
        # The file's address is no part of the name, so a judge that moves to another server keeps its replies.
        name = digest(_file_of(judge).decoding | {"weights": weights})[:16]
        if name not in self._replies:
            self._replies[name] = Replies(self.home / "cache" / FOLDER / name)
        return self._replies[name]

    def _ask_address(self, judge: Asking, asked: Sequence[Question], keep: Callable[[int, ChatReply], None]) -> None:
        file = _file_of(judge)
        assert file.address is not None and file.model is not None
        client = ChatClient(
            file.address, file.model, file.api_key_env, file.concurrency, file.timeout_s, file.patience_s
        )
        messages = [question.messages for question in asked]
        # Requests count even if the call fails: they were sent, and perhaps paid for.
        try:
            client.ask(messages, file.temperature, file.max_completion_tokens, keep, self.on_waiting)
        finally:
            self.requests += client.requests


@contextmanager
def judges_in(
    home: Path, allow_code: bool = False, on_waiting: OnWaiting = lambda sentence, is_away: None
) -> Iterator[None]:
    """Allow asking judges until the block ends, with this home's cache of replies."""
    with lent(JudgeMessenger(home, on_waiting)):
        yield


def _file_of(judge: Asking) -> ModelFile:
    assert isinstance(judge.file, ModelFile)
    return judge.file


_BATCH = 32
"""Questions in one batch of a judge that runs in this process."""
_in_process: dict[str, LanguageModel] = {}
"""The model of the judge that was last asked in this process, by its source."""


def _ask_in_process(judge: Asking, asked: Sequence[Question], keep: Callable[[int, ChatReply], None]) -> None:
    """Ask a model loaded in this process. Sampling noise is keyed by the question, so a reply can be repeated."""
    import torch

    from evals.sampler import SamplingParams
    from harness.engines.torch.engine import TorchEngine
    from harness.models.language_model import load_model

    source = str(_file_of(judge).source)
    if source not in _in_process:
        # Drop the previous judge first: two would have to fit into memory together.
        _in_process.clear()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            _in_process[source] = load_model(source, device)
        except RefusedError as error:
            raise RefusedError("shelves.judges.of_judge", judge=judge.name, error=error) from None
    model = _in_process[source]
    params = SamplingParams(_file_of(judge).max_completion_tokens, _file_of(judge).temperature)
    engine = TorchEngine(model.model, model.pad_token_id, model.eos_token_ids, model.decode)
    for first in range(0, len(asked), _BATCH):
        batch = asked[first : first + _BATCH]
        prompts = [model.encode(question.messages) for question in batch]
        # The first 64 bits of the question's digest, as the signed integer that an int64 tensor holds.
        keys = [[int.from_bytes(bytes.fromhex(question.name)[:8], "little", signed=True)] for question in batch]
        drawn = engine.generate(prompts, torch.tensor(keys), params)
        rows = zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)
        for index, (tokens, length) in enumerate(rows):
            text = model.decode(tokens[:length])
            keep(first + index, ChatReply(text, len(prompts[index]), length))


JUDGES = Service("judges", "asks the models of judges, and remembers their replies", judges_in)
