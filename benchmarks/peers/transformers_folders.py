"""Hugging Face Transformers: ids of lines and outputs of folders, for ``benchmarks/import_folders.py``.

Reads a JSON list of folders (path, class, languages, lines) from standard input, and writes what it found.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()


@torch.no_grad()
def outputs(folder: dict[str, Any]) -> dict[str, Any]:
    """The ids of each line, and the output of each, with its first token and without padding."""
    source, target = folder["languages"]
    marian = folder["class"] == "MarianTokenizer"
    given = {} if marian else {f"{side}_lang": code for side, code in (("src", source), ("tgt", target)) if code}
    tokenizer = getattr(transformers, folder["class"]).from_pretrained(folder["path"], **given)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder["path"], dtype=torch.float32).eval()
    before = f">>{target}<< " if marian and target else ""
    # Marian gives padding no share of the softmax. Without this, Transformers forbids it after the softmax.
    more = {"renormalize_logits": True} if marian else {}
    ids, found = [], []
    for line in folder["lines"]:
        batch = tokenizer(before + line, return_tensors="pt")
        ids.append(batch["input_ids"][0].tolist())
        torch.manual_seed(1)
        found.append(model.generate(**batch, **more)[0].tolist())
    return {"ids": ids, "outputs": found}


def main() -> None:
    torch.set_num_threads(1)
    results = {}
    for folder in json.load(sys.stdin):
        try:
            results[folder["name"]] = outputs(folder)
        except Exception as error:
            results[folder["name"]] = {"error": f"{type(error).__name__}: {error}"[:200]}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
