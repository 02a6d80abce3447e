"""`sparsenmt decode --mbr`: the candidate that is most like all others, from samples and from a beam."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu

from sparsenmt.data.input_line import InputLine
from sparsenmt.data.terminology import Term, WordEdges
from sparsenmt.data.tokenizers.tokenizer import train_tokenizer
from sparsenmt.recipe.schema import Decoding, TokenizerSection
from sparsenmt.workflows.decoding import minimum_risk
from tests.commands.support import Run

LINES = [b"a dog", b"the black cat sees two birds", b"", b"we sing", b"two dogs see a bird"]
SAMPLES = "--method", "sample", "--mbr", "chrf", "--mbr-samples", "5", "--temperature", "0.7"


def text(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def chosen(candidates: list[str]) -> str:
    """The first of the candidates with the highest mean sentence chrF."""

    def risk(own: str) -> float:
        return -sum(sacrebleu.sentence_chrf(own, [other]).score for other in candidates)

    return min(candidates, key=lambda own: (round(risk(own), 9), candidates.index(own)))


def test_samples_equal_a_plain_loop(command: Run) -> None:
    found = command("decode", "model", *SAMPLES, "--seed", 3, stdin=text(LINES))
    assert (found.code, len(found.lines)) == (0, len(LINES))
    seeds = [(3 + i * 2_654_435_761) % 2**32 for i in range(5)]
    rounds = [
        command("decode", "model", *SAMPLES[:2], *SAMPLES[-2:], "--seed", seed, stdin=text(LINES)).lines
        for seed in seeds
    ]
    assert len({tuple(lines) for lines in rounds}) > 1
    assert found.lines == [chosen(list(candidates)) for candidates in zip(*rounds, strict=True)]


def test_a_beam_equals_a_plain_loop(command: Run) -> None:
    found = command("decode", "model", "--beam-size", 4, "--mbr", "chrf", stdin=text(LINES))
    listed = command("decode", "model", "--beam-size", 4, "--json", "--n-best", 4, stdin=text(LINES))
    texts = [[each["text"] for each in json.loads(line)["hypotheses"]] for line in listed.lines]
    assert found.lines == [chosen(candidates) for candidates in texts]


def test_company_and_windows_do_not_matter(command: Run, workspace: Path) -> None:
    expected = command("decode", "model", *SAMPLES, stdin=text(LINES)).lines
    for more in (["--batch-tokens", 1], ["--window", 2]):
        assert command("decode", "model", *SAMPLES, *more, stdin=text(LINES)).lines == expected
    (workspace / "in").write_bytes(text(LINES))
    assert command("decode", "model", *SAMPLES, "-i", "in", "-o", "out").code == 0
    assert (workspace / "out").read_text(encoding="utf-8").split("\n")[:-1] == expected


def test_the_n_best_are_different_texts_by_utility(command: Run) -> None:
    found = command("decode", "model", *SAMPLES, "--n-best", 3, stdin=text(LINES))
    rows = [line.split(" ||| ") for line in found.lines]
    for number in range(len(LINES)):
        own = [(words, float(utility)) for line, words, utility in rows if int(line) == number]
        assert own == sorted(own, key=lambda each: -each[1]) and len({words for words, _ in own}) == len(own)
    as_json = command("decode", "model", *SAMPLES, "--json", stdin=text(LINES[:1])).lines
    assert json.loads(as_json[0])["hypotheses"][0]["utility"] == pytest.approx(float(rows[0][2]), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mbr", "chrf", "--beam-size", "1"], "needs several candidates, there is one"),
        (["--mbr", "chrf", "--method", "greedy"], "needs several candidates, there is one"),
        (["--mbr", "chrf", "--method", "sample", "--mbr-samples", "1"], "Raise --mbr-samples"),
        (["--mbr", "chrf", "--method", "sample", "--n-best", "17"], "17 are more than there are candidates"),
        (["--mbr", "chrf", "--mbr-samples", "6"], "--mbr-samples: changes nothing"),
        (["--mbr", "chrf", "--long", "split"], "--long split: divides lines"),
        (["--mbr-samples", "6"], "--mbr-samples: is given without --mbr"),
        (["--mbr", "dbleu"], "'dbleu' is not one of"),
        (["--mbr", "chrf", "--depth", "auto"], "--depth"),
    ],
)
def test_what_is_refused(refused: Callable[..., str], arguments: list[str], said: str) -> None:
    assert said in refused("decode", "model", *arguments, stdin=text(LINES))


def test_a_resumed_run_has_the_same_model_of_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimum_risk, "Utility", lambda metric, language: None)
    bundle: Any = SimpleNamespace(recipe=SimpleNamespace(data=SimpleNamespace(target_language="de")))
    records = []
    for model in ("first", "second"):
        monkeypatch.setenv("SPARSENMT_BERTSCORE", model)
        records.append(minimum_risk.MinimumRisk(bundle, Decoding(beam_size=4), "bertscore", None, 1).record)
    assert records == [["bertscore", 4, "first"], ["bertscore", 4, "second"]]
    assert minimum_risk.MinimumRisk(bundle, Decoding(beam_size=4), "chrf", None, 1).record == ["chrf", 4]


def test_a_candidate_without_a_term_is_not_chosen(command: Run, workspace: Path) -> None:
    (workspace / "terms").write_text("dog\tKatze\n", encoding="utf-8", newline="\n")
    own = "--glossary", "terms", "--mbr", "chrf", "--beam-size", 4, "--max-length-offset", 30
    found = command("decode", "model", *own, stdin=text(LINES[:1]))
    assert found.code == 0 and "Katze" in found.lines[0]
    tokenizer = train_tokenizer(TokenizerSection.model_validate({"kind": "word"}), ["ein Hund", "eine Katze"])
    term = Term("dog", "Hund", tuple(tokenizer.encode("Hund")), None, WordEdges.of(tokenizer))
    candidates: Any = [(words, None) for words in ("eine Katze", "ein Hund", "ein Hunde", "Hund")]
    for terms, left in (((term,), [1, 3]), ((replace(term, bonus=1.0),), [0, 1, 2, 3]), ((), [0, 1, 2, 3])):
        line = InputLine(0, "a dog", terms=terms)
        assert minimum_risk._with_most_terms(candidates, line, tokenizer) == [candidates[i] for i in left]
    assert minimum_risk._with_most_terms([], InputLine(0, ""), tokenizer) == []
