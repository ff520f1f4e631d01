from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evals.errors import DataMissingError, EvalError
from evals.pairs import PreferencePair, layout_of, pairs_digest, parse_pair_source, take_apart
from tests.refusals import refuses

ROWS = [{"id": f"r{i}", "prompt": f"question {i}", "chosen": "yes", "rejected": "no"} for i in range(3)]


@pytest.fixture
def write(tmp_path: Path):
    def write(rows: list[Any], name: str = "pairs.jsonl") -> str:
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(tmp_path / name)

    return write


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the hub that answers with a real Dataset and records the calls."""
    import datasets

    calls: list[tuple[Any, Any]] = []
    answer = SimpleNamespace(calls=calls, rows=ROWS)

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return datasets.Dataset.from_list(answer.rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return answer


class TestFiles:
    def test_a_row_becomes_a_pair(self, write) -> None:
        data = write([ROWS[0], "", {"prompt": "q\u2028", "chosen": "Zürich", "rejected": "no"}])
        first, second = [("r0", "question 0", "yes", "no"), ("pairs-00001", "q\u2028", "Zürich", "no")]
        expected = [PreferencePair(*first, f"{data}, line 1"), PreferencePair(*second, f"{data}, line 3")]
        assert parse_pair_source(data, "train").load() == tuple(expected)

    def test_is_looked_for_in_the_working_directory_and_then_in_bench_data(self, write, tmp_path, monkeypatch) -> None:
        (tmp_path / "here" / "pref").mkdir(parents=True)
        (tmp_path / "data" / "pref").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "here")
        monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
        write(ROWS[:1], "data/pref/p.jsonl")
        assert len(parse_pair_source("pref/p.jsonl", "train").load()) == 1
        write(ROWS[:2], "here/pref/p.jsonl")
        assert len(parse_pair_source("pref/p.jsonl", "train").load()) == 2

    def test_that_is_nowhere_is_missing_data(self, tmp_path, monkeypatch) -> None:
        for folder in (str(tmp_path), ""):
            monkeypatch.setenv("BENCH_DATA", folder)
            with refuses(DataMissingError, "evals.pairs_file_missing", source="absent.jsonl"):
                parse_pair_source("absent.jsonl", "train")

    def test_has_no_splits(self, write) -> None:
        with refuses(EvalError, "evals.split_of_pairs_file", split="test"):
            parse_pair_source(write(ROWS), "test")

    def test_the_fingerprint_is_of_the_pairs_in_order_and_of_nothing_else(self, write) -> None:
        def fingerprint(rows: list[Any], name: str) -> str:
            return parse_pair_source(write(rows, name), "train").fingerprint

        original = fingerprint(ROWS, "a.jsonl")
        without_ids = [{name: row[name] for name in ("rejected", "prompt", "chosen")} for row in ROWS]
        assert original.startswith("pairs:sha256:")
        assert fingerprint(without_ids, "b.jsonl") == original
        assert fingerprint(ROWS[::-1], "c.jsonl") != original
        others = [ROWS[0] | {name: "other"} for name in ("prompt", "chosen", "rejected")]
        assert len({fingerprint([row], f"d{i}.jsonl") for i, row in enumerate([ROWS[0], *others])}) == 4

    def test_the_fingerprint_follows_a_file_that_changes(self, write) -> None:
        data = write(ROWS)
        before = parse_pair_source(data, "train").fingerprint
        write(ROWS[:2])
        after = parse_pair_source(data, "train").fingerprint
        assert after == f"pairs:{pairs_digest(parse_pair_source(data, 'train').load())}" != before

    @settings(max_examples=20)
    @given(st.lists(st.text(min_size=1), min_size=3, max_size=3, unique=True))
    def test_the_digest_tells_the_sides_apart(self, texts: list[str]) -> None:
        prompt, one, other = texts
        pair = PreferencePair("a", prompt, one, other, "here")
        assert pairs_digest([pair]) != pairs_digest([PreferencePair("a", prompt, other, one, "here")])
        assert pairs_digest([pair]) == pairs_digest([PreferencePair("b", prompt, one, other, "there")])


class TestFaults:
    @pytest.mark.parametrize(
        ("row", "code"), [({}, "pair_field_missing"), ("[1]", "row_not_object"), ("{", "row_not_json")]
    )
    def test_are_named_with_file_and_line(self, write, row, code) -> None:
        data = write([ROWS[0], row, ROWS[1]])
        with refuses(EvalError, f"evals.{code}") as raised:
            parse_pair_source(data, "train").load()
        (line,) = str(raised.value).splitlines()
        assert line.startswith(f"{data}, line 2: ")

    def test_several_are_named_at_once_and_the_rest_counted(self, write) -> None:
        data = write([*ROWS, *[{"prompt": "q"}] * 7])
        with refuses(EvalError, "evals.in_row", where=f"{data}, line 4") as raised:
            parse_pair_source(data, "train").load()
        *lines, rest = str(raised.value).splitlines()
        assert [line.partition(": ")[0] for line in lines] == [f"{data}, line {n}" for n in range(4, 9)]
        assert rest.startswith("2 more ")

    def test_no_rows_are_no_pairs(self, write) -> None:
        with refuses(EvalError, "evals.no_pairs_in_source"):
            parse_pair_source(write([""]), "train").load()


class TestHub:
    def test_rows_are_those_of_a_file(self, hub, write) -> None:
        source = parse_pair_source("hub:me/pairs:clean@abc", "train_prefs")
        pairs = source.load()
        assert hub.calls == [(("me/pairs", "clean"), {"split": "train_prefs", "revision": "abc"})]
        assert pairs_digest(pairs) == pairs_digest(parse_pair_source(write(ROWS), "train").load())
        assert [pair.where for pair in pairs][:2] == [f"hub:me/pairs@abc/clean/train_prefs, row {i}" for i in (0, 1)]

    def test_columns_that_are_messages(self, hub) -> None:
        """A real Dataset gives them as lists of dicts, with every key that any message has."""
        turns = [{"role": "user", "content": "q", "name": None}]
        hub.rows = [
            {
                "prompt": "q",
                "chosen": [*turns, {"role": "assistant", "content": "yes", "name": "a"}],
                "rejected": [*turns, {"role": "assistant", "content": "no", "name": None}],
            }
        ]
        (pair,) = parse_pair_source("hub:me/pairs@abc", "train").load()
        assert (pair.prompt, pair.chosen, pair.rejected) == ([{"role": "user", "content": "q"}], "yes", "no")

    def test_a_column_of_nulls_is_named(self, hub) -> None:
        hub.rows = [ROWS[0], ROWS[1] | {"chosen": None}]
        with refuses(EvalError, "evals.in_row", where="hub:me/pairs@abc/default/train, row 1"):
            parse_pair_source("hub:me/pairs@abc", "train").load()

    def test_the_library_itself_reads_a_folder(self, write, tmp_path, monkeypatch) -> None:
        """The real `load_dataset`, with no network."""
        (tmp_path / "set").mkdir()
        write(ROWS, "set/train.jsonl")
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
        pairs = parse_pair_source(f"hub:{tmp_path / 'set'}@abc", "train").load()
        assert [(pair.id, pair.prompt) for pair in pairs] == [(row["id"], row["prompt"]) for row in ROWS]
        with refuses(DataMissingError, "evals.hub_pairs_not_loaded"):
            parse_pair_source(f"hub:{tmp_path / 'set'}@abc", "nosplit").load()

    def test_that_cannot_be_reached_is_missing_data(self, monkeypatch) -> None:
        def load_dataset(*args, **kwargs):
            raise ConnectionError("offline")

        monkeypatch.setattr("datasets.load_dataset", load_dataset)
        with refuses(DataMissingError, "evals.hub_pairs_not_loaded", source="hub:me/pairs@abc/default/train"):
            parse_pair_source("hub:me/pairs@abc", "train").load()

    def test_the_fingerprint_needs_no_network(self, monkeypatch) -> None:
        monkeypatch.setattr("datasets.load_dataset", None)
        addresses = [("hub:a/b@c", "train"), ("hub:a/b:d@c", "train"), ("hub:a/b@e", "train"), ("hub:a/b@c", "test")]
        assert len({parse_pair_source(*address).fingerprint for address in addresses}) == 4

    @pytest.mark.parametrize(
        "data", ["hub:me/pairs", "hub:me/pairs@", "hub:@abc", "hub:me/pairs:clean", "hub:a/b@main"]
    )
    def test_an_address_must_be_pinned(self, data) -> None:
        with refuses(EvalError, "evals.hub_pairs_not_pinned"):
            parse_pair_source(data, "train")


@pytest.mark.parametrize(
    ("file", "count", "prompts"), [("dpo_en_demo", 300, 295), ("gsm8k_test_model_solutions", 731, 731)]
)
def test_real_files(data_folder: Path, monkeypatch, file: str, count: int, prompts: int) -> None:
    if not (data_folder / "pref" / f"{file}.jsonl").is_file():
        pytest.skip(f"needs pref/{file}.jsonl in $BENCH_DATA")
    monkeypatch.setenv("BENCH_DATA", str(data_folder))
    pairs = parse_pair_source(f"pref/{file}.jsonl", "train").load()
    assert len(pairs) == count
    assert len({json.dumps(pair.prompt) for pair in pairs}) == prompts
    assert all(isinstance(pair.prompt, list) and pair.prompt[-1]["role"] == "user" for pair in pairs)


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "q"}
YES, NO = ({"role": "assistant", "content": content} for content in ("yes", "no"))
DIALOGUE = "\n\nHuman: hi\n\nAssistant: Hello.\n\nHuman: q\n\nAssistant:"

LAYOUTS: dict[str, tuple[dict[str, Any], Any]] = {
    "text": ({"prompt": "q", "chosen": "yes", "rejected": "no"}, "q"),
    "question": ({"question": "q", "chosen": "yes", "rejected": "no"}, "q"),
    "prompt wins over question": ({"prompt": "q", "question": "?", "chosen": "yes", "rejected": "no"}, "q"),
    "system": ({"system": "Be brief.", "question": "q", "chosen": "yes", "rejected": "no"}, [SYSTEM, USER]),
    "empty system": ({"system": "", "prompt": "q", "chosen": "yes", "rejected": "no"}, [USER]),
    "messages and text": ({"prompt": [SYSTEM, USER], "chosen": "yes", "rejected": "no"}, [SYSTEM, USER]),
    "messages and turns": ({"prompt": [USER], "chosen": [YES], "rejected": [NO]}, [USER]),
    "conversations": ({"chosen": [USER, YES], "rejected": [USER, NO]}, [USER]),
    "conversations of several turns": (
        {"chosen": [SYSTEM, USER, NO, USER, YES], "rejected": [SYSTEM, USER, NO, USER, NO]},
        [SYSTEM, USER, NO, USER],
    ),
    "conversations beside a text": ({"prompt": "q", "chosen": [USER, YES], "rejected": [USER, NO]}, [USER]),
    "conversations beside a null": ({"prompt": None, "chosen": [USER, YES], "rejected": [USER, NO]}, [USER]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout(name: str) -> None:
    row, prompt = LAYOUTS[name]
    assert take_apart(row, layout_of(row)) == (prompt, "yes", "no")


def test_dialogues() -> None:
    row = {"chosen": f"{DIALOGUE} yes", "rejected": f"{DIALOGUE} no"}
    assert take_apart(row, layout_of(row)) == (DIALOGUE, " yes", " no")


@settings(max_examples=30)
@given(prompt=st.text(), chosen=st.text(min_size=1), rejected=st.text(min_size=1))
def test_the_sides_of_a_dialogue_may_begin_alike(prompt: str, chosen: str, rejected: str) -> None:
    """The prompt ends with the last mark of the assistant that both have, wherever the texts part."""
    assume(not re.search("Assistant:|Human:", chosen + rejected) and chosen != rejected)
    start = f"\n\nHuman: {prompt}\n\nAssistant:"
    row = {"chosen": f"{start} a{chosen}", "rejected": f"{start} a{rejected}"}
    assert take_apart(row, layout_of(row)) == (start, f" a{chosen}", f" a{rejected}")


@pytest.mark.parametrize("turns", [1, 3])
def test_the_prompt_of_conversations_is_all_that_they_share(turns: int) -> None:
    """Even where an answer equals an earlier one."""
    start = [USER, YES] * (turns - 1) + [USER]
    row = {"chosen": [*start, YES], "rejected": [*start, NO]}
    assert take_apart(row, layout_of(row)).prompt == start


def test_keys_that_are_not_of_a_message_are_left_out() -> None:
    row = {"prompt": [USER | {"name": "x"}], "chosen": "yes", "rejected": "no"}
    assert take_apart(row, layout_of(row)).prompt == [USER]


TEXTS = {"chosen": "a", "rejected": "b"}
ASKED = {"prompt": [USER]}

# The layout of the first row (this row's own where there is none), a row, and what is wrong with it.
FAULTY: list[tuple[str | None, dict[str, Any], str, dict[str, object]]] = [
    ("messages and text", {"prompt": "q"} | TEXTS, "field_not_messages", {"field": "prompt"}),
    ("text", ASKED | TEXTS, "field_not_text", {"field": "prompt"}),
    ("text", {"prompt": "q", "chosen": [YES], "rejected": [NO]}, "field_not_text", {"field": "chosen"}),
    ("messages and turns", ASKED | {"chosen": [YES], "rejected": "no"}, "field_not_messages", {"field": "rejected"}),
    ("messages and turns", ASKED | {"chosen": [USER, YES], "rejected": [NO]}, "not_one_assistant_turn", {}),
    ("messages and text", TEXTS, "pair_field_missing", {"field": "prompt"}),
    ("text", {"system": "s", "prompt": "q"} | TEXTS, "unexpected_system", {}),
    ("conversations", {"chosen": [USER, YES]}, "pair_field_missing", {"field": "rejected"}),
    ("text", {"prompt": "q", "chosen": "a"}, "pair_field_missing", {"row_fields": "'prompt', 'chosen'"}),
    ("text", {}, "pair_field_missing", {"row_fields": "none at all"}),
    ("text", {"prompt": "q", "chosen": "a", "rejected": "a"}, "completions_equal", {}),
    ("text", {"prompt": "q", "chosen": " \n", "rejected": "a"}, "empty_completion", {"field": "chosen"}),
    ("text", {"prompt": "q", "chosen": "a", "rejected": ""}, "empty_completion", {"field": "rejected"}),
    ("text", {"prompt": " "} | TEXTS, "empty_field", {"field": "prompt"}),
    ("text", {"prompt": "q", "chosen": 7, "rejected": "b"}, "field_not_text", {"value": "7"}),
    ("text", {"prompt": "q", "chosen": "a", "rejected": None}, "field_not_text", {"value": "null"}),
    (None, {"prompt": []} | TEXTS, "field_not_messages", {"value": "an empty list"}),
    (None, ASKED | {"chosen": [YES], "rejected": [YES | {"name": "x"}]}, "completions_equal", {}),
    (None, {"chosen": [USER, YES], "rejected": [USER, YES]}, "completions_equal", {}),
    (None, {"chosen": f"{DIALOGUE} yes", "rejected": f"{DIALOGUE} yes"}, "completions_equal", {}),
    (None, {"chosen": f"{DIALOGUE} yes", "rejected": DIALOGUE}, "empty_completion", {"field": "rejected"}),
    (None, {"chosen": f"{DIALOGUE} yes", "rejected": "\n\nHuman: other"}, "dialogues_without_prompt", {}),
    (
        None,
        {"chosen": f"{DIALOGUE} a\n\nHuman: go on", "rejected": f"{DIALOGUE} no"},
        "human_turn_after_split",
        {"field": "chosen"},
    ),
    (None, {"chosen": [YES], "rejected": [NO]}, "conversations_without_prompt", {}),
    (None, {"chosen": [USER, YES], "rejected": [SYSTEM, YES]}, "conversations_without_prompt", {}),
    (None, {"chosen": [USER, YES, USER, YES], "rejected": [USER, NO]}, "not_one_assistant_turn", {"field": "chosen"}),
    (None, {"chosen": [USER, YES, NO], "rejected": [USER, YES, YES]}, "prompt_not_of_user", {"role": "assistant"}),
    (None, {"chosen": [USER, USER | {"content": "more"}], "rejected": [USER, NO]}, "not_one_assistant_turn", {}),
    (None, {"prompt": [USER, YES]} | TEXTS, "prompt_not_of_user", {"where": "'prompt'"}),
    (None, {"prompt": [{"role": "human", "content": "q"}]} | TEXTS, "unknown_message_role", {"role": "human"}),
    (None, {"prompt": [{"from": "human", "value": "q"}]} | TEXTS, "malformed_message", {"given": "'from', 'value'"}),
    (None, {"prompt": ["q"]} | TEXTS, "malformed_message", {"where": "message 1 of 'prompt'", "given": "text"}),
    (None, {"prompt": [USER | {"content": None}]} | TEXTS, "content_not_text", {"value": "null"}),
    (None, {"system": 3, "prompt": "q"} | TEXTS, "field_not_text", {"field": "system", "value": "3"}),
]


@pytest.mark.parametrize(("first", "row", "code", "fields"), FAULTY)
def test_rows_that_are_no_pairs(first: str | None, row: dict[str, Any], code: str, fields: dict[str, object]) -> None:
    layout = layout_of(row if first is None else LAYOUTS[first][0])
    with refuses(EvalError, f"evals.{code}", **fields):
        take_apart(row, layout)
