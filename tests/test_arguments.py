"""Requests by their fields, strings as paths, and the names of arguments in messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparsenmt.arguments import arguments_in_errors, check_names, from_fields, strings_to_paths
from sparsenmt.errors import UserError


@dataclass(frozen=True)
class Request:
    model: Path
    others: Sequence[Path] = ()
    name: str = "x"
    output: Path | None = None

    def __post_init__(self) -> None:
        strings_to_paths(self)


@from_fields(Request, Request)
def work(request: Request, factor: int = 1) -> tuple[Request, int]:
    """Do it."""
    return request, factor


def test_a_function_takes_a_request_or_its_fields() -> None:
    request = Request(Path("a"), (Path("b"),), output=Path("c"))
    assert work(request) == (request, 1) and work(request, 2) == work(request, factor=2) == (request, 2)
    assert work("a", ["b"], output="c") == (request, 1)  # type: ignore[arg-type]
    assert work(model=Path("a"), others=(Path("b"),), output=Path("c"), factor=3) == (request, 3)  # type: ignore[call-overload]
    assert work(request=request) == (request, 1)  # type: ignore[call-overload]
    assert work.__doc__ == "Do it." and work.__name__ == "work"
    with pytest.raises(TypeError, match="unexpected keyword argument 'modell'"):
        work(modell="a")  # type: ignore[call-overload]


def test_only_paths_are_converted() -> None:
    request = Request("a", ["b", Path("c")], name="d")  # type: ignore[arg-type]
    assert (request.model, request.others, request.name) == (Path("a"), (Path("b"), Path("c")), "d")


def test_a_misspelled_name() -> None:
    check_names(["beam_size"], ["beam_size", "alpha"])
    with pytest.raises(TypeError, match=r"^unknown keyword argument 'beam': did you mean 'beam_size'\?$"):
        check_names(["beam"], ["beam_size", "alpha"])
    with pytest.raises(TypeError, match=r"^unknown keyword argument 'zzz': there are alpha, beam_size$"):
        check_names(["zzz"], ["beam_size", "alpha"])


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("--beam-size", "beam_size"),
        ("--disable-heads cross:9", "disabled_heads cross:9"),
        ("--reference", "references"),
        ("`sparsenmt decode --help` or --alpha.", "`sparsenmt decode --help` or alpha."),
        ("a--b, runs/x--y", "a--b, runs/x--y"),
    ],
)
def test_errors_name_arguments(option: str, argument: str) -> None:
    with pytest.raises(UserError) as caught, arguments_in_errors():
        raise UserError("is wrong", where=option, hint=option)
    assert (caught.value.where, caught.value.hint) == (argument, argument)
    assert str(caught.value) == f"{argument}: is wrong\n  {argument}" and caught.value.args == (str(caught.value),)
