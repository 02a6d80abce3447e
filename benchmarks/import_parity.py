"""Imported models against Transformers: all families and variants, and the round trip import, export, Transformers.

Makes small models with random weights in the environment of the peer `transformers`, imports each, and prints the
largest difference of a logit in float64 and fp32, how many greedy and beam outputs are equal (of searches that ended by
themselves), and the difference of the model that was exported again. A ratio is the largest of these differences over
its tolerance; its bar, 1, is the most that it may be. Ends with one JSON line; the exit code is 1 if a difference is
too large or an output differs.

    python benchmarks/import_parity.py [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from peers.environments import python_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sparsenmt.data.vocabulary import BOS, EOS, PAD
from sparsenmt.export.plain_transformer import plain_transformer
from sparsenmt.export.to_transformers import model_config, transformers_weights
from sparsenmt.recipe.schema import ModelSection
from sparsenmt.storage.files import write_json
from sparsenmt.storage.tensors import load_foreign_tensors, save_tensors
from tests.importers.parity import DOUBLE, SINGLE, Imported, our_ids

BEAM = 3
NOT_EXPORTED = ("t5", "mt5")
WORKER = Path(__file__).parent / "peers" / "transformers_models.py"


@dataclass(frozen=True)
class Found:
    """The differences of a variant."""

    double: float
    single: float
    equal: tuple[int, int]
    compared: tuple[int, int]

    @property
    def good(self) -> bool:
        return self.double < DOUBLE and self.single < SINGLE and self.equal == self.compared


def compare(imported: Imported) -> Found:
    """The imported model against the outputs of the original."""
    equal, compared = [], []
    for beam in (1, BEAM):
        ours, theirs = imported.outputs(beam), imported.their_outputs(beam)
        equal.append(sum(output == theirs[number] for number, output in ours.items()))
        compared.append(len(ours))
    differences = (imported.difference(torch.float64), imported.difference(torch.float32))
    return Found(*differences, (equal[0], equal[1]), (compared[0], compared[1]))


def export_again(imported: Imported, folder: Path) -> None:
    """Write the imported model for Transformers, with its inputs in the ids of this program."""
    section = ModelSection.model_validate(imported.found.recipe["model"])
    plain = plain_transformer(section, imported.model())
    folder.mkdir()
    save_tensors(folder / "model.safetensors", transformers_weights(plain), metadata={"format": "pt"})
    write_json(folder / "config.json", model_config(plain, section.dropout))
    given, source = imported.tensors("inputs"), imported.source()
    target = our_ids(given["target"], imported.target_ids, BOS)
    target[:, 0] = BOS
    tokens = source.tokens.masked_fill(~source.valid, PAD)
    inputs = {"source": tokens, "valid": source.valid, "target": target, "never": torch.tensor([PAD, BOS])}
    save_tensors(folder / "inputs.safetensors", inputs)


def difference_again(imported: Imported, folder: Path) -> float:
    """The largest difference of a logit of the exported model from the original's."""
    original = imported.tensors("outputs")["logits"][..., imported.target_ids]
    found = load_foreign_tensors(folder / "outputs.safetensors", hint="Run the worker.")["logits"]
    found = found[..., : original.shape[-1]]
    return float((found - original)[..., EOS:].abs().max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=Path, help="folder that the models are left in")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        python = str(python_of("transformers"))
        subprocess.run([python, str(WORKER), "make", str(folder / "models")], check=True)
        models = {path.name: Imported.of(path) for path in sorted((folder / "models").iterdir())}
        again = folder / "again"
        again.mkdir()
        plain = [name for name in models if name.partition("-")[0] not in NOT_EXPORTED]
        for name in plain:
            export_again(models[name], again / name)
        subprocess.run([python, str(WORKER), "run", *(str(again / name) for name in plain)], check=True)
        print("| variant | float64 | fp32 | greedy | beam | exported again, fp32 |\n|---|---|---|---|---|---|")
        good, ratios = True, {}
        for name, imported in models.items():
            found = compare(imported)
            back = difference_again(imported, again / name) if name in plain else 0.0
            good &= found.good and back < SINGLE
            ratios[name] = round(max(found.double / DOUBLE, found.single / SINGLE, back / SINGLE), 4)
            outputs = " | ".join(f"{e} of {c}" for e, c in zip(found.equal, found.compared, strict=True))
            shown = f"{back:.1e}" if name in plain else "-"
            print(f"| {name} | {found.double:.1e} | {found.single:.1e} | {outputs} | {shown} |", flush=True)
    print(json.dumps({"name": "import_parity", "ratios": ratios, "bars": dict.fromkeys(ratios, 1.0), "ok": good}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
