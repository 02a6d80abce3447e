"""Text that a vocabulary does not know: `prepare` gives its share, and commands that read new text report its lines."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparsenmt.cli import run
from sparsenmt.data.prepared_data import PreparedReport, read_manifest
from sparsenmt.storage.files import read_sealed, write_sealed
from tests.commands.support import Run

RUSSIAN = "Собака бежит домой .\n"
OTHER = "another language or script than the model's source (en), or swapped sides"


def test_lines_that_are_mostly_unknown_are_counted_once(command: Run, workspace: Path) -> None:
    (workspace / "text").write_text(("Sophie swims .\n\n" + RUSSIAN) * 8, encoding="utf-8")
    warning = f"8 of 16 lines are mostly unknown to the model's vocabulary (lines 3, 6, 9, 12, 15, ...): {OTHER}"
    result = command("decode", "model", "-i", "text", "-o", "out", "--window", "3")
    assert (result.code, result.err) == (0, f"warning: {warning}\n")
    for arguments in (
        ["score", "--model", "model", "--source", "text", "--reference", "text"],
        ["analyze", "density", "model", "-i", "text"],
        ["analyze", "annotate", "model", "-i", "text"],
    ):
        err = command(*arguments).err
        assert err.count("mostly unknown") == 1 and f"warning: text: {warning}" in err, arguments
    swapped = command("score", "--model", "model", "--source", "corpus/test.en", "--target", "other")
    assert swapped.code == 2
    (workspace / "other").write_text(RUSSIAN * 20, encoding="utf-8")
    swapped = command("score", "--model", "model", "--source", "corpus/test.en", "--target", "other")
    assert "warning: other: 20 of 20 lines are mostly unknown" in swapped.err and "target (de)" in swapped.err
    assert '"tokens"' not in swapped.out.decode() or "Собака" in swapped.out.decode()


def test_nothing_is_said_where_little_is_unknown(command: Run, workspace: Path) -> None:
    (workspace / "text").write_text("Sophie swims in Жуковка .\n\n   \n", encoding="utf-8")
    assert command("decode", "model", "-i", "text").err == ""


def test_a_person_at_a_terminal_is_told_at_once(workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    text = io.BytesIO((RUSSIAN + "Sophie swims .\n" + RUSSIAN).encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=text, isatty=lambda: True))
    assert run(["decode", "model"]) == 0
    err = capfd.readouterr().err
    assert err.count("unknown") == 1
    assert f"warning: the line is mostly unknown to the model's vocabulary (line 1): {OTHER}" in err


def test_copies_and_refusals(command: Run, workspace: Path) -> None:
    line = "Sophie saw Жуковка .\n"
    for unknown in ("allow", "forbid", "copy"):
        result = command("decode", "model", "--unknown", unknown, stdin=line.encode())
        assert result.code == 0 and result.out.decode().count("\n") == 1
    assert "decoding.unknown" in command("train", "small.yaml", "decoding.unknown=never").err


def test_reports_show_the_text_of_unknown_tokens(command: Run) -> None:
    line = "Sophie saw 漢字 ."
    annotated = command("analyze", "annotate", "model", "--sentence", line)
    assert "漢字" in annotated.out.decode() and "<unk>" not in annotated.out.decode()
    for site in ("encoder_self", "cross"):
        shown = command("analyze", "maps", "model", "--sentence", line, "--site", site, "--json", "maps.json")
        assert shown.code == 0 and "漢字" in shown.out.decode()
        assert "漢字" in Path("maps.json").read_text(encoding="utf-8")


def test_prepare_gives_the_share(command: Run, workspace: Path) -> None:
    recipe = (workspace / "small.yaml").read_text(encoding="utf-8").replace("directory: prepared", "directory: again")
    (workspace / "again.yaml").write_text(recipe, encoding="utf-8")
    plain = command("prepare", "again.yaml")
    assert plain.code == 0 and "unknown" not in plain.out.decode() + plain.err
    for path in (workspace / "corpus/dev.de", workspace / "corpus/dev.en"):
        path.write_text(RUSSIAN * len(path.read_text(encoding="utf-8").splitlines()), encoding="utf-8")
    result = command("prepare", "again.yaml", "data.tokenizer.kind=word")
    assert result.code == 0
    demo, dev, *_ = result.out.decode().splitlines()
    assert " of them unknown" in demo and "100.00% and 100.00% of them unknown" in dev
    assert "source tokens are unknown: words that are too rare for data.tokenizer.vocabulary_size (150): raise it" in (
        result.err
    )
    again = command("prepare", "again.yaml", "data.tokenizer.kind=word")
    assert (
        again.err == re.sub("; mostly .*", "", result.err)
        and again.out.decode().splitlines()[:-1] == result.out.decode().splitlines()[:-1]
    )
    swapped = command("prepare", "again.yaml", "data.tokenizer.vocabulary_size=180")
    assert "warning: dev: 37.5% of the target tokens are unknown: another language or script" in swapped.err
    assert "demo:" not in swapped.err


def test_data_prepared_before_unknown_tokens_were_counted(command: Run, workspace: Path) -> None:
    manifest = read_manifest(workspace / "prepared")
    for corpus in (*manifest["corpora"], manifest["dev"]):
        del corpus["source_unknown"], corpus["target_unknown"]
    write_sealed(workspace / "prepared" / "manifest.json", {k: v for k, v in manifest.items() if k != "seal"})
    report = PreparedReport.from_manifest(Path(), read_manifest(workspace / "prepared"), up_to_date=True)
    assert report.dev.unknown_shares() == (0.0, 0.0)
    result = command("prepare", "small.yaml")
    assert result.code == 0 and "up to date" in result.out.decode() and result.err == ""


def test_kept_results_stay_where_the_setting_is_the_default(command: Run, workspace: Path) -> None:
    """Records of decoding name the key only where it is set, so that those made before it existed are still right."""
    assert (
        command("compare", "model", "--source", "corpus/test.en", "--reference", "corpus/test.de", "--no-speed").code
        == 0
    )
    (kept,) = (workspace / "model" / "evaluation").glob("*.json")
    key = read_sealed(kept)["key"]
    assert "beam_size" in key["decoding"] and "unknown" not in json.dumps(key["decoding"])
