"""Checks of what methods from outside the package give: on the first batch, at no cost afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsenmt.assemble.model import build_model
from sparsenmt.engine.build import build
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.first_batch import _tensor_problem, check_first_batch
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.sockets import Gates, Keys, MemoryFilter, Recurrence, ScoreTerm, Span, Transform
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe import schema
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import register

SIZES = {"source_size": 20, "target_size": 20}
Hook = Callable[[Tensor, Keys], Tensor]


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with registry.scope():
        yield


def right(scores: Tensor, keys: Keys) -> Tensor:
    visible = keys.visible()
    return scores.masked_fill(~visible, -1e30).softmax(-1).masked_fill(~visible, 0.0)


def model_of(weights: Callable[[Tensor, Keys], Any], site: str = "encoder_self") -> Transformer:
    """A model with a transform from outside at a site."""

    class Odd(Transform):
        def forward(self, scores: Tensor, keys: Keys) -> Tensor:
            found: Tensor = weights(scores, keys)
            return found

    register("transform", "odd")(lambda options, *, site, heads: Odd())
    return small({"attention": {site: {"transform": {"name": "odd"}}}})


def small(section: dict[str, Any]) -> Transformer:
    sizes = {"dimension": 16, "feed_forward": 8, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    return build_model(schema.ModelSection.model_validate({**sizes, **section}), **SIZES, seed=1).eval()


def source(*lengths: int) -> Source:
    tokens = torch.arange(max(lengths)).expand(len(lengths), -1) % 12 + 4
    return Source(tokens, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], {})


def run(model: Transformer, *lengths: int, target: int = 4) -> Tensor:
    memory = model.encode(source(*lengths)).memory
    return model.decode(torch.full((len(lengths), target), 5), memory)[2]


def hidden_attributes(model: nn.Module) -> list[str]:
    """The functions that are attributes of modules themselves, and hooks: what would be called in every pass."""
    found = [name for module in model.modules() for name, value in vars(module).items() if callable(value)]
    found = [name for name in found if name in ("forward", "score_bias", "content", "losses", "groups")]
    return found + ["hook" for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]


def test_checks_are_gone_after_the_first_batch() -> None:
    calls = []

    def counted(scores: Tensor, keys: Keys) -> Tensor:
        calls.append(scores.shape)
        return right(scores, keys)

    model = model_of(counted)
    assert hidden_attributes(model) == []
    check_first_batch(model)
    assert hidden_attributes(model) == ["forward"] * 2  # in each layer
    run(model, 5, 3)
    assert hidden_attributes(model) == [] and len(calls) == 2
    run(model, 5, 3)
    assert len(calls) == 4


@pytest.mark.parametrize("make", [TorchEngine, build], ids=["unpacked", "packed"])
def test_every_engine_checks(make: Callable[[Transformer], Any]) -> None:
    engine = make(model_of(lambda scores, keys: scores.softmax(-1)))
    with pytest.raises(UserError, match=r"layer 1: the transform method 'odd' gives weight to keys that are hidden"):
        engine.encode(source(5, 3))


def test_a_batch_without_padding_is_tried_with_a_hidden_key() -> None:
    model = model_of(lambda scores, keys: scores.softmax(-1))
    assert run(model, 5, 5).isfinite().all()
    check_first_batch(model)
    with pytest.raises(UserError, match="gives weight to keys that are hidden"):
        run(model, 5, 5)


def test_the_trial_changes_no_random_state() -> None:
    def random(scores: Tensor, keys: Keys) -> Tensor:
        return right(scores + torch.rand_like(scores), keys)

    found = []
    for checked in (False, True):
        model = model_of(random)
        if checked:
            check_first_batch(model)
        torch.manual_seed(1)
        run(model, 5, 5)
        found.append(torch.rand(()))
    assert found[0] == found[1]


def test_a_copy_checks_its_own() -> None:
    model = model_of(right)
    check_first_batch(model)
    other = copy.deepcopy(model)
    run(other, 5, 3)
    assert hidden_attributes(other) == [] and len(hidden_attributes(model)) == 2


def test_the_future_is_seen_at_once() -> None:
    model = model_of(lambda scores, keys: scores.softmax(-1), "decoder_self")
    check_first_batch(model)
    with pytest.raises(UserError, match=r"model\.attention\.decoder_self\.transform, layer 1: .* that are hidden"):
        run(model, 5, 5)


def test_methods_of_the_package_are_not_checked() -> None:
    model = small({"attention": {"encoder_self": {"transform": {"name": "sparsemax"}}}, "memory": [{"name": "l0drop"}]})
    check_first_batch(model)
    assert hidden_attributes(model) == []


class Filter(MemoryFilter):
    def __init__(self, gates: Callable[[Memory], Any]) -> None:
        super().__init__()
        self.gates = gates

    def forward(self, memory: Memory) -> Gates:
        found: Gates = self.gates(memory)
        return found


def ones(memory: Memory) -> Tensor:
    return torch.ones_like(memory.states[..., 0])


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        (lambda memory: Gates(ones(memory), "hide"), "returns on_closed='hide' in place of 'zero' or 'mask'"),
        (lambda memory: Gates(ones(memory) > 0), r"returns torch.bool \(2, 5\) in place of a floating-point"),
        (lambda memory: Gates(ones(memory) - 1.5), r"gives gates outside of \[0, 1\], such as -0.5"),
        (lambda memory: Gates(ones(memory), evaluated=2 * ones(memory)), r"gives gates outside of \[0, 1\], such as 2"),
        (lambda memory: Gates(ones(memory) / 0), "returns numbers or gradients that are not finite"),
        (
            lambda memory: Gates(ones(memory), losses={"x": ones(memory)}),
            r"gives the loss 'x' as torch.float32 \(2, 5\) in",
        ),
        (lambda memory: Gates(ones(memory), losses={"x": 1.0}), "gives the loss 'x' as float in place of"),
        (lambda memory: Gates(ones(memory), losses=[ones(memory)]), "gives list in place of losses by name"),
        (lambda memory: Gates(None), "returns NoneType in place of a floating-point tensor"),
    ],
)
def test_gates(gates: Callable[[Memory], Any], message: str) -> None:
    register("memory", "odd")(lambda options, *, dimension: Filter(gates))
    model = small({"memory": [{"name": "odd"}]})
    check_first_batch(model)
    with pytest.raises(UserError, match=rf"model\.memory\.0: the memory method 'odd' {message}"):
        run(model, 5, 3)


def test_gates_of_padding_may_be_anything() -> None:
    register("memory", "odd")(
        lambda options, *, dimension: Filter(lambda memory: Gates(ones(memory) + 5.0 * ~memory.valid))
    )
    model = small({"memory": [{"name": "odd", "at": "between"}]})
    check_first_batch(model)
    assert run(model, 5, 3).isfinite().all() and hidden_attributes(model) == []


class Lengths(Span):
    reach = 4

    def __init__(self, loss: Any = None) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, distances: Tensor) -> Tensor:
        return (distances <= 4).float().expand(2, *distances.shape)

    def losses(self) -> Any:
        return {} if self.loss is None else {"length": self.loss}


class Slopes(ScoreTerm):
    def content(self, q: Tensor) -> Tensor:
        return q[..., :1]

    def forward(self, q: Tensor, distances: Tensor) -> Tensor:
        return q.sum(-1, keepdim=True) * distances


class Cell(Recurrence):
    projections = {"input": True}

    def forward(self, projected: Any, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return projected[0].double(), projected[0][:, -1]


@pytest.mark.parametrize(
    ("socket", "section", "made", "message"),
    [
        (
            "span",
            {"attention": {"encoder_self": {"span": {"name": "odd"}}}},
            lambda: Lengths(torch.ones(2)),
            "the loss",
        ),
        ("position", {"attention": {"encoder_self": {"position": {"name": "odd"}}}}, Slopes, "in place of"),
        ("recurrence", {"recurrence": {"name": "odd"}}, Cell, "returns torch.float64 .* in place of torch.float32"),
    ],
)
def test_other_sockets(socket: Any, section: dict[str, Any], made: Callable[[], Any], message: str) -> None:
    register(socket, "odd")(lambda options, **context: made())
    model = small(section)
    check_first_batch(model)
    with pytest.raises(UserError, match=rf"layer 1: the {socket} method 'odd' .*{message}"):
        model.parameter_losses()
        run(model, 5, 3)


class Left:
    heads = 1
    names = ("left",)

    def __init__(self, rows: int | None) -> None:
        self.rows = rows

    def __call__(self, values: Tensor, keys: Keys) -> Tensor:
        return values.mean(2, keepdim=True).expand(-1, -1, self.rows or keys.queries.shape[1], -1)

    def weights(self, keys: Keys) -> Tensor:
        shape = len(keys.valid), 1, keys.queries.shape[1], keys.valid.shape[1]
        return torch.full(shape, 1 / shape[3])


def test_fixed_heads_have_a_row_for_each_query() -> None:
    section = {"attention": {"encoder_self": {"heads": {"given": {"name": "odd"}}}}}
    for rows in (None, 3):
        register("heads", "odd")(lambda options, *, site, heads, rows=rows: Left(rows))
        model = small(section)
        if rows is None:
            check_first_batch(model)
            continue
        with pytest.raises(UserError, match=r"'odd' returns torch.float32 \(2, 1, 3, 8\) in place of a floating-point"):
            check_first_batch(model)


def test_results_are_on_the_device_of_what_is_given() -> None:
    like = torch.ones(2, 3, device="meta")
    problem = _tensor_problem(torch.ones(2, 3), (2, 3), like)
    assert problem == "returns a tensor on cpu, and the model is on meta"
