"""An exported model gives the probabilities and the translations of the engine, in the other program itself.

Needs the packages ctranslate2 (`pip install 'sparsenmt[export]'`) and transformers; skipped where they are absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import pad
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.export.model_export import export_model
from tests.export.support import LIMIT, LINES, VARIANTS, make_bundle

SOURCES = LINES[:12]
TARGETS = LINES[5:17]
TOLERANCE = 1e-4

Ids = list[list[int]]
Depth = tuple[int, int] | None


@cache
def bundle_of(variant: str) -> Bundle:
    return make_bundle(**VARIANTS[variant])


def scores(bundle: Bundle, depth: Depth) -> list[list[float]]:
    """Natural logarithms, piece by piece, `</s>` included."""
    return [each.token_log_probabilities for each in score_pairs(bundle, input_lines(SOURCES), TARGETS, depth=depth)]


def outputs(bundle: Bundle, depth: Depth, beam: int) -> dict[int, list[int]]:
    """Translations by the number of their source, `</s>` included.

    With a beam, only of searches that ended by themselves: what counts at the longest output is each program's own.
    """
    options = bundle.recipe.decoding.at(depth).model_copy(update={"beam_size": beam})
    found = list(translate_lines(bundle, input_lines(SOURCES), options))
    kept = {i: [*each.hypotheses[0].tokens, EOS][:LIMIT] for i, each in enumerate(found) if beam == 1 or _ended(each)}
    assert len(kept) >= 3
    return kept


def _ended(translation: TranslatedLine) -> bool:
    return all(each.ended and len(each.tokens) < LIMIT - 1 for each in translation.hypotheses)


def assert_close(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=TOLERANCE, abs=TOLERANCE)


def pieces(ids: Ids, tokenizer: Any) -> list[list[str]]:
    return [tokenizer.pieces(row) for row in ids]


def check_ctranslate2(bundle: Bundle, folder: Path, depth: Depth = None) -> None:
    """The model that was exported into a folder, against the bundle."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    source, target = bundle.tokenizers.source, bundle.tokenizers.target
    sources = pieces(source.encode_batch(SOURCES), source)
    scored = translator.score_batch(sources, pieces(target.encode_batch(TARGETS), target))
    assert_close([each.log_probs for each in scored], scores(bundle, depth))
    for beam in (1, 3):
        results = translator.translate_batch(
            sources,
            beam_size=beam,
            length_penalty=1.0,
            min_decoding_length=0,
            max_decoding_length=LIMIT,
            suppress_sequences=[[SPECIAL_TOKENS[PAD]], [SPECIAL_TOKENS[BOS]]],
            return_end_token=True,
        )
        for number, expected in outputs(bundle, depth, beam).items():
            assert results[number].hypotheses[0] == target.pieces(expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_ctranslate2(variant: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    bundle = bundle_of(variant)
    export_model(bundle, tmp_path / "out", "ctranslate2")
    check_ctranslate2(bundle, tmp_path / "out")


def test_a_shortlist_becomes_a_vocabulary_map(tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    variant = VARIANTS["pre-two-vocabularies-silu"]
    whole = bundle_of("pre-two-vocabularies-silu")
    source, target = whole.tokenizers.source, whole.tokenizers.target
    lists = [{4 + (7 * id_ + k) % (target.size - 4) for k in range(2)} for id_ in range(source.size)]
    Shortlist.of([5], lists, source, target).save(tmp_path / "own.shortlist")
    bundle = make_bundle(**variant, decoding={"shortlist": str(tmp_path / "own.shortlist")})
    export_model(bundle, tmp_path / "out", "ctranslate2")
    assert "use_vmap=True" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")

    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    expected = outputs(bundle, None, 1)
    assert expected != outputs(whole, None, 1)
    for number, ids in expected.items():
        (found,) = translator.translate_batch(
            pieces([source.encode(SOURCES[number])], source),  # alone: its map is of a whole batch
            beam_size=1,
            max_decoding_length=LIMIT,
            suppress_sequences=[[SPECIAL_TOKENS[PAD]], [SPECIAL_TOKENS[BOS]]],
            return_end_token=True,
            use_vmap=True,
        )
        assert found.hypotheses[0] == target.pieces(ids)


def check_transformers(bundle: Bundle, folder: Path, depth: Depth = None) -> None:
    """The same with Transformers."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()
    source, target = bundle.tokenizers.source, bundle.tokenizers.target
    ids, valid = pad([[*row, EOS] for row in source.encode_batch(SOURCES)])
    wanted, real = pad([[*row, EOS] for row in target.encode_batch(TARGETS)])
    given = torch.cat([torch.full((len(wanted), 1), BOS), wanted[:, :-1]], 1)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=given).logits
    values = logits.log_softmax(-1).gather(2, wanted[:, :, None]).squeeze(2)
    assert_close([row[mask].tolist() for row, mask in zip(values, real, strict=True)], scores(bundle, depth))
    for beam in (1, 3):
        found = model.generate(**batch, num_beams=beam, max_length=None, max_new_tokens=LIMIT, early_stopping=beam > 1)
        for number, expected in outputs(bundle, depth, beam).items():
            assert found[number, 1 : 1 + len(expected)].tolist() == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers(variant: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    bundle = bundle_of(variant)
    export_model(bundle, tmp_path / "out", "safetensors-hf")
    check_transformers(bundle, tmp_path / "out")


EXITS: dict[str, Any] = {"ending": 4.0, "depth": {"name": "tied_multi"}}


@pytest.mark.parametrize("depth", [(1, 2), (2, 3), None])
def test_one_depth_of_several(depth: Depth, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    bundle = make_bundle(**EXITS)
    export_model(bundle, tmp_path / "ctranslate2", "ctranslate2", depth)
    check_ctranslate2(bundle, tmp_path / "ctranslate2", depth)
    export_model(bundle, tmp_path / "transformers", "safetensors-hf", depth)
    check_transformers(bundle, tmp_path / "transformers", depth)
