"""BART: byte-level BPE, of ``tokenizer.json``, or of ``vocab.json`` and ``merges.txt``."""

from __future__ import annotations

from dataclasses import asdict, replace

from sparsenmt.data.tokenizers.pipeline_tokenizer import byte_pair_description
from sparsenmt.importers.families.family import Family
from sparsenmt.importers.families.tokens import MASK, TokenizerFiles, Tokens
from sparsenmt.storage.files import without_mark


def _read(files: TokenizerFiles) -> Tokens:
    names = files.vocabulary(files.required("vocab.json"))
    merges = files.required("merges.txt")
    lines = without_mark(merges.read_bytes(), str(merges)).decode("utf-8", errors="replace").split("\n")
    rows = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    markers = frozenset(id_ for id_, name in enumerate(names) if name in ("<s>", MASK))
    tokens = Tokens(names, markers).with_added(files)
    description = byte_pair_description(
        {name: id_ for id_, name in enumerate(names)},
        [(row[0], row[-1]) for row in rows],
        [{**asdict(token), "special": False, "normalized": not token.special} for token in tokens.added],
        prefix_space=bool(files.settings.get("add_prefix_space")),
    )
    return replace(tokens, description=description)


FAMILY = Family(
    norm="post",
    positions="learned",
    tokenizers=("Bart", "Roberta"),
    read_tokens=_read,
    own_files=(),
    embedding_norm=True,
    begins=True,
    model_class="BartForConditionalGeneration",
    summarizes=True,
)
