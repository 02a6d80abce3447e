"""Short readable names for what expressions of the source give: the placeholders in the catalogue of errors."""

from __future__ import annotations

import ast

# Words for what a name in the source holds.
_WORDS = {
    "strerror": "reason of the system",
    "error": "reason",
    "msg": "reason",
    "problem": "reason",
    "path": "file",
    "where": "place",
    "given": "value",
    "found": "names",
    "known": "names",
    "valid": "names",
    "x": "value",
    "match": "name",
    "rpartition": "sign",
    "said": "what the method says",
    "i": "index",
    "start": "line",
    "one": "key",
    "of": "owner",
    "describe": "meaning",
    "foreign": "file",
    "lines": "corpus and lines",
    "changed": "changes",
    "describe_change": "changes",
    "differences": "changes",
}
_FUNCTIONS = {"str", "repr", "fspath", "printable", "shortened", "sorted", "list", "set"}  # show what they are given
_METHODS = {"strip", "rstrip", "replace", "keys", "removeprefix", "lower", "split"}  # show what they are called on


def last_name(node: ast.expr) -> str:
    """The name, or the last part of a dotted one; '' for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def words(node: ast.expr) -> str:
    """A short readable name for what an expression gives."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _WORDS.get(name, name.strip("_").replace("_", " ").lower())
        case ast.Call(func=ast.Name(id="len")) | ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv()):
            return "number"
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner]):
            return words(inner)
        case ast.BinOp(op=ast.Div()):
            return "file"
        case ast.Call(func=ast.Name(id="show")):
            return "value"
        case ast.Call(func=ast.Name(id="dotted")):
            return "key"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[inner, *_]) if name in _FUNCTIONS:
            return words(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _METHODS:
            return words(inner)
        case ast.Call(func=function):
            return words(function)
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return _WORDS.get(key, key.replace("_", " "))
        case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.FormattedValue(value=inner):
            return words(inner)
        case ast.IfExp(body=inner) | ast.BoolOp(values=[inner, *_]):
            return words(inner)
        case ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner):
            return words(inner)
        case ast.JoinedStr(values=values):
            return next((words(value) for value in values if isinstance(value, ast.FormattedValue)), "text")
    return "value"
