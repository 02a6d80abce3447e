"""The calls that a model makes of the methods that are plugged into it, as they come: arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch import nn

from sparsenmt.model.sockets import MemoryFilter
from sparsenmt.testing.bench import Bench, attention_steps
from sparsenmt.testing.cases import Plug


@dataclass(frozen=True)
class MethodCall:
    """A call of what a method built.

    Args:
        part: what was called: a module, or another object of a pattern or of fixed heads.
        function: the function of it that was called; None: the part itself.
    """

    part: Any
    arguments: tuple[Any, ...]
    result: Any
    function: str | None = None

    def again(self, *arguments: Any) -> Any:
        """Call it with other arguments."""
        return (self.part if self.function is None else getattr(self.part, self.function))(*arguments)


@dataclass
class _Listener:
    """Stands in the place of a pattern, or of fixed heads, which are no modules."""

    part: Any
    calls: list[MethodCall] = field(repr=False)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(None, self.part, arguments)

    def weights(self, *arguments: Any) -> Any:
        return self._call("weights", self.part.weights, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)

    def _call(self, name: str | None, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        result = function(*arguments)
        self.calls.append(MethodCall(self.part, arguments, result, name))
        return result


def parts_of(bench: Bench, plug: Plug) -> Iterator[tuple[Any, str, Any]]:
    """(owner, attribute, part) of everything that a plug's method built; modules may occur several times."""
    site, _, socket = plug.place.partition(".")
    if socket == "heads":
        for block in (bench.model.encoder if site == "encoder_self" else bench.model.decoder).layers:
            owner = getattr(block, "cross" if site == "cross" else "own")
            yield owner, "fixed", owner.fixed
    elif site == "recurrence":
        for block in bench.model.decoder.layers:
            yield block.recurrence, "cell", getattr(block.recurrence, "cell", None)
    elif site == "memory":
        yield from ((None, "", each) for each in bench.model.memory.modules() if isinstance(each, MemoryFilter))
    elif site != "depth":
        for name, step in attention_steps(bench.model):
            if name == site:
                attribute = "content" if plug.method.per_step and socket == "pattern" else socket
                yield step, attribute, getattr(step, attribute)


@contextmanager
def recorded(bench: Bench, plug: Plug) -> Iterator[list[MethodCall]]:
    """Record the calls of a plug's method in the context."""
    calls: list[MethodCall] = []

    def note(module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        calls.append(MethodCall(module, arguments, result))

    known: set[int] = set()
    with ExitStack() as stack:
        for owner, attribute, part in parts_of(bench, plug):
            if isinstance(part, nn.Module):
                if id(part) not in known:
                    stack.callback(part.register_forward_hook(note).remove)
                known.add(id(part))
            elif part is not None:
                stack.enter_context(mock.patch.object(owner, attribute, _Listener(part, calls)))
        yield calls


def calls_of(bench: Bench, plug: Plug) -> list[MethodCall]:
    """Run a case once while everything is materialised; returns the calls of a plug's method."""
    with recorded(bench, plug) as calls, bench.model.listen(lambda seen: None):
        bench.outputs()
    return calls
