from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from evals.pairs import PreferencePair, parse_pair_source
from harness.config.rollout import DatasetPairs
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.run.encoded_pairs import EncodedPairs, load_pairs
from harness.run.stages import pairs as pair_dataset
from harness.run.stages.pairs import encode_pairs
from tests.fetch_model import NAME
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import make_stage
from tests.refusals import refuses

pytestmark = pytest.mark.slow

PAIRS = [
    ("1+2=", "3#3", "4#4"),
    ("1+2+3=", "3,6#6", "7#7"),
    ("1+2=", "3#3", "wait,wait,3#3"),
    ("9+9=", "18#18", "1"),
    ("5+5+5+5+5+5=", "10,15,20,25,30#30", "10,15#15"),
]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model("builtin:tiny")


@pytest.fixture
def data(tmp_path: Path) -> str:
    return write(tmp_path / "pairs.jsonl", PAIRS)


def write(path: Path, pairs: Sequence[tuple[str, str, str]]) -> str:
    rows = [dict(zip(("prompt", "chosen", "rejected"), pair, strict=True)) for pair in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def spec_of(data: str, algorithm: str = "dpo", temperature: float = 1.0, **settings: Any) -> RunSpec:
    pairs = {"type": "dataset", "data": data, "pairs_per_step": 2, "max_tokens": 64} | settings
    return small_spec({"algorithm": algorithm, "pairs": pairs, "rollout.temperature": temperature})


def encode(pairs: Sequence[tuple[str, str, str]], model: LanguageModel, **settings: Any) -> EncodedPairs:
    given = [PreferencePair(f"p{at}", *pair, f"file, line {at + 1}") for at, pair in enumerate(pairs)]
    return encode_pairs(given, DatasetPairs(data="file", **({"max_tokens": 64} | settings)), model)


def prepare(path: Path, spec: RunSpec, model: LanguageModel) -> EncodedPairs:
    make_stage("pairs", path, spec, model)
    return load_pairs(path)


def texts(pairs: EncodedPairs, model: LanguageModel) -> list[tuple[str, str, str]]:
    """With the end-of-sequence tokens."""
    decode = model.tokenizer.decode
    return [
        (decode(pairs.prompts[at]), decode(pairs.chosen[at]), decode(pairs.rejected[at])) for at in range(len(pairs))
    ]


class TestEncoding:
    def test_a_completion_ends_with_one_end_of_sequence_token(self, model: LanguageModel) -> None:
        pairs = encode(PAIRS, model)
        assert texts(pairs, model) == [(prompt, f"{one}<eos>", f"{other}<eos>") for prompt, one, other in PAIRS]
        assert vars(pairs.counts) == {
            "rows": 5, "kept": 5, "prompt_too_long": 0, "side_too_long": 0, "equal_after_truncation": 0, "truncated": 0,
        }  # fmt: skip

    def test_pairs_of_one_prompt_are_a_group(self, model: LanguageModel) -> None:
        assert encode(PAIRS, model).groups.tolist() == [0, 1, 0, 2, 3]

    def test_messages_pass_through_the_chat_template(self, model: LanguageModel) -> None:
        pair = PreferencePair("p", [{"role": "user", "content": "1+2="}], "3", "4", "here")
        pairs = encode_pairs([pair], DatasetPairs(data="file", max_tokens=64), model)
        assert pairs.prompts[0].tolist() == model.encode([{"role": "user", "content": "1+2="}])

    @pytest.mark.parametrize(
        ("pair", "kept", "count"),
        [
            (("1234567", "1", "2"), False, None),  # 7 + 2 > 8
            (("123456", "1", "2"), True, None),  # 6 + 2 = 8
            (("12345678", "1", "2"), False, "prompt_too_long"),
            (("1234", "1", "2345"), False, None),  # one side only
            (("1234", "1", "234"), True, None),
        ],
    )
    def test_what_is_too_long_is_dropped(
        self, model: LanguageModel, pair: tuple[str, str, str], kept: bool, count: str | None
    ) -> None:
        pairs = encode([("1+1=", "2", "3"), pair], model, max_tokens=8)
        assert len(pairs) == pairs.counts.kept == 1 + kept
        fate = vars(pairs.counts)[count or "side_too_long"]
        assert fate == (not kept)

    def test_or_cut_and_then_has_no_end(self, model: LanguageModel) -> None:
        long = ("1234", "56789", "1234")  # 4 + 6 and 4 + 5 of 8
        equal = ("1234", "56789", "56780")
        half = ("1234", "567", "1234")
        no_room = ("12345678", "1", "2")
        pairs = encode([long, equal, half, no_room, ("1", "2", "3")], model, max_tokens=8, too_long="truncate")
        assert texts(pairs, model) == [
            ("1234", "5678", "1234"),
            ("1234", "567<eos>", "1234"),
            ("1", "2<eos>", "3<eos>"),
        ]
        assert vars(pairs.counts) == {
            "rows": 5, "kept": 3, "prompt_too_long": 1, "side_too_long": 0, "equal_after_truncation": 1, "truncated": 2,
        }  # fmt: skip

    def test_what_cannot_be_encoded_is_refused(self, model: LanguageModel) -> None:
        fits, fills = ("1" * 127, "2", "3"), ("1" * 128, "2", "3")
        assert encode([fits, ("1", "2", "3")], model).counts.prompt_too_long == 1
        where = "file, line 2"
        for rule in ("drop", "truncate"):
            with refuses(RefusedError, "run.pair_prompt_exceeds_context", where=where, prompt_tokens=128):
                encode([PAIRS[0], fills], model, too_long=rule)
        assert len(encode(PAIRS, model, max_tokens=128)) == 5
        with refuses(RefusedError, "run.pair_tokens_exceed_context", max_tokens=129, context=128):
            encode(PAIRS, model, max_tokens=129)
        with refuses(RefusedError, "run.pair_not_encodable", where=where):
            encode([PAIRS[0], ("1", "x", "y")], model)
        with refuses(RefusedError, "run.no_pair_left", n_pairs=5, max_tokens=5) as refused:
            encode(PAIRS, model, max_tokens=5)
        assert re.findall(r"\d", str(refused.value.fields["dropped"])) == ["2", "3"]

    def test_a_model_without_a_bound_takes_any_length(self, model: LanguageModel) -> None:
        unbound = without_weights(model.tokenizer, context=None)
        assert len(encode([("1" * 200, "2", "3")], unbound, max_tokens=300)) == 1


class TestStage:
    def test_what_is_written_is_what_is_read(self, tmp_path: Path, data: str, model: LanguageModel) -> None:
        written, read = encode(PAIRS, model), prepare(tmp_path / "pairs", spec_of(data), model)
        assert texts(read, model) == texts(written, model)
        assert read.counts == written.counts
        assert torch.equal(read.groups, written.groups)
        assert (read.prompts.values.dtype, read.chosen.lengths.dtype) == (torch.int32, torch.int64)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["pairs", "pairs.jsonl"]

    def test_the_file_says_what_it_is_of(self, tmp_path: Path, data: str, model: LanguageModel) -> None:
        prepare(tmp_path / "pairs", spec_of(data), model)
        with safe_open(tmp_path / "pairs", framework="pt") as file:
            header = json.loads(file.metadata()["pairs"])
        assert header["counts"]["kept"] == 5
        assert header["provenance"] == {
            "data": data,
            "fingerprint": parse_pair_source(data, "train").fingerprint,
            "model": "builtin:tiny",
            "temperature": 1.0,
        }

    @pytest.mark.parametrize(("temperature", "chunk_pairs"), [(1.0, 256), (0.7, 2)])
    def test_reference_log_probs_are_those_of_a_plain_forward_pass(
        self,
        tmp_path: Path,
        data: str,
        model: LanguageModel,
        monkeypatch: pytest.MonkeyPatch,
        temperature: float,
        chunk_pairs: int,
    ) -> None:
        """Each side by itself, unpadded, whatever the micro-batches."""
        monkeypatch.setattr(pair_dataset, "CHUNK_PAIRS", chunk_pairs)
        pairs = prepare(tmp_path / "pairs", spec_of(data, temperature=temperature), model)
        assert pairs.ref_chosen_logps is not None
        assert pairs.ref_rejected_logps is not None
        errors = []
        for at in range(len(pairs)):
            for side, logps in ((pairs.chosen, pairs.ref_chosen_logps), (pairs.rejected, pairs.ref_rejected_logps)):
                prompt, completion = pairs.prompts[at].long(), side[at].long()
                with torch.no_grad():
                    logits = model.model(input_ids=torch.cat([prompt, completion])[None]).logits[0]
                expected = (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
                errors.append((logps[at] - expected.gather(1, completion[:, None])[:, 0]).abs())
                assert logps[at].dtype == torch.float32
        # In float32 a log-prob of -20 is itself rounded by 1e-6.
        assert float(torch.cat(errors).mean()) < 1e-6
        assert float(torch.cat(errors).max()) < 2e-5

    def test_without_a_reference_nothing_is_scored(
        self, tmp_path: Path, data: str, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("harness.training.sequences.SequenceScorer", None)
        pairs = prepare(tmp_path / "pairs", spec_of(data, "simpo"), model)
        assert pairs.ref_chosen_logps is None
        assert pairs.batch([0]).ref_logps is None

    def test_tells_how_far_it_is(
        self, tmp_path: Path, data: str, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pair_dataset, "CHUNK_PAIRS", 2)
        told = make_stage("pairs", tmp_path / "pairs", spec_of(data), model)
        assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]

    def test_fewer_pairs_than_a_step_needs_are_refused(self, tmp_path: Path, data: str, model: LanguageModel) -> None:
        spec = spec_of(data, pairs_per_step=5, max_tokens=12)
        with refuses(RefusedError, "run.few_pairs_left", pairs_per_step=5, n_pairs=5, n_left=3) as refused:
            prepare(tmp_path / "pairs", spec, model)
        assert re.findall(r"\d", str(refused.value.fields["dropped"])) == ["1", "1"]
        assert not (tmp_path / "pairs").exists()


def test_real_pairs_and_a_real_tokenizer() -> None:
    file, model_file = "pref/gsm8k_test_model_solutions.jsonl", Path(os.environ.get("BENCH_MODELS") or "absent") / NAME
    if not (Path(os.environ.get("BENCH_DATA") or "absent") / file).is_file() or not model_file.is_file():
        pytest.skip(f"needs {file} in $BENCH_DATA and {NAME} in $BENCH_MODELS")
    tokenizer = AutoTokenizer.from_pretrained(model_file.resolve().parent, gguf_file=NAME)
    real = without_weights(tokenizer, context=8192)
    pairs = parse_pair_source(file, "train").load()
    drop, cut = (
        encode_pairs(pairs, DatasetPairs.model_validate({"data": file, "max_tokens": 200, "too_long": rule}), real)
        for rule in ("drop", "truncate")
    )
    assert tokenizer.decode(drop.prompts[0]).endswith("<|im_start|>assistant\n")
    assert real.decode(drop.chosen[0].tolist()) in {pair.chosen for pair in pairs}
    assert drop.counts.rows == cut.counts.rows == 731
    assert drop.counts.prompt_too_long == cut.counts.prompt_too_long
    assert drop.counts.side_too_long == cut.counts.truncated + cut.counts.equal_after_truncation > 0
    ends = [
        [
            int(side[at][-1]) == tokenizer.eos_token_id
            for at in range(len(encoded))
            for side in (encoded.chosen, encoded.rejected)
        ]
        for encoded in (drop, cut)
    ]
    assert all(ends[0])
    assert 0 < ends[1].count(False) <= 2 * cut.counts.truncated


def without_weights(tokenizer: PreTrainedTokenizerBase, context: int | None) -> LanguageModel:
    """Enough of a language model to encode with."""
    config = SimpleNamespace() if context is None else SimpleNamespace(max_position_embeddings=context)
    return LanguageModel(cast(PreTrainedModel, SimpleNamespace(config=config)), tokenizer)
