"""The source of a model's weights (`model.source`), and a fingerprint of them for the semantic hash. No torch here."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from harness.errors import RefusedError, nearest, shown

Kind = Literal["builtin", "hf", "path", "gguf", "scratch"]
TINY = Path(__file__).parents[1] / "models" / "tiny"


@dataclass(frozen=True)
class ModelSource:
    """A parsed `model.source`. E.g. `hf:<id>@<revision>` has kind `hf`, name `<id>` and revision `<revision>`."""

    kind: Kind
    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" + (f"@{self.revision}" if self.revision else "")

    @property
    def moves(self) -> bool:
        """True if the source may stand for other weights tomorrow. On the hub, only a commit is fixed."""
        return self.kind == "hf" and not re.fullmatch(r"[0-9a-f]{40}", self.revision or "")

    @property
    def path(self) -> Path:
        return TINY if self.kind == "builtin" else Path(self.name).expanduser()

    def fingerprint(self) -> str:
        """Return a string that identifies the model's content.

        It is a digest of all local files that loading reads, but not of their path. For the hub, it is the id and
        revision. Raises RefusedError if local files are missing.
        """
        if self.kind == "hf":
            return f"hf:{self.name}@{self.revision or 'main'}"
        if self.kind == "scratch":
            return f"scratch:{self.name}"
        self.require()
        digest = hashlib.blake2b(digest_size=16)
        for file in sorted(self._read_files()):
            with file.open("rb") as handle:
                # File names within a folder are hashed, because they determine a file's role. The name of a single file
                # is not.
                digest.update(b"" if file == self.path else str(file.relative_to(self.path)).encode())
                digest.update(hashlib.file_digest(handle, "blake2b").digest())
        return digest.hexdigest()

    def _read_files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        templates = self.path / "additional_chat_templates"
        found = [path for folder in (self.path, templates) if folder.is_dir() for path in folder.iterdir()]
        return [path for path in found if path.suffix in _READ and not _is_document(path) and not path.is_dir()]

    def require(self) -> None:
        """Raise RefusedError if a local source is missing."""
        if self.kind in ("path", "builtin") and not (self.path / "config.json").is_file():
            raise RefusedError(
                "config.folder_without_config", source_kind=self.kind, source_name=self.name, path=self.path
            )
        if self.kind == "gguf" and not self.path.is_file():
            raise RefusedError("config.gguf_file_missing", path=self.name)


_READ = {
    *(".json", ".safetensors", ".bin", ".model", ".jinja", ".txt", ".py"),
    *(".tiktoken", ".spm", ".bpe", ".codes", ".vocab", ".tokenizer"),
}
"""Suffixes of the files that transformers reads: configuration, weights, tokenizers, templates and a model's code."""


def _is_document(path: Path) -> bool:
    return path.suffix == ".txt" and path.name.upper().startswith(("README", "LICENSE", "LICENCE", "NOTICE"))


def is_hub_id(name: str) -> bool:
    """Return whether this is a valid name of a repository on the hub.

    The rules are those of `huggingface_hub.utils.validate_repo_id`.
    """
    word = r"[A-Za-z0-9_]([\w.-]*\w)?"
    is_formed = re.fullmatch(f"({word}/)?{word}", name, re.ASCII) is not None
    return is_formed and len(name) <= 96 and ".." not in name and "--" not in name and not name.endswith(".git")


def is_hub_revision(revision: str) -> bool:
    """Return whether this is a valid name of a commit, tag or branch.

    These are the rules of git that keep a name from leading to another path.
    """
    return re.fullmatch(r"[\w.+/-]{1,255}", revision, re.ASCII) is not None and ".." not in revision


def parse_source(source: str, knob: str = "model.source") -> ModelSource:
    """Parse `builtin:tiny`, `hf:<id>[@<revision>]`, `path:<dir>`, `gguf:<file>` or `scratch:tiny`.

    knob: the name of the setting, for messages. Raises RefusedError for anything else.
    """
    kind, colon, name = source.partition(":")
    kinds = get_args(Kind)
    if not colon or not name or kind not in kinds:
        raise RefusedError("config.unknown_source_kind", knob=knob, source=source, nearest=nearest(kind, kinds))
    if kind in ("builtin", "scratch") and name != "tiny":
        raise RefusedError("config.unknown_builtin_model", knob=knob, source=source, source_kind=kind)
    if kind == "hf":
        name, _, revision = name.partition("@")
        if not name:
            raise RefusedError("config.source_without_model", knob=knob, source=source)
        if not is_hub_id(name) or (revision and not is_hub_revision(revision)):
            raise RefusedError("config.malformed_hub_id", knob=knob, source=shown(source))
        return ModelSource("hf", name, revision or None)
    return ModelSource(kind, name)  # type: ignore[arg-type]  # checked against the Literal above
