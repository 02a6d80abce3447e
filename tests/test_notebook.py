"""examples/notebook.ipynb runs from its first cell to its last, and shows what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples/notebook.ipynb"

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


@pytest.mark.thorough
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UPDATES": "6", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells: list[Any] = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells), "outputs are made, not stored"
    # The kernel is that of the interpreter that runs the tests.
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pictures = {
        cell.source.splitlines()[-1]: output.data["text/html"]
        for cell in cells
        for output in cell.outputs
        if output.output_type == "execute_result" and "text/html" in output.data
    }
    assert pictures.keys() == {
        "found",
        "model.kept(demo.sources[0])",
        "model.attention(demo.sources[0], demo.references[0])",
        "alignment",
    }
    assert all(html.count("background:#") > 3 for html in pictures.values())
    errors = [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert errors == []
