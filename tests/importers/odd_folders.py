"""Small folders of Transformers with odd but legal settings: golden weights and tokenizers of a family, and changes.

``golden-folders.json`` has what Transformers makes of each: ids of lines, and outputs. It is made anew by
``python benchmarks/import_folders.py``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from torch import Tensor

from sparsenmt.data.tokenizers.pipeline_tokenizer import byte_pair_description
from sparsenmt.storage.tensors import load_foreign_tensors, save_tensors

HERE = Path(__file__).parent
FAMILIES: dict[str, Any] = json.loads((HERE / "golden-tokenizers" / "ids.json").read_text(encoding="utf-8"))["families"]
LINES = [
    "A man in a blue shirt stands on a ladder.",
    "Two dogs are playing in the snow!",
    "Who is reading the old newspaper?",
    "Zwei Hunde spielen im Schnee, oder?",
]
_WEIGHTS = {"opus-mt-two-vocabularies": "marian-two-vocabularies", "bart": "bart", "pegasus": "pegasus"}
_WEIGHTS |= {"mbart-25": "mbart", "mbart-50": "mbart", "m2m-100": "m2m_100", "nllb": "m2m_100"}
_POSITIONS = 80
_SEEDS = {"opus-mt": 30, "opus-mt-two-vocabularies": 24, "opus-mt-several-targets": 37, "opus-mt-mixed-scripts": 22}
_SEEDS |= {"bart": 1, "mbart-25": 21, "mbart-50": 1, "m2m-100": 8, "nllb": 7, "pegasus": 38}
"""With which outputs have several tokens, and some end by themselves."""
_MORE, _MORE_END = (
    3.0,
    1.4,
)  # factors of what layers add, and of the rows of EOS: with 1, outputs repeat their first token

Tables = dict[str, Tensor]
SHARED, OUTPUT = "model.shared.weight", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"


class Numbers:
    """Random numbers that are the same on every processor."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.RandomState(seed)

    def table(self, *shape: int) -> Tensor:
        """A table of numbers with the standard deviation 0.37."""
        return torch.from_numpy(0.37 * self._random.standard_normal(shape)).float()


@dataclass(frozen=True)
class Odd:
    """A folder.

    Args:
        family: of the golden tokenizers.
        search: keys of ``generation_config.json`` beside `usual_search`; None: the folder has no such file.
        config: keys of ``config.json``; of both, a key with the value None is taken out.
        tables: changes the weights.
        files: changes the other files.
        said: a part of a note, or of the message that refuses the folder; "": nothing is said.
        refused: the folder cannot be imported.
        differs: outputs may be others, as the note says.
        bare: Transformers puts no tokens around a line.
        text: a further line.
        like: the folder whose outputs in Transformers are those of this one; "": its own.
    """

    family: str
    search: dict[str, Any] | None = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    tables: Callable[[Tables, Numbers], object] | None = None
    files: Callable[[Path], object] | None = None
    said: str = ""
    refused: bool = False
    differs: bool = False
    bare: bool = False
    text: str = ""
    like: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines that are compared."""
        return [*LINES, *([self.text] if self.text else [])]

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The languages of source and target."""
        source, target = FAMILIES[self.family]["languages"]
        return source, target

    def write(self, folder: Path) -> None:
        """Write the folder."""
        shutil.copytree(HERE / "golden-tokenizers" / self.family, folder)
        golden = HERE / "golden" / _WEIGHTS.get(self.family, "marian")
        before = json.loads((golden / "config.json").read_text(encoding="utf-8"))
        own = {key: value for key, value in FAMILIES[self.family]["config"].items() if key != "forced_bos_token_id"}
        if "decoder_vocab_size" in before and "decoder_vocab_size" not in own:
            own["decoder_vocab_size"] = own["vocab_size"]
        config = before | {"forced_eos_token_id": None, "max_position_embeddings": _POSITIONS} | own | self.config
        if self.search is not None:
            _write(folder / "generation_config.json", usual_search(self.family) | self.search)
        _write(folder / "config.json", config)
        settings = folder / "tokenizer_config.json"
        given = json.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
        _write(settings, {"tokenizer_class": FAMILIES[self.family]["class"]} | given)
        tensors = _weights(golden, before, config, Numbers(_SEEDS[self.family]))
        if self.tables is not None:
            self.tables(tensors, Numbers(2))
        if self.files is not None:
            self.files(folder)
        save_tensors(folder / "model.safetensors", tensors, metadata={"format": "pt"})


def usual_search(family: str) -> dict[str, Any]:
    """A greedy search of at most 24 tokens, without padding."""
    own = FAMILIES[family]["config"]
    ids = {key: own[key] for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    forced = 0 if family == "bart" else None
    if family in ("mbart-50", "m2m-100", "nllb"):
        forced = target_language(family)
    padding = own.get("decoder_vocab_size", ids["pad_token_id"] + 1) - 1
    return {**ids, "bad_words_ids": [[padding]], "max_length": 24, "forced_bos_token_id": forced}


def target_language(family: str) -> int:
    """The id of a target's language: the first of a target's ids in the golden file."""
    return int(FAMILIES[family]["target"][0][0])


def _weights(golden: Path, before: dict[str, Any], config: dict[str, Any], numbers: Numbers) -> Tables:
    """Golden weights with tables of other sizes; the rows of EOS are those of the golden end."""
    sizes = {before["vocab_size"]: config["vocab_size"]}
    if "decoder_vocab_size" in before:
        sizes[before["decoder_vocab_size"]] = config["decoder_vocab_size"]
    tensors = {}
    for name, tensor in sorted(load_foreign_tensors(golden / "model.safetensors", hint="").items()):
        if "embed_positions" in name and config["model_type"] == "pegasus":
            continue  # sinusoids of another length
        if "embed_positions" in name:
            found = numbers.table(_POSITIONS + 2, tensor.shape[1])
        elif name == "final_logits_bias":
            found = numbers.table(1, sizes[tensor.shape[1]])
        elif name in (SHARED, OUTPUT, SOURCE, TARGET):
            found = numbers.table(sizes[tensor.shape[0]], tensor.shape[1])
            found[config["eos_token_id"]] = _MORE_END * tensor[before["eos_token_id"]]
        elif name.endswith(("fc2.weight", "out_proj.weight")):
            found = _MORE * tensor
        else:
            found = tensor
        tensors[name] = found
    return tensors


def _write(path: Path, values: dict[str, Any]) -> None:
    kept = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


def settings(**values: Any) -> Callable[[Path], object]:
    """Change ``tokenizer_config.json``; None takes a key out."""

    def change(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        _write(path, json.loads(path.read_text(encoding="utf-8")) | values)

    return change


def another(name: str, like: str) -> Callable[[Tables, Numbers], object]:
    """Store a table of its own beside the one that it should be."""

    def change(tables: Tables, numbers: Numbers) -> None:
        found = numbers.table(*tables[like].shape)
        tables[name] = 0.5 * found + 0.5 * tables[like]

    return change


def without(*names: str) -> Callable[[Tables, Numbers], object]:
    """Leave tensors out."""
    return lambda tables, numbers: [tables.pop(name) for name in names]


def lowered(tables: Tables, numbers: Numbers) -> None:
    """All biases but that of padding, which is 0, are at -6: padding has most of Transformers' softmax."""
    tables["final_logits_bias"] -= 6
    tables["final_logits_bias"][0, -1] = 0
    tables[SHARED][-1] = 0


def own_positions(tables: Tables, numbers: Numbers) -> None:
    """Tables of positions that are no sinusoids."""
    for side in ("encoder", "decoder"):
        tables[f"model.{side}.embed_positions.weight"] = numbers.table(_POSITIONS, 8)


def changed(path: Path, **values: Any) -> None:
    """Change keys of a file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def added(*, special: bool = False, rows: int) -> Callable[[Path], object]:
    """Add the token <doc>, the last of ``rows``."""

    def change(folder: Path) -> None:
        _write(folder / "added_tokens.json", {"<doc>": rows - 1})
        token = {"content": "<doc>", "special": special, **dict.fromkeys(("lstrip", "rstrip", "normalized"), False)}
        path = folder / "tokenizer_config.json"
        before = json.loads(path.read_text(encoding="utf-8"))
        tokens = {**before.get("added_tokens_decoder", {}), str(rows - 1): token | {"single_word": False}}
        _write(path, before | {"added_tokens_decoder": tokens})

    return change


def pipeline(**changes: Any) -> Callable[[Path], object]:
    """Replace the files of a byte-level BPE by ``tokenizer.json``; ``changes``: of its model."""

    def change(folder: Path) -> None:
        names = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        rows = [line.split(" ") for line in (folder / "merges.txt").read_text(encoding="utf-8").split("\n") if line]
        pairs = [(row[0], row[1]) for row in rows if row[0] != "#version:"]
        described = json.loads(byte_pair_description(names, pairs, prefix_space=False))
        described["model"] |= changes
        described["added_tokens"] = [
            {"id": names[name], "content": name, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
            if name in names
        ]
        ends = {"sep": ["</s>", names["</s>"]], "cls": ["<s>", names["<s>"]]}
        described["post_processor"] = {"type": "RobertaProcessing", **ends, "trim_offsets": True} | {
            "add_prefix_space": False
        }
        _write(folder / "tokenizer.json", described)
        for name in ("vocab.json", "merges.txt"):
            (folder / name).unlink()
        settings(tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")(
            folder
        )

    return change


def described(folder: Path, vocabulary: list[str], **model: Any) -> None:
    """Replace a tokenizer's files by a ``tokenizer.json`` of tokens with spaces, without a normaliser."""
    special = [name for name in ("<s>", "<pad>", "</s>", "<unk>") if name in vocabulary]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    spaces = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    begin = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] if "<s>" in special else []
    template = {"single": [*begin, {"Sequence": {"id": "A", "type_id": 0}}, end], "pair": [end]}
    decoders = [
        *({"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}),
        *({"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    ]
    tokens = {name: {"id": name, "ids": [vocabulary.index(name)], "tokens": [name]} for name in special}
    values = {
        **{"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": spaces},
        "added_tokens": [{"id": vocabulary.index(name), "content": name, "special": True} | flags for name in special],
        "post_processor": {"type": "TemplateProcessing", **template, "special_tokens": tokens},
        **{"decoder": {"type": "Sequence", "decoders": decoders}, "model": model},
    }
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    for name in ("vocab.json", "merges.txt", "spiece.model"):
        (folder / name).unlink(missing_ok=True)
    settings(tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")(folder)


def bytes_as_tokens(folder: Path) -> None:
    """BPE with a token for each byte."""
    letters = sorted({letter for line in LINES for letter in line if letter != " "})
    names = ["<s>", "<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters]
    names += ["th", "in", "\u2581A"]
    merges, flags = [["t", "h"], ["i", "n"], ["\u2581", "A"]], {"byte_fallback": True, "fuse_unk": True}
    described(
        *(folder, names),
        **{"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, **flags},
        **{"end_of_word_suffix": None, "ignore_merges": False, "merges": merges},
        vocab={name: id_ for id_, name in enumerate(names)},
    )


def unigram(folder: Path) -> None:
    """PEGASUS's tokens as those of a unigram model."""
    model: Any = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    pieces = [(model.id_to_piece(id_), model.get_score(id_)) for id_ in range(model.get_piece_size())]
    rows = [(name, 0.0) for name in ("<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{n}>" for n in range(2, 103)))]
    rows += pieces[2:]
    names = [name for name, _ in rows]
    described(folder, names, type="Unigram", unk_id=names.index("<unk>"), vocab=rows, byte_fallback=False)


BEAM = {"num_beams": 4, "early_stopping": True}
DOC, GLUED = "A man <doc> in the snow<doc>.", "A man<doc>in the snow<doc>."  # in some classes a space before is a token
CUT = "cut at the longest output"
FOLDERS: dict[str, Odd] = {
    "opus-mt": Odd("opus-mt"),
    "opus-mt, a beam": Odd("opus-mt", BEAM, said=CUT),
    "opus-mt, low biases": Odd("opus-mt", tables=lowered),
    "opus-mt, low biases, a beam": Odd("opus-mt", BEAM, tables=lowered, said=CUT),
    "opus-mt, renormalised": Odd("opus-mt", {**BEAM, "renormalize_logits": True}, tables=lowered, said=CUT),
    "opus-mt, two targets": Odd("opus-mt-several-targets"),
    "opus-mt, two vocabularies": Odd("opus-mt-two-vocabularies"),
    "opus-mt, two vocabularies, a beam": Odd("opus-mt-two-vocabularies", BEAM, said=CUT),
    "opus-mt, two vocabularies, padding of one": Odd(
        "opus-mt-two-vocabularies", {"bad_words_ids": [[48]]}, said="1 of the sequences", differs=True
    ),
    "opus-mt, mixed scripts": Odd("opus-mt-mixed-scripts"),
    "opus-mt, no search": Odd(
        "opus-mt", None, {"num_beams": 3, "early_stopping": True, "max_length": 15, "bad_words_ids": [[79]]}, said=CUT
    ),
    "opus-mt, two searches": Odd("opus-mt", config={"num_beams": 7, "min_length": 20, "repetition_penalty": 3.0}),
    "opus-mt, lengths": Odd("opus-mt", {"min_length": 14, "max_length": 16}),
    "opus-mt, new tokens": Odd("opus-mt", {"max_new_tokens": 9, "max_length": 30}),
    "opus-mt, least new tokens": Odd("opus-mt", {"min_new_tokens": 18, "min_length": 2}),
    "opus-mt, a forced end": Odd("opus-mt", {"forced_eos_token_id": 0, "max_length": 10}),
    "opus-mt, another forced end": Odd(
        "opus-mt", {"forced_eos_token_id": 7, "max_length": 10}, said="forced_eos_token_id", differs=True
    ),
    "opus-mt, a forced beginning": Odd(
        "opus-mt", {"forced_bos_token_id": 7}, said="forced_bos_token_id: 7", differs=True
    ),
    "opus-mt, no longest": Odd("opus-mt", {"max_length": None}, said="There is no max_length", differs=True),
    "opus-mt, a list of one end": Odd("opus-mt", {"eos_token_id": [0]}),
    "opus-mt, two ends": Odd("opus-mt", {"eos_token_id": [0, 5]}, said="only the first ends", differs=True),
    "opus-mt, repetitions": Odd("opus-mt", {"repetition_penalty": 1.5}, said="repetition_penalty: 1.5", differs=True),
    "opus-mt, a key of the future": Odd("opus-mt", {"brand_new_rule": 3}, said="brand_new_rule: 3"),
    "opus-mt, bad words": Odd(
        "opus-mt", {"bad_words_ids": [[79], [4, 7], [9]]}, said="2 of the sequences", differs=True
    ),
    "opus-mt, no unknown tokens": Odd("opus-mt", {"bad_words_ids": [[79], [1]]}),
    "opus-mt, a start far away": Odd("opus-mt", {"decoder_start_token_id": 80}, said="80, but", refused=True),
    "opus-mt, another end": Odd("opus-mt", {"eos_token_id": 5}, said="eos_token_id: 5", differs=True),
    "opus-mt, an output of its own": Odd("opus-mt", tables=another(OUTPUT, SHARED), said="lm_head.weight"),
    "opus-mt, no output": Odd("opus-mt", config={"tie_word_embeddings": False}, said="lm_head", refused=True),
    "opus-mt, a target of its own": Odd("opus-mt", tables=another(TARGET, SHARED), said=TARGET),
    "opus-mt, no shared table": Odd("opus-mt", tables=lambda t, n: t.update({SOURCE: t.pop(SHARED)})),
    "opus-mt, an added token": Odd(
        *("opus-mt", {}, {"vocab_size": 81, "decoder_vocab_size": 81}),
        files=added(rows=81),
        said="Added tokens",
        text=DOC,
    ),
    "opus-mt, own positions": Odd("opus-mt", tables=own_positions),
    "opus-mt, another class": Odd("opus-mt", files=settings(tokenizer_class="T5Tokenizer"), said="'T5", refused=True),
    "bart": Odd("bart"),
    "bart, a beam": Odd("bart", BEAM, said=CUT),
    "bart, a shortest": Odd("bart", {"min_length": 8}),
    "bart, a longest": Odd("bart", {"max_length": 12}),
    "bart, lengths": Odd("bart", {"min_length": 11, "max_length": 14}),
    "bart, new tokens and a forced end": Odd("bart", {"max_new_tokens": 9, "forced_eos_token_id": 2}),
    "bart, least new tokens": Odd("bart", {"min_new_tokens": 12}),
    "bart, impossible lengths": Odd(
        "bart", {"min_length": 20, "max_length": 12}, said="is not longer than the shortest", differs=True
    ),
    "bart, no n-gram twice": Odd("bart", {**BEAM, "no_repeat_ngram_size": 2}, said=CUT),
    "bart, no token twice": Odd("bart", {"no_repeat_ngram_size": 1}, said="no_repeat_ngram_size: 1", differs=True),
    "bart, no search": Odd("bart", None, {"force_bos_token_to_be_generated": True, "max_length": 12, "min_length": 6}),
    "bart, no forced beginning": Odd("bart", {"forced_bos_token_id": None}),
    "bart, another forced beginning": Odd("bart", {"forced_bos_token_id": 9}),
    "bart, lists of one": Odd("bart", {"forced_bos_token_id": [9], "eos_token_id": [2], "forced_eos_token_id": [2]}),
    "bart, begins with bos": Odd("bart", {"bos_token_id": 0, "decoder_start_token_id": None}),
    "bart, no end": Odd("bart", {"eos_token_id": None}, said="eos_token_id is that of config.json", differs=True),
    "bart, no start": Odd("bart", {"decoder_start_token_id": None}, said="decoder_start_token_id is that"),
    "bart, an output of its own": Odd("bart", tables=another(OUTPUT, SHARED), said="lm_head.weight"),
    "bart, a target of its own": Odd("bart", tables=another(TARGET, SHARED), said=TARGET),
    "bart, short outputs first": Odd("bart", {**BEAM, "length_penalty": -1.0}, said="length_penalty -1", differs=True),
    "bart, long outputs first": Odd("bart", {**BEAM, "length_penalty": 2.0}, said=CUT),
    "bart, a long search": Odd("bart", {"num_beams": 4}, said="early_stopping", differs=True),
    "bart, a drawn beam": Odd("bart", {"num_beams": 4, "do_sample": True}, said="num_beams: 4", differs=True),
    "bart, suppressed tokens": Odd("bart", {"suppress_tokens": [1, 9]}, said="1 of the sequences", differs=True),
    "bart, renormalised": Odd("bart", {**BEAM, "renormalize_logits": True}, said="renormalize_logits", differs=True),
    "bart, another class": Odd("bart", files=settings(tokenizer_class="BertTokenizer"), said="'Bert", refused=True),
    "bart, no class": Odd("bart", files=settings(tokenizer_class=None)),
    "bart, tokenizer.json": Odd("bart", files=pipeline()),
    "bart, tokenizer.json with dropout": Odd(
        "bart", files=pipeline(dropout=0.1), said="`dropout` of the tokenizer is off", like="bart, tokenizer.json"
    ),
    "bart, nothing around": Odd(
        "bart",
        files=lambda folder: (pipeline()(folder), changed(folder / "tokenizer.json", post_processor=None)),
        said="puts no tokens around a source",
        bare=True,
        differs=True,
    ),
    "bart, bytes, no normaliser": Odd("bart", files=bytes_as_tokens, text="Caf\u00e9 \U0001f600 in the snow"),
    "bart, an added token": Odd(
        "bart", config={"vocab_size": 393}, files=added(rows=393), said="Added tokens", text=DOC
    ),
    "mbart-25": Odd("mbart-25"),
    "mbart-25, an added token": Odd(
        "mbart-25", config={"vocab_size": 157}, files=added(rows=157), said="Added tokens", text=DOC
    ),
    "mbart-50, an added token": Odd(
        "mbart-50", config={"vocab_size": 184}, files=added(rows=184), said="Added tokens", text=GLUED
    ),
    "mbart-25, a beam": Odd("mbart-25", BEAM, said=CUT),
    "mbart-25, a forced beginning": Odd(
        "mbart-25", {"forced_bos_token_id": 9}, said="forced_bos_token_id: 9 is left out", differs=True
    ),
    "mbart-50": Odd("mbart-50"),
    "mbart-50, lengths": Odd("mbart-50", {"min_length": 8, "max_length": 12}),
    "mbart-50, no language is forced": Odd(
        "mbart-50",
        {"forced_bos_token_id": None, "decoder_start_token_id": target_language("mbart-50")},
        said="two languages",
        differs=True,
    ),
    "mbart-50, no language": Odd("mbart-50", {"forced_bos_token_id": 9}, said="forced_bos_token_id: 9", differs=True),
    "m2m-100": Odd("m2m-100"),
    "m2m-100, a beam": Odd("m2m-100", BEAM, said=CUT),
    "m2m-100, new tokens": Odd("m2m-100", {"min_new_tokens": 6, "max_new_tokens": 9}),
    "m2m-100, no search": Odd(
        "m2m-100", None, {"forced_bos_token_id": target_language("m2m-100"), "max_length": 12, "bad_words_ids": [[1]]}
    ),
    "m2m-100, three tables": Odd(
        "m2m-100", tables=lambda t, n: (another(SOURCE, SHARED)(t, n), another(OUTPUT, SHARED)(t, n)), said=SOURCE
    ),
    "m2m-100, a bias": Odd(
        "m2m-100", tables=lambda t, n: t.update(final_logits_bias=n.table(1, 238)), said="no part", refused=True
    ),
    "m2m-100, an added token": Odd(
        "m2m-100", config={"vocab_size": 239}, files=added(rows=239), said="Added tokens", text=DOC
    ),
    "m2m-100, small": Odd("m2m-100", files=settings(tokenizer_class="SMALL100Tokenizer"), said="SMALL", refused=True),
    "nllb": Odd("nllb"),
    "nllb, lengths": Odd("nllb", {"max_new_tokens": 8, "forced_eos_token_id": 2, "min_length": 5}),
    "nllb, a beam": Odd("nllb", {**BEAM, "max_length": 14}, said=CUT),
    "nllb, an added token": Odd(
        "nllb", config={"vocab_size": 138}, files=added(rows=138), said="Added tokens", text=GLUED
    ),
    "nllb, untied": Odd(
        "nllb",
        config={"tie_word_embeddings": False},
        tables=lambda t, n: t.update({SOURCE: t[SHARED], TARGET: t[SHARED], OUTPUT: n.table(137, 8)}),
    ),
    "pegasus": Odd("pegasus"),
    "pegasus, a beam": Odd("pegasus", {**BEAM, "length_penalty": 0.8}, said=CUT),
    "pegasus, a forced end": Odd("pegasus", {"forced_eos_token_id": 1, "max_length": 9, "min_length": 4}),
    "pegasus, no search": Odd(
        "pegasus", None, {"num_beams": 2, "max_length": 12, "early_stopping": True, "bad_words_ids": [[0]]}, said=CUT
    ),
    "pegasus, no normaliser": Odd("pegasus", files=unigram, text="A\u00b2 man"),
    "pegasus, an added token": Odd(
        "pegasus", config={"vocab_size": 233}, files=added(rows=233), said="Added tokens", text=GLUED
    ),
    "pegasus, another class": Odd("pegasus", files=settings(tokenizer_class="BertTokenizer"), said="'B", refused=True),
}
