"""The settings of a search of Transformers as keys of `decoding`, and notes on what is left out."""

from __future__ import annotations

from sparsenmt.importers.huggingface_search import decoding_settings

TOKENS = {"pad_token_id": 9, "eos_token_id": 0, "decoder_start_token_id": 9}


def test_a_beam_search() -> None:
    section, notes = decoding_settings(
        {
            **TOKENS,
            **{"num_beams": 6, "length_penalty": 0.8, "max_length": 142, "min_length": 56, "no_repeat_ngram_size": 3},
            **{"early_stopping": True, "bad_words_ids": [[9], [1]], "suppress_tokens": [9], "repetition_penalty": 1.0},
        },
        unknown=1,
        never=[9],
    )
    assert section == {
        **{"beam_size": 6, "length_penalty": "average", "alpha": 0.8, "max_length_factor": 0.0},
        **{"max_length_offset": 141, "min_length": 55, "no_repeat_ngram": 3, "unknown": "forbid"},
    }
    assert [note.partition(" are")[0] for note in notes] == ["Hypotheses that"]


def test_what_is_left_out_is_said() -> None:
    settings = {"num_beams": 4, "length_penalty": -1.0, "repetition_penalty": 1.2, "bad_words_ids": [[5, 6]]}
    section, notes = decoding_settings({**TOKENS, **settings, "max_new_tokens": 30})
    assert section["alpha"] == 0 and section["max_length_offset"] == 30
    assert [note.partition(" ")[0] for note in notes] == [
        "length_penalty",
        "The",
        "Hypotheses",
        "1",
        "repetition_penalty:",
    ]


def test_sampling() -> None:
    section, notes = decoding_settings({**TOKENS, "do_sample": True, "top_k": 10, "temperature": 0.7, "max_length": 9})
    assert (section["method"], section["top_k"], section["temperature"], notes) == ("sample", 10, 0.7, [])


def test_lengths_are_those_of_transformers_less_what_the_decoder_is_given() -> None:
    def lengths(prefix: int, **search: object) -> tuple[int, int]:
        section, _ = decoding_settings({**TOKENS, **search}, prefix)
        return section["min_length"], section["max_length_offset"]

    assert lengths(0, min_length=56, max_length=142) == (55, 141)
    assert lengths(1, min_length=56, max_length=142) == (54, 140)
    assert lengths(1, min_length=56, max_length=142, forced_eos_token_id=0) == (54, 139)
    assert lengths(1, min_new_tokens=5, max_new_tokens=9) == (4, 8)
    assert lengths(0, min_new_tokens=5, min_length=70, max_new_tokens=9, max_length=4) == (5, 9)


def test_every_key_is_used_or_told() -> None:
    names = ["min_p", "stop_strings", "sequence_bias", "watermarking_config", "begin_suppress_tokens", "of_the_future"]
    _, notes = decoding_settings({**TOKENS, "max_length": 9, "do_sample": True} | dict.fromkeys(names, 0.5))
    assert [note.partition(":")[0] for note in notes] == names
    for values in ({"guidance_scale": 1.0}, {"num_beam_groups": 1}, {"use_cache": True}, {"min_p": 0.1}):
        assert decoding_settings({**TOKENS, "max_length": 9, **values})[1] == []
