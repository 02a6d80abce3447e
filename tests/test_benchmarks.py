"""The harness of the benchmarks: who runs when, what counts, and the line at the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from common import Case, Side, Worker, interleave, run, take_turns, verdict
from peers.environments import PEERS
from protocol import BOS, EOS, PAD, training_batches

ROOT = Path(__file__).resolve().parent.parent
WORK = {"threads": 1}

# Appends its name to a log at the start and at the end of its work; `seconds` says how long that takes.
WORKER = """
import sys, time
from protocol import serve, work_from_arguments

work = work_from_arguments()

def repeat():
    print("chatter of a library")
    with open(work["log"], "a") as log:
        log.write("start {name}\\n")
        log.flush()
        time.sleep({seconds})
        log.write("end {name}\\n")

serve(what="{name}", units={units}, repeat=repeat, warm_up=lambda: None)
"""


def side(folder: Path, name: str, *, seconds: float = 0.0, units: int = 100) -> Side:
    script = folder / f"{name}.py"
    script.write_bytes(WORKER.format(name=name, seconds=seconds, units=units).encode())
    return Side(str(script))


def test_the_sides_take_turns_and_the_fastest_repeat_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    work = WORK | {"log": str(log)}
    with Worker(side(tmp_path, "a"), work) as a, Worker(side(tmp_path, "b", seconds=0.02), work) as b:
        timings = interleave([a, b], 3, pause=0)
    expected = [word for name in "abbaab" for word in ("start", name, "end", name)]
    assert log.read_bytes().decode().split() == expected
    assert [timing.what for timing in timings] == ["a", "b"]
    assert all(len(timing.seconds) == 3 for timing in timings)
    assert timings[1].best == min(timings[1].seconds) >= 0.02
    assert timings[1].rate == pytest.approx(100 / timings[1].best)


def test_turns_in_one_process_begin_with_one_to_warm_up() -> None:
    calls: list[str] = []
    seconds = iter([9.0, 9.0, 1.0, 4.0, 3.0, 2.0])

    def turn(name: str) -> float:
        calls.append(name)
        return next(seconds)

    found = take_turns({"a": lambda: turn("a"), "b": lambda: turn("b")}, 2, units=6)
    assert calls == ["a", "b", "a", "b", "b", "a"]
    assert {name: timing.seconds for name, timing in found.items()} == {"a": (1.0, 2.0), "b": (4.0, 3.0)}
    assert (found["a"].best, found["a"].spread, found["b"].rate) == (1.0, 1.0, 2.0)


def test_a_worker_that_dies_is_named(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_bytes(b"raise ValueError('no such model')")
    with pytest.raises(SystemExit, match=r"broken\.py ended with exit code 1"):
        Worker(Side(str(script)), WORK)


def run_with(monkeypatch: pytest.MonkeyPatch, cases: list[Case], *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    monkeypatch.setattr("common.PAUSE_SECONDS", 0)
    return run("speed", "Two sides.", cases, repeats=2)


@pytest.mark.parametrize(("bar", "code"), [(0.01, 0), (100.0, 1)])
def test_the_last_line_is_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bar: float, code: int
) -> None:
    work = WORK | {"log": str(tmp_path / "log")}
    ours, peer = side(tmp_path, "ours", seconds=0.02), side(tmp_path, "peer", seconds=0.02)
    assert run_with(monkeypatch, [Case("slow_case", ours, peer, work, bar)]) == code
    output = capsys.readouterr().out
    last = json.loads(output.rstrip("\n").split("\n")[-1])
    assert 0.01 < last["ratios"].pop("slow_case") < 100.0
    assert last == {"name": "speed", "ratios": {}, "bars": {"slow_case": bar}, "ok": code == 0}
    assert "spread" in output and "fastest of 2" in output


def test_changed_work_has_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = WORK | {"log": str(tmp_path / "log")}
    cases = [Case("case", side(tmp_path, "ours"), side(tmp_path, "peer"), work, bar=100.0)]
    assert run_with(monkeypatch, cases, "case", "--set", "steps=2", "--repeats", "1") == 0
    assert json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])["bars"] == {}


def test_different_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = WORK | {"log": str(tmp_path / "log")}
    cases = [Case("case", side(tmp_path, "ours", units=90), side(tmp_path, "peer", units=100), work)]
    with pytest.raises(SystemExit, match=r"different work \(90 and 100 tokens\)"):
        run_with(monkeypatch, cases)


def test_the_peers_fastest_settings_take_turns_with_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = WORK | {"log": str(tmp_path / "log")}
    slow, *others = (side(tmp_path, name, seconds=seconds) for name, seconds in (("c", 0.2), ("b", 0.1), ("a", 0.0)))
    assert run_with(monkeypatch, [Case("case", side(tmp_path, "ours"), slow, work, other_settings=tuple(others))]) == 0
    tried, timed = capsys.readouterr().out.split("taking turns")
    assert all(f"tried: {name} " in tried for name in "abc")
    assert [line.split()[0] for line in timed.split("\n")[1:4]] == ["ours", "b", "a"]


def test_the_bars_of_decoding() -> None:
    import decode_vs_ctranslate2

    bars = {case.name: case.bar for case in decode_vs_ctranslate2.CASES}
    assert bars.pop("base_fast") == (3.5 if decode_vs_ctranslate2.has_tiles() else 2.5)
    others = {"small_fp32": 1.3, "base_400_fp32": 2.0, "base_2048_l0drop_fp32": 2.5}
    assert bars == {"base_fp32": 1.6, **others, "base_avx2_fp32": 1.2, "base_avx2_fast": 1.2}


def test_an_unknown_case_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_with(monkeypatch, [], "nonsense")


def test_a_case_without_bar_does_not_decide() -> None:
    result = verdict("speed", {"a": 1.23456, "b": 0.1}, {"a": 1.0})
    assert result == {"name": "speed", "ratios": {"a": 1.2346, "b": 0.1}, "bars": {"a": 1.0}, "ok": True}


def test_a_bar_is_the_least_or_the_most_that_a_ratio_may_be() -> None:
    ratios, bars = {"speed": 1.1, "memory": 1.02}, {"speed": 1.0, "memory": 1.05}
    assert verdict("both", ratios, bars, most=["memory"])["ok"]
    assert not verdict("both", ratios | {"memory": 1.06}, bars, most=["memory"])["ok"]
    assert not verdict("both", ratios | {"speed": 0.99}, bars, most=["memory"])["ok"]


def test_target_inputs_are_the_outputs_shifted(tmp_path: Path) -> None:
    path = tmp_path / "batches.npz"
    np.savez(path, source_0=np.array([[5, EOS]]), target_0=np.array([[7, 8, 9, EOS], [6, EOS, PAD, PAD]]))
    ((source, target_input, target_output),) = training_batches({"batches": str(path), "steps": 1})
    assert source.tolist() == [[5, EOS]]
    assert target_input.tolist() == [[BOS, 7, 8, 9], [BOS, 6, PAD, PAD]]
    assert target_output.tolist() == [[7, 8, 9, EOS], [6, EOS, PAD, PAD]]


def test_special_ids_are_those_of_the_package() -> None:
    from sparsenmt.data import vocabulary

    assert (PAD, BOS, EOS) == (vocabulary.PAD, vocabulary.BOS, vocabulary.EOS)


def test_peers_run_on_the_same_torch_and_numpy() -> None:
    constraints = set((ROOT / "constraints.txt").read_bytes().decode().split("\n"))
    for requirements in PEERS.values():
        for requirement in requirements:
            assert "==" in requirement
            if requirement.startswith(("torch==", "numpy==", "ctranslate2==")):
                assert requirement in constraints


def test_every_script_has_cases_whose_workers_exist() -> None:
    import decode_vs_ctranslate2
    import train_vs_transformers

    for script in (decode_vs_ctranslate2, train_vs_transformers):
        assert script.CASES
        for case in script.CASES:
            assert (ROOT / "benchmarks" / case.ours.script).is_file()
            assert (ROOT / "benchmarks" / case.peer.script).is_file()
            assert "threads" in case.work


TINY = {
    **{"dimension": 16, "feed_forward": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "vocabulary": 40},
    **{"threads": 1, "source_length": 29, "target_length": 5, "batch_sentences": 4, "batches": 3},
}


def test_decoding_with_dropped_positions_reads_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every case in a tiny size: what is counted is right, whatever the timings are."""
    import torch

    import l0drop_decode

    monkeypatch.setattr(l0drop_decode, "PAUSE_SECONDS", 0)
    threads = torch.get_num_threads()
    try:
        changes = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]
        assert l0drop_decode.main(["--repeats", "1", "--without-peer", *changes]) == 0
    finally:
        torch.set_num_threads(threads)
    output = capsys.readouterr().out
    last = json.loads(output.rstrip("\n").split("\n")[-1])
    names = [f"{kind}_{case}" for case in l0drop_decode.CASES for kind in ("realised", "after_encoder", "keys_read")]
    assert last["name"] == "l0drop_decode" and list(last["ratios"]) == names
    assert last["bars"] == {} and last["ok"] is True, "a changed work has no bars"
    assert "CTranslate2 not measured" in output and "published: 1.65" in output
    for case, work in l0drop_decode.CASES.items():
        bench = l0drop_decode.Bench(work | TINY)
        dropped = l0drop_decode.Variant("dropped", torch.nn.ModuleList([l0drop_decode.Coins()]))
        dense = l0drop_decode.Variant("dense", torch.nn.ModuleList())
        kept = bench.kept.sum(1)
        read = bench.keys_read(bench.run(dropped))
        assert float(kept.double().mean()) < read <= int(kept.max()) + 1
        assert read / (float(kept.double().mean()) + 1) == pytest.approx(last["ratios"][f"keys_read_{case}"], abs=1e-4)
        assert bench.keys_read(bench.run(dense)) == 30


def test_the_bars_of_decoding_with_dropped_positions() -> None:
    from l0drop_decode import CASES, KEYS_READ, REALISED_BAR

    assert (REALISED_BAR, KEYS_READ) == (0.8, 1.1)
    wanted = {"2048": (2048, 120, 10, 0.715, 1.5), "400": (400, 60, 10, 0.476, 1.0), "char": (150, 150, 32, 0.461, 1.0)}
    keys = ("source_length", "target_length", "batch_sentences", "dropped", "after_encoder_bar")
    found = {name: tuple(work[key] for key in keys) for name, work in CASES.items()}
    assert found == {name: (length - 1, *rest) for name, (length, *rest) in wanted.items()}, "</s> is added"


def test_window_scaling_times_both_sides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a tiny size, with the bars of the full one where nothing was changed."""
    import torch

    import window_scaling

    assert {name: work["bar"] for name, work in window_scaling.CASES.items()} == {"window64_2048": 6.0, "growth": 1.2}
    assert window_scaling.CASES["window64_2048"]["window"] == 64 and window_scaling.SIZES["heads"] == 8
    threads = torch.get_num_threads()
    try:
        tiny = ["--set", "heads=2", "--set", "head_size=4", "--set", "window=8", "--set", "threads=1", "--repeats", "2"]
        assert window_scaling.main([*tiny, "--set", "lengths=[64,128]", "--set", "full=[128]"]) == 0
        first = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
        assert window_scaling.main([*tiny, "--set", "lengths=[64,128]", "--set", "full=[]"]) == 0
        second = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
    finally:
        torch.set_num_threads(threads)
    for last in (first, second):
        assert last["name"] == "window_scaling" and list(last["ratios"]) == ["window64_2048", "growth"]
        assert last["bars"] == {} and last["ok"] is True
    work = {"lengths": [10, 80], "full": []}
    assert window_scaling.ratio_of({("window", 10): 1.0, ("window", 80): 10.0}, work) == pytest.approx(1.25)
    work = {"lengths": [10], "full": [10]}
    assert window_scaling.ratio_of({("window", 10): 2.0, ("full", 10): 9.0}, work) == pytest.approx(4.5)


def test_gathered_and_masked_global_attention_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    import global_attention
    from sparsenmt.sparsity import registry

    bars = {name: work["bar"] for name, work in global_attention.CASES.items()}
    assert list(bars.values()) == [1.3, 5.0, 1.5, 6.0, 2.0, 8.0] and "longformer_4096" in bars
    tiny = ["--set", "heads=2", "--set", "head_size=4", "--set", "length=512", "--set", "threads=1", "--repeats", "1"]
    threads = torch.get_num_threads()
    try:
        with registry.scope():
            assert global_attention.main([*tiny, "entmax_1024", "global_4096"]) == 0
            work = global_attention.CASES["entmax_1024"] | {"length": 512}
            found = [
                attend(*(global_attention.Work(attend, work, 512).inputs))
                for attend in global_attention.sides(work).values()
            ]
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)
    last = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
    assert list(last["ratios"]) == ["entmax_1024", "global_4096"] and last["bars"] == {} and last["ok"] is True


@pytest.mark.thorough
def test_all_depths_are_timed_beside_the_plain_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a tiny size, whatever the timings are; the bars are those of the full one, and are not to be exceeded."""
    import tied_multi

    bars = {name: bar for case in tied_multi.CASES.values() for name, bar in case.bars.items()}
    assert bars == {"time_exact": 7.0, "memory_exact": 1.4, "time_sampled": 1.6}
    shape = {"encoder_layers": 6, "decoder_layers": 6, "dimension": 512, "feed_forward": 2048, "vocabulary": 8000}
    assert shape.items() <= tied_multi.WORK.items()
    monkeypatch.setattr("common.PAUSE_SECONDS", 0)
    tiny = {"dimension": 16, "feed_forward": 16, "heads": 2, "vocabulary": 40, "threads": 1, "batch_tokens": 32}
    changes = [part for key, value in tiny.items() for part in ("--set", f"{key}={value}")]
    assert tied_multi.main(["--repeats", "1", *changes]) == 0
    last = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
    assert last["name"] == "tied_multi" and last["ratios"].keys() == bars.keys() and last["bars"] == {}
