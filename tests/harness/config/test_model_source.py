from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.config.model_source import TINY, ModelSource, parse_source
from harness.errors import RefusedError
from tests.refusals import refuses


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("builtin:tiny", ModelSource("builtin", "tiny")),
        ("scratch:tiny", ModelSource("scratch", "tiny")),
        ("hf:org/name", ModelSource("hf", "org/name")),
        ("hf:org/name@v1.0", ModelSource("hf", "org/name", "v1.0")),
        ("path:/some/where:else", ModelSource("path", "/some/where:else")),
        ("gguf:a/b.gguf", ModelSource("gguf", "a/b.gguf")),
    ],
)
def test_parses(given: str, expected: ModelSource) -> None:
    assert parse_source(given) == expected


@pytest.mark.parametrize("given", ["", "tiny", ":", "hf:", "path:", "gfuf:a.gguf", "HF:org/name"])
def test_what_is_no_source_is_refused(given: str) -> None:
    with refuses(RefusedError, "config.unknown_source_kind"):
        parse_source(given)


@pytest.mark.parametrize("given", ["builtin:large", "scratch:large"])
def test_there_is_one_model_of_our_own(given: str) -> None:
    with refuses(RefusedError, "config.unknown_builtin_model", source=given):
        parse_source(given)


@pytest.mark.parametrize(
    ("given", "code"),
    [("path:/nowhere", "config.folder_without_config"), ("gguf:/nowhere.gguf", "config.gguf_file_missing")],
)
def test_a_missing_model_is_refused(given: str, code: str) -> None:
    with refuses(RefusedError, code):
        parse_source(given).fingerprint()


class TestFingerprint:
    def test_is_of_the_content_not_of_the_path(self, tmp_path: Path) -> None:
        for name in ("one", "other"):
            shutil.copytree(TINY, tmp_path / name)
        prints = {parse_source(f"path:{tmp_path / name}").fingerprint() for name in ("one", "other")}
        assert prints == {parse_source("builtin:tiny").fingerprint()}

    @pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"])
    def test_changes_with_each_file(self, tmp_path: Path, file: str) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(TINY, copy)
        before = parse_source(f"path:{copy}").fingerprint()
        content = bytearray((copy / file).read_bytes())
        content[-3] ^= 1
        (copy / file).write_bytes(content)
        assert parse_source(f"path:{copy}").fingerprint() != before

    def test_is_of_all_that_loading_reads(self, tmp_path: Path) -> None:
        """A model's own code and a tokenizer's ranks count, a text about the model does not."""
        copy = tmp_path / "copy"
        shutil.copytree(TINY, copy)
        source = parse_source(f"path:{copy}")
        prints = [source.fingerprint()]
        for name in ("modeling_own.py", "own.tiktoken", "additional_chat_templates/tools.jinja"):
            (copy / name).parent.mkdir(exist_ok=True)
            (copy / name).write_text("one")
            prints.append(source.fingerprint())
        for name in ("README.md", "README.txt", "LICENSE.txt", "samples.csv"):
            (copy / name).write_text("about it")
        assert source.fingerprint() == prints[-1]
        assert len(set(prints)) == 4

    def test_of_a_gguf_file(self, tmp_path: Path) -> None:
        for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
            (tmp_path / f"{name}.gguf").write_bytes(content)
        one, same, other = (parse_source(f"gguf:{tmp_path}/{name}.gguf").fingerprint() for name in "abc")
        assert one == same != other

    def test_on_the_hub_is_id_and_revision(self) -> None:
        assert parse_source("hf:a/b").fingerprint() == "hf:a/b@main"
        assert parse_source("hf:a/b@v2").fingerprint() != parse_source("hf:a/b@v3").fingerprint()


@pytest.mark.parametrize(
    ("source", "moves"),
    [
        ("hf:a/b", True),
        ("hf:a/b@main", True),
        ("hf:a/b@v1.0", True),
        ("hf:a/b@0123456789abcdef0123456789abcdef01234567", False),
        ("path:a", False),
        ("builtin:tiny", False),
    ],
)
def test_on_the_hub_only_a_commit_stays(source: str, moves: bool) -> None:
    assert parse_source(source).moves is moves
    assert str(parse_source(source)) == source
