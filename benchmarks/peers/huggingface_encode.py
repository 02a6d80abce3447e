"""Hugging Face's tokenizers: ids of lines, with and as a target, for ``benchmarks/tokenizer_parity.py``.

Reads a JSON list of cases from standard input (folder, class, languages, files of lines) and writes their ids.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import transformers  # noqa: E402

transformers.logging.set_verbosity_error()


def main() -> None:
    results = []
    for case in json.load(sys.stdin):
        sides = zip(("src", "tgt"), case["languages"], strict=True)
        languages = {f"{side}_lang": code for side, code in sides if code and case["class"] != "T5Tokenizer"}
        tokenizer = getattr(transformers, case["class"]).from_pretrained(case["directory"], **languages)
        found = {}
        for name in case["texts"]:
            lines = Path(name).read_bytes().decode().split("\n")
            source = [tokenizer(case["before"] + line)["input_ids"] for line in lines]
            target = [tokenizer(text_target=line)["input_ids"] for line in lines]
            decoded = [tokenizer.decode(ids, skip_special_tokens=True) for ids in source]
            found[name] = {"source": source, "target": target, "decoded": decoded}
        results.append([found[name] for name in case["texts"]])
        if tokenizer.is_fast:
            tokenizer.save_pretrained(case["saved"])
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
