"""The model in a ``tokenizer.json`` of the `tokenizers` package: its tokens, and the model of some of them.

For unigram and byte-pair models, as `sentencepiece_model`; the merges of byte pairs are a list of their own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparsenmt.data.tokenizers.byte_pairs import tokens_on_the_way


@dataclass(frozen=True)
class PipelineDescription:
    """The tokens of a tokenizer's model.

    Args:
        values: the contents of the file.
        ids: of the tokens.
        scores: of the tokens of a unigram model, by id.
        ranks: of the merges of a byte-pair model, the first one first.
    """

    values: Mapping[str, Any]
    ids: Mapping[str, int]
    scores: tuple[float, ...] = ()
    ranks: Mapping[tuple[str, str], int] | None = None

    @classmethod
    def read(cls, content: bytes) -> PipelineDescription:
        """Read the bytes of a file that the package has read.

        Raises:
            ValueError: its model is neither unigram nor BPE, or its tokens bear marks of their place in a word.
        """
        values = json.loads(content)
        model = values["model"]
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, list):
            ids = {name: id_ for id_, (name, _) in enumerate(vocabulary)}
            return cls(values, ids, tuple(score for _, score in vocabulary))
        if "merges" not in model or not isinstance(vocabulary, dict):
            raise ValueError(f"it has a model of the kind {model.get('type')}, not Unigram or BPE")
        if any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix")):
            raise ValueError("its tokens bear marks of their place in a word")
        pairs = (tuple(pair.split(" ", 1)) if isinstance(pair, str) else tuple(pair) for pair in model["merges"])
        ranks: dict[tuple[str, str], int] = {}
        for rank, (left, right) in enumerate(pairs):
            ranks[left, right] = rank
        return cls(values, vocabulary, ranks=ranks)

    def required(self, ids: Iterable[int]) -> set[int]:
        """The tokens that a model of ``ids`` needs: their characters, and those that lead to the same tokens.

        Bytes of a model that falls back to them, and tokens that are looked for before the model, are always needed.
        """
        wanted, names = set(ids), {id_: name for name, id_ in self.ids.items()}
        added = {token["content"] for token in self.values.get("added_tokens", ())}
        if self.values["model"].get("byte_fallback"):
            added |= {f"<0x{byte:02X}>" for byte in range(256)}
        parts = set(added)
        for name in (names[id_] for id_ in wanted if id_ in names):
            parts |= set(name) if self.ranks is None else tokens_on_the_way(name, self._priority)
        wanted |= {self.ids[name] for name in parts if name in self.ids}
        wanted |= {token["id"] for token in self.values.get("added_tokens", ())}
        if self.scores:  # those of unknown characters are counted from the lowest
            wanted.add(min(range(len(self.scores)), key=self.scores.__getitem__))
        return wanted

    def _priority(self, left: str, right: str) -> float | None:
        rank = None if self.ranks is None else self.ranks.get((left, right))
        return None if rank is None else -float(rank)

    def without(self, dropped: Collection[int]) -> bytes:
        """The file of the model without these tokens, whose others have the numbers from 0 on in their order."""
        kept = [name for name, id_ in sorted(self.ids.items(), key=lambda each: each[1]) if id_ not in dropped]
        places = {name: id_ for id_, name in enumerate(kept)}
        model = dict(self.values["model"])
        if self.ranks is None:
            model["vocab"] = [[name, self.scores[self.ids[name]]] for name in kept]
            if (unknown := model.get("unk_id")) is not None:
                model["unk_id"] = places[self.values["model"]["vocab"][unknown][0]]
        else:
            model["vocab"] = places
            ordered = sorted(self.ranks, key=self.ranks.__getitem__)
            model["merges"] = [[*pair] for pair in ordered if {*pair, "".join(pair)} <= places.keys()]
        added = []
        for token in self.values.get("added_tokens", ()):
            id_ = places.setdefault(token["content"], len(places))
            added.append({**token, "id": id_})
        return json.dumps({**self.values, "model": model, "added_tokens": added}, ensure_ascii=False).encode()
