"""Runs docs/notebook.ipynb and puts it on a page. `python -m docs.notebook` runs it and saves it with its output."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NOTEBOOK = Path(__file__).with_name("notebook.ipynb")
SVG, TEXT = "image/svg+xml", "text/plain"


def executed(folder: Path) -> Any:
    """The notebook, run again, with the output of its cells. folder: where it writes. Raises CellExecutionError for a
    cell that fails."""
    import nbclient
    import nbformat

    folders = dict.fromkeys(("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"), str(folder))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where `bench` is
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}})
    return client.execute(env=os.environ | folders | {"PATH": path, "NO_COLOR": "1"})


def kept(notebook: Any) -> Any:
    """The notebook with text and figures only: without times, and without a second form of each table."""
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = output.text.replace("\r\n", "\n")
            else:
                output.metadata = {}
                output.data = {form: output.data[form] for form in (SVG, TEXT) if form in output.data}
    return notebook


def as_markdown() -> str:
    """Its text, its code, and what the code printed."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell))


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if SVG in data:
            figure = base64.b64encode("".join(data[SVG]).encode()).decode()
            yield f'<img src="data:{SVG};base64,{figure}" alt="A figure">'
        else:
            yield f"```text\n{''.join(output.get('text', data.get(TEXT, ''))).rstrip()}\n```"


def main() -> None:
    import nbformat

    with TemporaryDirectory() as folder:
        nbformat.write(kept(executed(Path(folder))), NOTEBOOK)


if __name__ == "__main__":
    main()
