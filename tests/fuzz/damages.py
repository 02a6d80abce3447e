"""Damage to the files of a run: hypothesis strategies."""

from __future__ import annotations

import dataclasses
import re

from hypothesis import strategies as st

from tests.fuzz.support import Files

WEIGHTS = "model/weights.safetensors"


@dataclasses.dataclass(frozen=True)
class Damage:
    """One change; ``number`` says where in the file, or which other file takes part."""

    name: str
    kind: str
    number: int

    def apply(self, files: Files) -> Files:
        """The files with the change; as they are, if it has become impossible."""
        content = files.get(self.name)
        if self.kind == "move":
            return _moved(files, self.name, self.number)
        if content is None:
            return files
        rest = {name: each for name, each in files.items() if name != self.name}
        match self.kind:
            case "remove":
                return rest
            case "directory":
                return {**rest, f"{self.name}/": None}
            case "rename":
                return {**rest, f"{self.name}{'~' if self.number % 2 else '.bak'}": content}
            case "replace" | "swap":
                others = [name for name in _alike(files, self.name) if files[name] != content]
                if not others:
                    return files
                other = others[self.number % len(others)]
                return {**files, self.name: files[other], **({other: content} if self.kind == "swap" else {})}
        return {**files, self.name: _edited(content, self.kind, self.number)}


def _edited(content: bytes, kind: str, number: int) -> bytes:
    here = number % max(len(content), 1)
    match kind:
        case "cut":
            return content[:here]
        case "empty":
            return b""
        case "flip":
            return (
                content[:here]
                + bytes(byte ^ 1 << number % 8 for byte in content[here : here + 1])
                + content[here + 1 :]
            )
        case "zero":
            return content[:here] + bytes(min(512, len(content) - here)) + content[here + 512 :]
        case "append":
            return content + (b"\n", b"\0", b"x", content[:100], bytes(4096))[number % 5]
        case "line":  # a line goes, in a file of text
            lines = content.split(b"\n")
            return b"\n".join(lines[: number % len(lines)] + lines[number % len(lines) + 1 :])
    raise ValueError(kind)


def _alike(files: Files, name: str) -> list[str]:
    """Files that the program reads in the same way.

    The weights of a sound checkpoint, put in the place of the model's, are no damage but another model.
    """
    end = re.sub(r"^.*(?=\.)", "", name.rpartition("/")[2])
    found = [each for each, content in files.items() if each.endswith(end) and content is not None and each != name]
    return [each for each in found if not (end == ".safetensors" and WEIGHTS in (each, name))]


def _moved(files: Files, name: str, number: int) -> Files:
    """A checkpoint's directory with another number, or another name."""
    folder = name.rpartition("/")[0]
    if not re.search(r"/update-\d{8}$", folder):
        return files
    stem = folder.rpartition("/")[0]
    names = [f"{stem}/update-{update:08d}" for update in (1, 5, 99)] + [
        f"{stem}/update-5",
        f"{stem}/.update-00000003.old",
    ]
    new = names[number % len(names)]
    return {
        f"{new}{each[len(folder) :]}" if each.startswith(f"{folder}/") else each: content
        for each, content in files.items()
    }


KINDS = ["cut", "cut", "empty", "flip", "flip", "flip", "zero", "append", "line", "remove", "directory", "rename"]
KINDS += ["replace", "replace", "swap", "move"]


def damages(names: list[str], most: int = 3) -> st.SearchStrategy[list[Damage]]:
    """A few changes to some of these files."""
    one = st.builds(Damage, st.sampled_from(names), st.sampled_from(KINDS), st.integers(0, 2**20))
    return st.lists(one, min_size=1, max_size=most)
