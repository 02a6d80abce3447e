"""Training a classifier, and the search: what is chosen, and that what was stopped goes on to the same end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsenmt.depth_selector import hyperparameter_search
from sparsenmt.depth_selector.classifier import DepthClassifier
from sparsenmt.depth_selector.hyperparameter_search import HyperparameterSearch, best_of_sizes
from sparsenmt.depth_selector.labels import LabelledSentences
from sparsenmt.depth_selector.training import (
    Hyperparameters,
    SelectorTrainingSettings,
    Trial,
    batches,
    choose,
    hyperparameter_grid,
    train_classifier,
)
from sparsenmt.errors import UserError

SETTINGS = SelectorTrainingSettings(epochs=3, patience=2, batch_size=8, learning_rate=0.1)
CELLS = hyperparameter_grid([1], [2], [0, 1], [1], [0.5, 1])


def sentences(count: int, seed: int) -> LabelledSentences:
    """The best depth of three shows in the first piece: 4, 5 or 6."""
    generator = np.random.default_rng(seed)
    firsts = generator.integers(3, size=count)
    pieces = [[4 + int(first), *generator.integers(7, 12, size=generator.integers(1, 6)), 3] for first in firsts]
    return LabelledSentences(pieces, np.eye(3)[firsts])


def table() -> Tensor:
    return torch.randn(12, 8, generator=torch.Generator().manual_seed(2)) / 8**0.5


def test_choosing_takes_the_most_probable_or_the_deepest() -> None:
    logits = torch.tensor([[0.1, 2.0, 1.0], [-0.1, -3.0, -0.2], [0.0, -1.0, -1.0], [1.0, 1.0, 0.5]])
    assert choose(logits).tolist() == [1, 2, 0, 0], "none reaches 0.5: the last; exactly 0.5 does; equal: the fastest"


def test_a_batch_is_read_as_each_sentence_alone() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        classifier = DepthClassifier(torch.randn(12, 8), depths=3, layers=2, heads=2).double().eval()
    rows = sentences(9, 4).tokens
    together, alone = classifier.read(rows), torch.cat([classifier.read([row]) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


def test_gradients_reach_everything() -> None:
    classifier = DepthClassifier(torch.randn(12, 8), depths=3, layers=2, heads=2)
    classifier.read([[4, 5, 3], [6, 3]]).square().sum().backward()
    without = [name for name, each in classifier.named_parameters() if each.grad is None or not each.grad.any()]
    assert without in ([], ["encoder.layers.0.self.k.bias", "encoder.layers.1.self.k.bias"]), "softmax: a key bias"


def test_packing_changes_nothing() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        classifier = DepthClassifier(torch.randn(12, 8), depths=3, layers=2, heads=2).eval()
    rows = sentences(5, 4).tokens
    with torch.no_grad():
        before = classifier.read(rows)
        classifier.pack()
        torch.testing.assert_close(classifier.read(rows), before, rtol=1e-4, atol=1e-4)


def test_it_learns_what_can_be_learned() -> None:
    """Plain SGD from the model's embeddings finds the piece that decides."""
    settings = SelectorTrainingSettings(epochs=8, patience=8, batch_size=8, learning_rate=0.1)
    trial, _ = train_classifier(
        Hyperparameters(1, 2, 0, 1, 0.5), settings, sentences(200, 1), sentences(60, 2), table()
    )
    assert trial.chrf > 0.9, "the score of the right depth is 1, that of the others 0"


def test_batches_hold_every_sentence_once() -> None:
    lengths = np.array([3, 9, 4] * 111)
    found = list(batches(lengths, 8, np.random.default_rng(1)))
    assert sorted(number for batch in found for number in batch) == list(range(333))
    assert all(len(batch) <= 8 for batch in found)
    padding = sum(len(batch) * lengths[batch].max() for batch in found) / lengths.sum()
    assert padding < 1.1, "sentences of a batch are about equally long"


def test_grid() -> None:
    assert len(CELLS) == 4
    assert [cell.weight for cell in hyperparameter_grid([1], [2], [0], [0.5, 1, 2], [0.5, 1])] == [0.5, 0.5, 0.5, 1]
    assert len({cell.key for cell in CELLS}) == 4


@pytest.fixture
def parts() -> tuple[LabelledSentences, LabelledSentences, Tensor]:
    return sentences(40, 1), sentences(20, 2), table()


Stopping = Callable[[int], None]


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Stopping:
    """Let the training of the n-th cell from now on (from 0) end with an interrupt, once."""
    real = train_classifier

    def stop(number: int) -> None:
        calls = iter(range(1000))

        def stopped(*args: object, **kwargs: object) -> object:
            if next(calls) == number:
                monkeypatch.setattr(hyperparameter_search, "train_classifier", real)
                raise KeyboardInterrupt
            return real(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(hyperparameter_search, "train_classifier", stopped)

    return stop


def run(
    directory: Path, parts: tuple[LabelledSentences, LabelledSentences, Tensor]
) -> tuple[Trial, dict[str, Tensor], list[Trial]]:
    search = HyperparameterSearch(directory, {"task": 1}, CELLS)
    ((trial, weights),) = search.run(SETTINGS, *parts)
    return trial, weights, search.trials


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_goes_on(
    tmp_path: Path, parts: tuple[LabelledSentences, LabelledSentences, Tensor], stopping: Stopping, number: int
) -> None:
    trial, weights, trials = run(tmp_path / "whole", parts)
    stopping(number)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "part", parts)
    search = HyperparameterSearch(tmp_path / "part", {"task": 1}, CELLS)
    assert search.again is None and len(search.trials) == number
    again = run(tmp_path / "part", parts)
    assert again[0] == trial and again[2] == trials and same(again[1], weights)
    for folder in ("whole", "part"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == sorted(
            ["search.json", f"{trial.cell.key}.safetensors"]
        )


def test_a_cell_does_not_depend_on_the_others(
    tmp_path: Path, parts: tuple[LabelledSentences, LabelledSentences, Tensor]
) -> None:
    _, _, trials = run(tmp_path / "all", parts)
    assert train_classifier(CELLS[2], SETTINGS, *parts)[0] == trials[2]


def test_another_task_starts_again(tmp_path: Path, parts: tuple[LabelledSentences, LabelledSentences, Tensor]) -> None:
    trial, _, _ = run(tmp_path, parts)
    assert HyperparameterSearch(tmp_path, {"task": 1}, [*CELLS, Hyperparameters(2, 2, 0, 1, 1)]).again is None, (
        "more cells go on"
    )
    search = HyperparameterSearch(tmp_path, {"task": 2}, CELLS)
    assert search.again == "task is 2 instead of 1" and not search.trials
    assert list(tmp_path.iterdir()) == []
    run(tmp_path, parts)
    without = [cell for cell in CELLS if cell != trial.cell]
    search = HyperparameterSearch(tmp_path, {"task": 1}, without)
    assert search.again == "the best combination so far is not in the grid"


def test_damage_is_found(tmp_path: Path, parts: tuple[LabelledSentences, LabelledSentences, Tensor]) -> None:
    trial, _, _ = run(tmp_path, parts)
    path = tmp_path / f"{trial.cell.key}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert HyperparameterSearch(tmp_path, {"task": 1}, CELLS).again == "the record of completed trials is damaged"


def test_the_best_of_each_size_is_kept(
    tmp_path: Path, parts: tuple[LabelledSentences, LabelledSentences, Tensor], stopping: Stopping
) -> None:
    """Also after an interruption; a size whose weights are gone is trained again."""
    cells = hyperparameter_grid([1, 2], [2], [0, 1], [1], [0.5])

    def search() -> HyperparameterSearch:
        return HyperparameterSearch(tmp_path, {"task": 1}, cells)

    stopping(3)
    with pytest.raises(KeyboardInterrupt):
        search().run(SETTINGS, *parts)
    assert len(search().trials) == 3
    found = search().run(SETTINGS, *parts)
    assert len(search().trials) == 4
    assert sorted(trial.cell.size for trial, _ in found) == [(1, 2), (2, 2)] and found[0][0].loss < found[1][0].loss
    for trial, weights in found:
        assert trial.loss == min(each.loss for each in search().trials if each.cell.size == trial.cell.size)
        assert same(train_classifier(trial.cell, SETTINGS, *parts)[1], weights)
    (tmp_path / f"{found[1][0].cell.key}.safetensors").unlink()  # as in a search of an older version
    again = search()
    assert again.again is None and {trial.cell.size for trial in again.trials} == {found[0][0].cell.size}
    assert [trial for trial, _ in again.run(SETTINGS, *parts)] == [trial for trial, _ in found]


def test_fine_tuning_begins_with_the_weights_and_never_leaves_worse_ones(
    parts: tuple[LabelledSentences, LabelledSentences, Tensor],
) -> None:
    first, weights = train_classifier(CELLS[0], SETTINGS, *parts)
    other, validation = sentences(40, 7), parts[1]
    tuned, better = train_classifier(CELLS[0], SETTINGS, other, validation, parts[2], start=weights)
    assert tuned.epoch > 0 and tuned.loss < first.loss and not same(better, weights)
    wrong = LabelledSentences(other.tokens, np.roll(other.scores, 1, axis=1))
    kept, unchanged = train_classifier(CELLS[0], SETTINGS, wrong, validation, parts[2], start=better)
    assert kept.epoch == 0 and same(unchanged, better)


def test_divergence_is_no_selector(tmp_path: Path, parts: tuple[LabelledSentences, LabelledSentences, Tensor]) -> None:
    with pytest.raises(UserError, match="has diverged for all hyperparameters"):
        HyperparameterSearch(tmp_path, {}, CELLS[:1]).run(
            SelectorTrainingSettings(epochs=2, learning_rate=1e30), *parts
        )


def test_the_least_loss_is_the_best() -> None:
    trials = [Trial(cell, 1, 0.0, loss, 0.0) for cell, loss in zip(CELLS, (2.0, 1.0, 1.0, float("inf")), strict=True)]
    assert best_of_sizes(trials)[0] is trials[1]
