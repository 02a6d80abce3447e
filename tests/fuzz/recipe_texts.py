"""Recipes with mistakes, as bytes, and overrides: hypothesis strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from pydantic import BaseModel

from sparsenmt.recipe.key_paths import fields_by_key, section_type, type_inside
from sparsenmt.recipe.schema import Recipe

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))

SMALL = """\
name: small
directory: model
model: {preset: tiny, dimension: 32, heads: 2, encoder_layers: 1, decoder_layers: 1}
data:
  directory: prepared
  train: [{name: demo, source: a.en, target: a.de}]
  dev: {source: d.en, target: d.de}
  tokenizer: {kind: char, vocabulary_size: 60}
  filters: {max_length: 40, max_ratio: 9}
training: {max_updates: 12, validation: {every: 6, metric: loss}, average_last: 2}
decoding: {beam_size: 2}
"""

ON_TOP = """\
base: small.yaml
name: on-top
model:
  dropout: {residual: 0.3}
  attention: {cross: {transform: {name: softmax}, heads: {count: 1}}}
data: {filters: {max_source_length: 7}}
"""

ENVIRONMENT = {"FUZZ_SET": "corpus", "FUZZ_EMPTY": "", "FUZZ_NESTED": "${FUZZ_SET}", "FUZZ_ODD": "a\nb\u2028\udcff"}

_TEXTS = [
    *(
        "",
        "~",
        "null",
        "true",
        "True",
        "yes",
        "no",
        "on",
        "0",
        "-1",
        "1",
        "007",
        "0x1f",
        "0o17",
        "0b11",
        "1_000",
        "1__0",
    ),
    *(
        ".inf",
        "-.inf",
        ".nan",
        "nan",
        "inf",
        "1e999",
        "-1e999",
        "1e-400",
        "1e3",
        "1.",
        ".5",
        "-0.0",
        "1e",
        "+1",
        "1:30",
    ),
    *("9" * 18, "9" * 19, "9" * 30, "9" * 5000, "-" + "9" * 25, "18446744073709551616", "1" + "0" * 400 + ".0"),
    *("${FUZZ_SET}", "${FUZZ_SET}/x", "${FUZZ_EMPTY}", "${FUZZ_UNSET}", "${FUZZ_UNSET:-x}", "${FUZZ_UNSET:-}"),
    *(
        "${FUZZ_NESTED}",
        "${FUZZ_ODD}",
        "${",
        "${}",
        "${a b}",
        "$FUZZ_SET",
        "${FUZZ_UNSET:-${FUZZ_SET}}",
        "~nobody",
        "~",
    ),
    *("2026-01-01", "12:30:45", "=", "<<", "[1, 2", "{a: 1", "[]", "{}", "[[[]]]", "{a: {a: {a: 1}}}", "{name: full}"),
    *("{name: softmax, k: 3}", "{name: nothing}", "[{name: full}]", "{? [a, b] : c}", "{1: 2, null: 3, [4]: 5}"),
    *(
        "!!str 5",
        "!!int five",
        "!!float .inf",
        "!!bool 1",
        "!!null x",
        "!!binary aGVsbG8=",
        "!!set {a, b}",
        "!x y",
        "!",
    ),
    *("!!timestamp 2026-01-01", "!!python/name:os.system", "!!python/object/apply:os.system [ls]", "!!omap [a: 1]"),
    *(
        "&a x",
        "*a",
        "&a [*a]",
        "&a {b: *a}",
        "&b *b",
        "&a &b x",
        "'x",
        '"x',
        '"\\ud800"',
        '"\\x00"',
        '"\\q"',
        '"\\u2028"',
    ),
    *(
        "'it''s'",
        '"a\\tb"',
        "|",
        ">-",
        "|9",
        "a: b",
        "a #b",
        "#",
        "- a",
        "? a",
        ": a",
        "---",
        "...",
        "%YAML 1.2",
        "@",
        "`",
    ),
    *(
        "\x07",
        "\x00",
        "\x1b[31m",
        "\x85",
        "\u2028",
        "\ufeff",
        "\U0001f600",
        "e\u0301",
        "ä" * 70,
        "x" * 3000,
        "a\tb",
        "\t",
    ),
    *(
        "../up",
        "/nowhere/x",
        ".",
        "..",
        "a/../b",
        "a//b",
        "x/" * 300,
        "dev",
        "small.yaml",
        "base",
        "bpe",
        "unigram",
        "word",
    ),
    *("char", "nfkc", "target", "none", "loss", "learned", "linear", "greedy", "cpu", "cuda", "big", "base.yaml"),
]
texts = st.one_of(st.sampled_from(_TEXTS), st.text(max_size=8))
_numbers = st.one_of(
    st.sampled_from([0, -1, 1, 2, 3, 7, 10**5, 2**31, 2**63 - 1, 2**63, 10**30, 0.0, -0.0, 0.5, 1e-300, 1e300]),
    st.floats(),
    st.integers(-5, 40),
)
_scalars = st.one_of(st.none(), st.booleans(), _numbers, st.sampled_from(_TEXTS), st.text(max_size=6))
values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_scalars.filter(lambda x: x == x), inner, max_size=3),
    max_leaves=6,
)


def _schema_keys(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """All keys that a recipe may have, as overrides write them."""
    for key, field in fields_by_key(section).items():
        here = f"{path}.{key}" if path else key
        yield here
        for suffix, step in (("", None), (".0", 0), (".l0", "*")):
            inner = (
                section_type(field.annotation) if step is None else section_type(type_inside(field.annotation, step))
            )
            if inner is not None:
                yield from _schema_keys(inner, here + suffix)


KEYS = list(_schema_keys(Recipe))
_ODD_KEYS = ["", ".", "a", "a.b.c", "model.", ".model", "data.train.1", "data.train.-1", "data.train.9" + "9" * 20]
_ODD_KEYS += [
    "base",
    "model.preset.x",
    "name.x",
    "losses.x.weight.from",
    "model.memory.0.name",
    "a\nb",
    "\u2028",
    "x" * 90,
]
_ODD_KEYS += [
    "data.train.0.0",
    "training.validation",
    "." * 60,
    "--dump-config",
    "-h",
    "--",
    "data.train.²",
    "0",
    "[]",
    "{",
]
keys = st.one_of(st.sampled_from(KEYS), st.sampled_from(_ODD_KEYS), st.text(max_size=5))
# A command line cannot hold NUL.
overrides = st.one_of(
    st.builds("{}={}".format, keys, texts), st.builds("{}={}".format, st.sampled_from(KEYS), _numbers), texts
).map(lambda text: text.replace("\0", "0"))


# --- trees -------------------------------------------------------------------------------------------------------


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """All values: the mapping or list that holds it, and its key or index."""
    steps = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else [])
    return [place for key, child in steps for place in ((tree, key), *_places(child))]


@st.composite
def _trees(draw: st.DrawFn, base: Any) -> Any:
    """A recipe as plain values, with a few mistakes."""
    tree = copy.deepcopy(base)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(tree)
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        match draw(
            st.sampled_from(["change", "change", "change", "known", "delete", "rename", "wrap", "share", "add"])
        ):
            case "change":
                holder[key] = draw(values)
            case "known":
                path = draw(st.sampled_from(KEYS)).split(".")
                _put(tree, path, draw(values))
            case "delete":
                del holder[key]
            case "rename" if isinstance(holder, dict):
                holder[draw(st.one_of(texts, st.sampled_from([k.rpartition(".")[2] for k in KEYS])))] = holder.pop(key)
            case "wrap":
                value = holder[key]
                holder[key] = draw(st.sampled_from([[value], {"name": value}, [value, value], str(value)]))
            case "share":  # becomes an anchor and an alias
                other, name = draw(st.sampled_from(places))
                if not any(part is other for part, _ in _places([holder[key]])) and name in _keys(other):
                    other[name] = holder[key]
            case _ if isinstance(holder, dict):
                holder[draw(texts)] = draw(values)
    return tree


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _put(tree: Any, path: list[str], value: Any) -> None:
    """Set a key, where that is possible."""
    for part in path[:-1]:
        if isinstance(tree, dict):
            tree = tree.setdefault(part, {})
        elif isinstance(tree, list) and tree:
            tree = tree[0]
        else:
            return
    if isinstance(tree, dict):
        tree[path[-1]] = value


# --- texts -------------------------------------------------------------------------------------------------------


@st.composite
def _edited(draw: st.DrawFn, text: str) -> str:
    """A text with a few lines changed."""
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 3))):
        here = draw(st.integers(0, len(lines) - 1))
        line = lines[here]
        match draw(
            st.sampled_from(["value", "value", "value", "delete", "double", "insert", "splice", "indent", "key"])
        ):
            case "value":
                lines[here] = f"{line.partition(':')[0]}: {draw(texts)}"
            case "delete":
                del lines[here]
                lines = lines or [""]
            case "double":
                lines.insert(here, line)
            case "insert":
                lines.insert(here, " " * draw(st.integers(0, 4)) + draw(texts))
            case "splice":
                at = draw(st.integers(0, len(line)))
                lines[here] = line[:at] + draw(texts) + line[at + draw(st.integers(0, 3)) :]
            case "indent":
                lines[here] = draw(st.sampled_from([" ", "  ", "\t", "\xa0", "- "])) + line
            case _:
                lines[here] = f"{draw(texts)}:{line.partition(':')[2]}"
    return "\n".join(lines)


_ENCODINGS: list[Callable[[str], bytes]] = [
    lambda text: text.encode("utf-8", "surrogatepass"),
    lambda text: text.encode("utf-8", "replace"),
    lambda text: b"\xef\xbb\xbf" + text.encode("utf-8", "replace"),
    lambda text: text.replace("\n", "\r\n").encode("utf-8", "replace"),
    lambda text: text.replace("\n", "\r").encode("utf-8", "replace"),
    lambda text: text.encode("utf-16", "replace"),
    lambda text: text.encode("latin-1", "replace"),
]


_splices = st.one_of(
    st.binary(max_size=6), st.text(max_size=6).map(str.encode), st.sampled_from([b"", b"{", b"\n", b": "])
)


@st.composite
def recipes(draw: st.DrawFn) -> bytes:
    """A recipe file."""
    base = draw(st.sampled_from([SMALL, SMALL, ON_TOP, *(path.read_bytes().decode() for path in SHIPPED)]))
    kind = draw(st.sampled_from(["tree", "tree", "text", "text", "bytes", "sound"]))
    if kind == "bytes":
        data = base.encode()
        here = draw(st.integers(0, len(data)))
        return data[:here] + draw(_splices) + data[here + draw(st.integers(0, 40)) :]
    if kind == "tree":
        text = yaml.safe_dump(
            draw(_trees(yaml.safe_load(base))),
            allow_unicode=draw(st.booleans()),
            default_flow_style=draw(st.sampled_from([True, False, None])),
            sort_keys=False,
        )
    else:
        text = draw(_edited(base)) if kind == "text" else base
    encode = draw(st.sampled_from([*_ENCODINGS[:1] * 8, *_ENCODINGS]))
    return encode(text)
