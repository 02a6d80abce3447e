"""The settings of a search of Transformers as keys of `decoding`, and notes on what is left out."""

from __future__ import annotations

from sparsenmt.importers.huggingface import decoding_settings

TOKENS = {"pad_token_id": 9, "eos_token_id": 0, "decoder_start_token_id": 9, "unk_token_id": 1}


def test_a_beam_search() -> None:
    section, notes = decoding_settings(
        {
            **TOKENS,
            **{"num_beams": 6, "length_penalty": 0.8, "max_length": 142, "min_length": 56, "no_repeat_ngram_size": 3},
            **{"early_stopping": True, "bad_words_ids": [[9], [1]], "suppress_tokens": [9], "repetition_penalty": 1.0},
        }
    )
    assert section == {
        **{"beam_size": 6, "length_penalty": "average", "alpha": 0.8, "max_length_factor": 0.0},
        **{"max_length_offset": 141, "min_length": 55, "no_repeat_ngram": 3, "unknown": "forbid"},
    }
    assert notes == []


def test_what_is_left_out_is_said() -> None:
    settings = {"num_beams": 4, "length_penalty": -1.0, "repetition_penalty": 1.2, "bad_words_ids": [[5, 6]]}
    section, notes = decoding_settings({**TOKENS, **settings, "max_new_tokens": 30})
    assert section["alpha"] == 0 and section["max_length_offset"] == 30
    assert [note.partition(" ")[0] for note in notes] == ["length_penalty", "The", "1", "repetition_penalty:"]


def test_sampling() -> None:
    section, notes = decoding_settings({**TOKENS, "do_sample": True, "top_k": 10, "temperature": 0.7})
    assert (section["method"], section["top_k"], section["temperature"], notes) == ("sample", 10, 0.7, [])
