"""The scripts beside the ratios: real text, one line, peak memory, where a training step's time goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from common import Side, Worker
from sparsenmt.data.input_line import input_lines
from tests.assemble.test_model_directory import LINES, make_recipe, write_model

ROOT = Path(__file__).resolve().parent.parent


def test_translations_that_differ_are_scored_by_force(tmp_path: Path) -> None:
    import real_text
    from sparsenmt.assemble.bundle import open_model
    from sparsenmt.decoding.forced_decoding import score_pairs

    write_model(tmp_path / "model", make_recipe())
    bundle = open_model(tmp_path / "model")
    target = bundle.tokenizers.target
    ours = [target.pieces(target.encode(line)) for line in LINES]
    theirs = [*ours[:-1], [*ours[-1], "e"]]
    assert real_text.differences(str(tmp_path / "model"), LINES, ours, ours) == []
    (found,) = real_text.differences(str(tmp_path / "model"), LINES, ours, theirs)
    assert (found.line, found.ours, found.theirs) == (LINES[-1], LINES[-1], f"{LINES[-1]}e")
    for score, text in ((found.our_score, found.ours), (found.their_score, found.theirs)):
        (pair,) = score_pairs(bundle, input_lines([LINES[-1]]), [text])
        assert score == pytest.approx(pair.log_probability / len(pair.tokens), rel=1e-5)
    assert found.is_near_tie == (abs(found.our_score - found.their_score) < 1e-3)
    assert real_text.Difference("", "", "", -0.5, -0.5009).is_near_tie
    assert not real_text.Difference("", "", "", -0.5, -0.5011).is_near_tie


def test_the_bars() -> None:
    import one_line
    import peak_memory
    import real_text

    fast = {"real_text_fast": 1.8, "bleu_fast": -0.2}
    bars = {"real_text": 1.4, "identical": 0.99, "near_ties": 1.0, **fast, "real_text_shortlist": 1.5}
    assert bars == real_text.BARS
    assert one_line.BAR_SECONDS == 3.0
    assert {"decoding_fp32", "decoding_int8", "training_fp32", "training_bf16"} <= peak_memory.CASES.keys()


def test_the_peer_is_timed_in_each_of_its_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    import real_text

    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    ours, theirs = real_text.sides("real_text", {}, Path("folder"))
    assert [side.work["batch_tokens"] for side in ours] == list(real_text.BATCH_TOKENS)
    assert {side.work["our_dtype"] for side in ours} == {"fp32"}
    ways = {(side.environment.get("CT2_USE_MKL"), side.environment.get("CT2_PACKED_GEMM")) for side in theirs}
    assert ways == {("0", None), ("1", None), ("1", "0")}
    assert [side.work["side_by_side"] for side in theirs] == [1, 2] * len(ways) * len(ours)
    assert {side.work["peer_compute_type"] for side in theirs} == {"float32"}
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    for best, tried in ((torch.bfloat16, ["bf16", "int8"]), (torch.float32, ["int8"])):
        monkeypatch.setattr(real_text, "pick_dtype", lambda name, device, best=best: best)
        ours, theirs = real_text.sides("real_text_fast", {"batch_tokens": 64, "side_by_side": 1}, Path("folder"))
        assert [side.work["our_dtype"] for side in ours] == tried and len(theirs) == 1
        assert theirs[0].work["side_by_side"] == 1 and not theirs[0].environment
        assert all("batch_tokens" not in side.work for side in (*ours, *theirs))


def test_memory_over_a_long_time() -> None:
    from long_runs import Curve

    seconds = [float(n) for n in range(121)]
    grown = [100.0 if second < 110 else 104.0 for second in seconds]
    curve = Curve("train", seconds, grown, [each / 2 for each in grown])
    assert curve.growth(curve.resident) == curve.growth(curve.anonymous) == pytest.approx(1.04)
    assert curve.part(curve.seconds, 1) == [float(n) for n in range(10, 21)]


def test_the_loss_of_a_run_is_that_of_its_last_hundred_updates(tmp_path: Path) -> None:
    import bf16_loss

    entries = [{"kind": "train", "update": 50 * i, "loss": 10.0 - i} for i in range(1, 7)]
    entries.append({"kind": "validation", "update": 300, "loss": 0.0})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    assert bf16_loss.final_loss(tmp_path) == 4.5


def test_every_worker_is_there() -> None:
    import peak_memory
    import real_text

    sides = [real_text.OURS, real_text.CTRANSLATE2]
    for case in peak_memory.CASES.values():
        sides += [case.ours, case.peer]
    assert all((ROOT / "benchmarks" / side.script).is_file() for side in sides)


def test_fast_paths_are_of_this_revision() -> None:
    import fast_paths

    for name, path in fast_paths.PATHS.items():
        assert path.usual or fast_paths.missing(path) is None, name
        assert all(any(fast_paths.line_count(part)) for part in path.lines.split()), name
        assert path.works and set(path.works) <= fast_paths.WORKS.keys(), name
    gone = fast_paths.FastPath(("base",), without=fast_paths.answers(None, "decoding.beam:Beam.gone"))
    assert fast_paths.missing(gone) == "sparsenmt.decoding.beam:Beam.gone"


def test_the_peak_is_of_the_workers_process(tmp_path: Path) -> None:
    import peak_memory

    if not Path("/proc/self/status").exists():
        pytest.skip("Linux only")
    script = tmp_path / "large.py"
    script.write_bytes(
        b"from protocol import serve\n"
        b"held = [b'x' * 2**26, *range(10)]\n"
        b"held.clear()\n"
        b"serve(what='large', units=1, repeat=lambda: None)\n"
    )
    with Worker(Side(str(script)), {"threads": 1}) as worker:
        most = worker.peak()
    assert 64 < most < 1024
    assert 1 < peak_memory.of_imports(Side(str(script)), "json") < most


def test_operators_by_kind() -> None:
    from training_profile import KINDS, kind_of

    found = {
        "aten::addmm": "products",
        "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
        "aten::native_layer_norm_backward": "normalisation",
        "aten::_softmax": "softmax and loss",
        "aten::copy_": "copies and casts",
        "aten::add_": "element-wise",
        "aten::_fused_adam_": "optimizer",
        "aten::unknown": "other",
    }
    assert {name: kind_of(name) for name in found} == found
    assert set(found.values()) - {"other"} <= KINDS.keys()


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
@pytest.mark.thorough
def test_a_model_with_random_weights_for_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made small here: what matters is that it opens and translates."""
    import one_line
    from sparsenmt.recipe import choices

    monkeypatch.setitem(choices.PRESETS, "small", choices.PRESETS["tiny"])
    one_line.random_model(tmp_path / "model")
    assert one_line.seconds(tmp_path / "model", one_line.WORK | {"threads": 1}) > 0


def test_the_choice_of_kernels_is_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import native_choice
    from sparsenmt.native.kernels import kernels

    if kernels() is None:
        pytest.skip("no compiler")
    monkeypatch.setenv("SPARSENMT_NATIVE", "always")
    small = {"dimension": 32, "feed_forward": 32, "heads": 2, "vocabulary": 50, "target_length": 2, "sentences": 2}
    changes = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    assert native_choice.main(["native_short_sources", "--repeats", "1", *changes]) == 0
    last = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
    assert last["name"] == "native_choice" and list(last["ratios"]) == ["native_short_sources"] and last["bars"] == {}
    assert os.environ["SPARSENMT_NATIVE"] == "always"


def test_memory_with_adapters_and_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny model and two batches, in this process."""
    import numpy as np

    import adapter_memory

    if not Path("/proc/self/status").exists():
        pytest.skip("Linux only")
    ids = np.full((2, 5), 3)
    np.savez(tmp_path / "ids.npz", **{f"{side}_{i}": ids for side in ("source", "target") for i in range(2)})
    sizes = {"dimension": 32, "feed_forward": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    work = {**sizes, "max_positions": 8, "vocabulary": 50, "steps": 2, "batches": str(tmp_path / "ids.npz")}

    def run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        assert "MALLOC_MMAP_THRESHOLD_" in env and command[1] == adapter_memory.__file__
        return subprocess.CompletedProcess(
            command, 0, json.dumps(adapter_memory.measure(json.loads(command[3]), command[2]))
        )

    monkeypatch.setattr(adapter_memory.subprocess, "run", run)
    ratios = adapter_memory.compare(work)
    attentions = 3 * 2 * 2 * adapter_memory.RANK * 32  # queries and values, up and down
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["full", "adapters"] and f" {attentions:,} " in rows[1]
    assert ratios["parameters"] == pytest.approx(ratios["gradient_and_optimizer_bytes"], rel=0.01)
    assert ratios["peak_resident"] > 0
