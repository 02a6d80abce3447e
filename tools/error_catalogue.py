"""The catalogue of all error messages and warnings, read off the source of the package.

An error is a call of `UserError`, of a class derived from it, or of the recipe's `Complaint`; a warning is a text that
begins with ``warning`` and a colon. Texts are followed through variables, constants, parameters and helper functions;
what is known only at run time becomes a placeholder in angle brackets.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "sparsenmt"

ERROR, WARNING, COMPLAINT, INTERRUPT = "error", "warning", "Complaint", "Interrupted"  # the kinds of entries
_WARNING = "warning" + ": "  # in two parts, so that the catalogue does not find it here
_DEPTH = 4  # how many parameters and helper functions a text is followed through
_FEW = 8  # a part of an f-string with more possible texts becomes a placeholder
_MOST = 20  # possible texts of one expression

# Placeholders for names in the source whose own words would not be understood.
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
_FUNCTIONS = {
    "str",
    "repr",
    "fspath",
    "printable",
    "shortened",
    "sorted",
    "list",
    "set",
}  # show their argument
_METHODS = {"strip", "rstrip", "replace", "keys", "removeprefix", "lower", "split"}  # show their object


@dataclass(frozen=True)
class Entry:
    """A place in the source where an error or a warning is made.

    `messages`, `where` and `hints` hold the possible texts; they are empty where the source does not tell.
    """

    file: str
    function: str
    line: int
    kind: str
    messages: tuple[str, ...]
    where: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    has_where: bool = False
    has_hint: bool = False


@dataclass
class Module:
    """A parsed file."""

    file: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    imported: dict[str, str] = field(default_factory=dict)
    """Names of the package's other files -> these files."""

    @classmethod
    def parse(cls, file: str, source: bytes) -> Module:
        module = cls(file, ast.parse(source, file))
        for node in ast.walk(module.tree):
            for inner in ast.iter_child_nodes(node):
                module.parents[inner] = node
            if isinstance(node, ast.Import | ast.ImportFrom):
                module.imports.update(alias.asname or alias.name for alias in node.names)
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                path = f"{'/'.join(node.module.split('.')[1:])}.py"
                module.imported.update({alias.name: path for alias in node.names if alias.asname is None})
        for statement in module.tree.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                module.constants[statement.targets[0].id] = statement.value
        return module

    def functions(self, node: ast.AST) -> list[ast.FunctionDef]:
        """The functions around a node, innermost first."""
        found = []
        current: ast.AST | None = node
        while current is not None:
            if isinstance(current, ast.FunctionDef):
                found.append(current)
            current = self.parents.get(current)
        return found

    def name_of(self, node: ast.AST) -> str:
        """The dotted name of the function or class around a node."""
        names: list[str] = []
        current: ast.AST | None = node
        while current is not None:
            if isinstance(current, ast.FunctionDef | ast.ClassDef):
                names.append(current.name)
            current = self.parents.get(current)
        return ".".join(reversed(names))


class Catalogue:
    """All errors and warnings of a set of files.

    Args:
        modules: the parsed files.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = list(modules)
        self.files = {module.file: module for module in self.modules}
        self._known: dict[tuple[ast.expr, int], list[str]] = {}  # of `_texts`: node and depth
        self._calls: dict[str, list[tuple[Module, ast.Call]]] = {}
        self._functions: dict[str, list[tuple[Module, ast.FunctionDef]]] = {}
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call):
                    self._calls.setdefault(_callee(node), []).append((module, node))
                elif isinstance(node, ast.FunctionDef):
                    self._functions.setdefault(node.name, []).append((module, node))
        self.errors = self._error_classes()

    @classmethod
    def of_package(cls, package: Path = PACKAGE) -> Catalogue:
        """The catalogue of all modules below a folder."""
        files = sorted(package.rglob("*.py"))
        return cls(Module.parse(file.relative_to(package).as_posix(), file.read_bytes()) for file in files)

    def _error_classes(self) -> set[str]:
        """`UserError` and everything derived from it."""
        names, before = {"UserError"}, set[str]()
        while names != before:
            before = set(names)
            for module in self.modules:
                for node in ast.walk(module.tree):
                    if isinstance(node, ast.ClassDef) and any(last_name(base) in names for base in node.bases):
                        names.add(node.name)
        return names

    def entries(self) -> list[Entry]:
        """Everything found, by file and line."""
        return self._entries

    @functools.cached_property
    def _entries(self) -> list[Entry]:
        return list(self._find_entries())

    def _find_entries(self) -> Iterator[Entry]:
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and _callee(node) in {*self.errors, COMPLAINT}:
                    yield self._error(module, node)
                elif isinstance(node, ast.Call) and _callee(node) == INTERRUPT and len(node.args) > 1:
                    texts = [text for text in self.texts(module, node.args[1]) if text]
                    yield Entry(module.file, module.name_of(node), node.lineno, INTERRUPT, tuple(texts))
                elif _is_warning(node) and not isinstance(module.parents.get(node), ast.JoinedStr):
                    assert isinstance(node, ast.expr)
                    texts = self.texts(module, node)
                    yield Entry(module.file, module.name_of(node), node.lineno, WARNING, tuple(texts))

    def _error(self, module: Module, call: ast.Call) -> Entry:
        kind = COMPLAINT if _callee(call) == COMPLAINT else ERROR
        given = dict(zip(("message", "hint") if kind == COMPLAINT else ("message",), call.args, strict=False))
        given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
        where, hint = given.get("where"), given.get("hint")
        return Entry(
            module.file,
            module.name_of(call),
            call.lineno,
            kind,
            tuple(self.texts(module, given["message"])) if "message" in given else (),
            tuple(self.texts(module, where, strict=False)) if where is not None else (),
            tuple(self.texts(module, hint)) if hint is not None else (),
            has_where=where is not None or kind == COMPLAINT,
            has_hint=hint is not None,
        )

    def texts(self, module: Module, node: ast.expr, depth: int = _DEPTH, strict: bool = True) -> list[str]:
        """The possible texts of an expression; if unknown: none or, unless ``strict``, a placeholder."""
        found = list(dict.fromkeys(self._texts(module, node, depth)))
        if not found and not strict:
            return [f"<{words(node)}>"]
        return found[:_MOST]

    def _texts(self, module: Module, node: ast.expr, depth: int) -> list[str]:
        if depth < 0:
            return []
        if (node, depth) not in self._known:
            self._known[node, depth] = self._read(module, node, depth)
        return self._known[node, depth]

    def _read(self, module: Module, node: ast.expr, depth: int) -> list[str]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=values):
                parts = [self._part(module, value, depth) for value in values]
                return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), _MOST)]
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                sides = [self._texts(module, side, depth) for side in (left, right)]
                if not any(sides):
                    return []
                named = [side or [f"<{words(node)}>"] for side, node in zip(sides, (left, right), strict=True)]
                return ["".join(chosen) for chosen in itertools.product(*named)]
            case ast.IfExp(body=body, orelse=orelse):
                return [*self._texts(module, body, depth), *self._texts(module, orelse, depth)]
            case ast.BoolOp(values=values):
                each = [self._texts(module, value, depth) for value in values]
                return [text for texts in each for text in texts] if all(each) else []
            case ast.Call(func=ast.Name(id="printable"), args=[inner]):
                return self._texts(module, inner, depth)
            case ast.Call(func=ast.Attribute(attr="join"), args=[ast.GeneratorExp(elt=ast.JoinedStr() as inner)]):
                return [f"{text}, ..." for text in self._texts(module, inner, depth)]
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Name()) if name in module.constants:
                table = module.constants[name]
                values = table.values if isinstance(table, ast.Dict) else []
                return [text for value in values for text in self._texts(module, value, depth)]
            case ast.Name(id=name):
                return self._named(module, node, name, depth)
        return []

    def _part(self, module: Module, node: ast.expr, depth: int) -> list[str]:
        """The possible texts of one part of an f-string."""
        if not isinstance(node, ast.FormattedValue):
            return self._texts(module, node, depth)
        value = node.value
        number = _number(module.constants.get(value.id)) if isinstance(value, ast.Name) else None
        if number is not None:
            spec = node.format_spec.values[0] if isinstance(node.format_spec, ast.JoinedStr) else None
            return [format(number, str(spec.value) if isinstance(spec, ast.Constant) else "")]
        found = list(dict.fromkeys(self._texts(module, value, depth)))
        if not found or len(found) > _FEW or (not all(found) and isinstance(value, ast.Name)):
            name = f"<{'number' if _has_digits(node) else words(value)}>"
            return [f"'{name}'" if node.conversion == ord("r") else name]
        return _joined(found)

    def _named(self, module: Module, node: ast.expr, name: str, depth: int) -> list[str]:
        """The possible texts of a variable, a constant of the package or a parameter."""
        for function in module.functions(node):
            if assigned := _assigned(function).get(name):
                return [text for value in assigned for text in self._bound(module, value, depth - 1)]
            if self._parameter(module, function, name) is not None:
                each = [self._texts(*argument, depth - 1) for argument in self._arguments(function, name)]
                return [text for texts in each for text in texts] if all(each) else []
        while name not in module.constants:
            origin = self.files.get(module.imported.get(name, ""))
            if origin is None:
                return []
            module = origin
        return self._texts(module, module.constants[name], depth)

    def _bound(self, module: Module, value: ast.AST, depth: int) -> list[str]:
        """The possible texts that an assignment, or a loop over a function's results, binds to a name."""
        if isinstance(value, ast.expr):
            return self._texts(module, value, depth)
        assert isinstance(value, ast.For)
        if not isinstance(value.iter, ast.Call):
            return []
        found = []
        for other, function in self._functions.get(_callee(value.iter), []):
            for text in _results(function):
                found += self._texts(other, text, depth - 1)
        return found

    @staticmethod
    def _parameter(module: Module, node: ast.AST, name: str) -> ast.arg | None:
        for function in module.functions(node)[:1]:
            arguments = function.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if argument.arg == name:
                    return argument
        return None

    def _arguments(self, function: ast.FunctionDef, name: str) -> Iterator[tuple[Module, ast.expr]]:
        """The arguments that the callers of a function pass for a parameter."""
        names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
        position = names.index(name) if name in names else None
        if function.name == "command":  # called by click
            return
        is_method = "self" in {argument.arg for argument in function.args.args}
        for module, call in self._calls.get(function.name, []):
            if (
                isinstance(call.func, ast.Attribute)
                and not is_method
                and last_name(call.func.value) not in module.imports
            ):
                continue
            for keyword in call.keywords:
                if keyword.arg == name:
                    yield module, keyword.value
            if position is not None and position < len(call.args):
                yield module, call.args[position]


def _callee(call: ast.Call) -> str:
    return last_name(call.func)


def _is_warning(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str(text)) | ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text.startswith(_WARNING)
    return False


@functools.cache
def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.AST]]:
    """Variable -> the values assigned to it in a function, and the loops whose variable it is."""
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(function):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=value)
                | ast.NamedExpr(target=ast.Name(id=target), value=value)
                | ast.AugAssign(target=ast.Name(id=target), value=value)
            ):
                found.setdefault(target, []).append(value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for one, value in zip(targets, values, strict=True):
                    if isinstance(one, ast.Name):
                        found.setdefault(one.id, []).append(value)
            case ast.For(target=ast.Name(id=target)):
                found.setdefault(target, []).append(node)
    return found


def _results(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The expressions that a function yields, or appends to its result."""
    for node in ast.walk(function):
        match node:
            case ast.Yield(value=ast.expr() as value):
                yield value
            case ast.Call(func=ast.Attribute(attr="append"), args=[value]):
                yield value


def _number(node: ast.expr | None) -> int | None:
    """The value of a constant that is written as a whole number, or as arithmetic with such."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, right=right, op=operation):
            a, b = _number(left), _number(right)
            if a is not None and b is not None:
                match operation:
                    case ast.Pow():
                        return int(a**b)
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
    return None


def _has_digits(node: ast.FormattedValue) -> bool:
    """True if a part of an f-string is formatted as a number."""
    spec = ast.unparse(node.format_spec) if node.format_spec is not None else ""
    return any(sign in spec for sign in ",dg")


def _joined(found: list[str]) -> list[str]:
    """Short alternatives in one text: ``is/are``, ``item(s)``."""
    filled = [text for text in found if text]
    if len(found) > 1 and all(" " not in text for text in filled):
        return [f"({filled[0]})" if len(filled) < len(found) else "/".join(filled)]
    return found


def last_name(node: ast.expr) -> str:
    """The name, or the last part of a dotted one; '' for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def words(node: ast.expr) -> str:
    """A short readable name for the value of an expression: the text of a placeholder."""
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
