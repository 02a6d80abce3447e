"""What goes into the binary store comes out; damage is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsenmt.data.dataset import Dataset, DatasetWriter, id_type, write_features
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError

SOURCES = [[5, 6], [], [7, 8, 9], [4]]
TARGETS = [[65_000], [5], [], [6, 7, 8, 9]]


def write(directory: Path, *, target_size: int = 65_536) -> Dataset:
    with DatasetWriter(directory, name="corpus", source_size=100, target_size=target_size) as writer:
        writer.append(SOURCES[:3], TARGETS[:3], [0, 2, 3])
        writer.append([], [], [])
        writer.append(SOURCES[3:], TARGETS[3:], [9])
    return Dataset(directory)


def test_round_trip(tmp_path: Path) -> None:
    dataset = write(tmp_path)
    assert len(dataset) == 4
    assert dataset.name == "corpus"
    assert [dataset.source(i).tolist() for i in range(4)] == [[*ids, EOS] for ids in SOURCES]
    assert [dataset.target(i).tolist() for i in range(4)] == [[*ids, EOS] for ids in TARGETS]
    assert dataset.source_lengths.tolist() == [3, 1, 4, 2]
    assert dataset.target_lengths.tolist() == [2, 2, 1, 5]
    assert dataset.line_numbers.tolist() == [0, 2, 3, 9]
    with pytest.raises(ValueError, match="read-only"):
        dataset.source_ids[0] = 1


def test_ids_take_two_bytes_where_they_fit(tmp_path: Path) -> None:
    assert id_type(65_536).itemsize == 2
    assert id_type(65_537).itemsize == 4
    assert write(tmp_path / "a").target_ids.dtype == np.uint16
    wide = write(tmp_path / "b", target_size=65_537)
    assert wide.target_ids.dtype == np.uint32
    assert wide.target(0).tolist() == [65_000, EOS]
    with pytest.raises(ValueError, match="does not fit"):
        DatasetWriter(tmp_path / "c", name="", source_size=100, target_size=100).append([[70_000]], [[5]], [0])


def test_features(tmp_path: Path) -> None:
    write(tmp_path)
    values = [np.arange(len(ids) + 1) * 10 + number for number, ids in enumerate(SOURCES)]
    write_features(tmp_path, ["a", "b"], ({"a": row, "b": row + 100_000} for row in values))
    dataset = Dataset(tmp_path)
    assert dataset.features == ("a", "b")
    for number, row in enumerate(values):
        assert dataset.feature("a", number).tolist() == row.tolist()
        assert dataset.feature("b", number).tolist() == (row + 100_000).tolist()


def test_unequal_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 sources, 1 targets"):
        DatasetWriter(tmp_path, name="", source_size=9, target_size=9).append([[5], [5]], [[5]], [0, 1])


def test_an_empty_split_can_be_read(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path, name="none", source_size=9, target_size=9):
        pass
    dataset = Dataset(tmp_path)
    assert len(dataset) == 0
    assert dataset.source_lengths.tolist() == []


def test_interrupted_writing_leaves_nothing_readable(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), DatasetWriter(tmp_path, name="", source_size=9, target_size=9) as writer:
        writer.append([[5]], [[5]], [0])
        raise KeyboardInterrupt
    with pytest.raises(UserError, match="no such file"):
        Dataset(tmp_path)


@pytest.mark.parametrize("name", ["source.bin", "target.offsets.bin", "lines.bin"])
def test_damage_is_noticed(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1])
    with pytest.raises(UserError, match="damaged") as caught:
        Dataset(tmp_path)
    assert name in str(caught.value) and "prepare" in str(caught.value)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match="lack a file"):
        Dataset(tmp_path)
