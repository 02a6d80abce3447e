"""The file beside a model that keeps what was measured on a text, whatever the model's task.

A model directory holds a sealed file for each text below ``evaluation/``. It is valid as long as the model, the text
and the decoding options are those that it was made with.
"""

from __future__ import annotations

import errno
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from sparsenmt.analysis.density import DensityResult
from sparsenmt.assemble.bundle import Bundle, check_identity
from sparsenmt.assemble.model_card import RESULTS, write_model_card
from sparsenmt.assemble.model_directory import ModelIdentity
from sparsenmt.engine.numerics import Numerics
from sparsenmt.evaluation.significance import Comparison, PairedTest
from sparsenmt.model.sites import SITES
from sparsenmt.process.progress import notify
from sparsenmt.storage.files import directory_lock, make_directories, sha256_text
from sparsenmt.storage.kept_work import KeptWork, changed_values, request_digest

_FORMAT = 1
_OLDEST_KEY = {"format", "weights", "model", "decoding", "text"}
"""The entries of the key in files of the first version, which did not look at vocabularies and the source length."""
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class SiteAttention:
    """Means over the heads of one attention site; None if no query saw any position.

    Args:
        attended: positions with weight, per query.
        visible: positions that the pattern allows, per query.
        density: share of the visible positions that have weight.
        queries: of all heads together.
    """

    attended: float | None
    visible: float | None
    density: float | None
    queries: int


def site_attention(measured: DensityResult) -> dict[str, SiteAttention]:
    """Return site -> attention, of the sites that were measured."""
    return {
        site: SiteAttention(
            attended=measured.site_mean(site, "attended"),
            visible=measured.site_mean(site, "visible"),
            density=measured.site_mean(site, "density"),
            queries=sum(head.queries for head in heads.values()),
        )
        for site in SITES
        if (heads := measured.at(site))
    }


@dataclass(kw_only=True)
class KeptEvaluation(ABC):
    """One model on one text, and the file that keeps the results.

    Args:
        key: everything that the results depend on.
        attention: by site; None: not measured.
        numerics: those of the outputs; None in files of earlier versions.
        tests: differences to other models, by metric and its settings, hash of the other's results, and
            `PairedTest.identity`.
    """

    path: Path = Path()
    key: Mapping[str, Any]
    parameters: int
    attention: dict[str, SiteAttention] | None = None
    numerics: Numerics | None = None
    tests: dict[str, dict[str, float]] = field(default_factory=dict)

    def overall(self, name: str) -> float | None:
        """Return the mean of an attribute of `SiteAttention` over all heads of the model, weighted by queries."""
        found = [(getattr(each, name), each.queries) for each in (self.attention or {}).values()]
        total = sum(queries for value, queries in found if value is not None)
        exact = math.fsum(value * queries for value, queries in found if value is not None)  # in any order of sites
        return exact / total if total else None

    def keep_test(self, metric: str, other: str, test: PairedTest, make: Callable[[], Comparison]) -> dict[str, float]:
        """Return `Comparison.record` of the difference to another model.

        Args:
            metric: with its settings.
            other: all results of the other model that the test depends on.
            make: makes the test, if it was not kept.
        """
        key = f"{metric} {sha256_text(other)[:16]} {test.identity}"
        if key not in self.tests:
            self.tests[key] = make().record()
            self.save()
        return self.tests[key]

    def save(self) -> None:
        """Write the file beside the model, merged with that of another process; warn if the directory is read-only."""
        try:
            make_directories(self.path.parent)
            with directory_lock(self.path.parent, "writes results here", wait=True):
                kept = self.read(self.path, self.key)
                if kept is not None and self.is_same(kept):
                    self.add(kept)
                results = asdict(self)
                del results["path"], results["key"]
                self._kept(self.path, self.key).write(**results)
            write_model_card(self.path.parent.parent)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            notify(f"warning: {self.path}: the results cannot be saved ({error.strerror})")

    @classmethod
    def of(
        cls,
        directory: Path,
        place: tuple[Path, Mapping[str, Any]],
        identity: ModelIdentity,
        open_bundle: Callable[[Path], Bundle],
        make: Callable[[Bundle], Self],
        attend: Callable[[Bundle], dict[str, SiteAttention]] | None,
    ) -> Self:
        """Read what is kept of a model; open it and measure what is missing.

        Args:
            directory: of the model.
            place: `path` and `key`.
            identity: of the model, when the key was made.
            make: measures all but the attention.
            attend: measures the attention; None: it is not wanted.

        Raises:
            UserError: the model is not what it must be.
        """
        found = cls.read(*place)
        if found is not None and (attend is None or found.attention is not None):
            return found
        bundle = open_bundle(directory)
        check_identity(bundle, identity, directory)
        if found is None:
            found = make(bundle)
            found.save()  # it takes longest, and survives a failure of later steps
        if attend is not None:
            found.attention = attend(bundle)
            found.save()
        return found

    @abstractmethod
    def is_same(self, kept: Self) -> bool:
        """Return True if the results of another evaluation belong to the same outputs of the model."""

    def add(self, kept: Self) -> None:
        """Add the results of another evaluation of the same outputs."""
        self.tests = kept.tests | self.tests
        self.attention = self.attention or kept.attention

    @classmethod
    def read(cls, path: Path, key: Mapping[str, Any]) -> Self | None:
        """Read an evaluation; None if there is no file, or it is damaged or of another key."""
        found = cls._kept(path, key).find()
        if found is None:
            return None
        attention = found.attention if found.key.get("attended") == key.get("attended") else None
        return replace(found, path=path, key=key, attention=attention)

    @classmethod
    def _kept(cls, path: Path, key: Mapping[str, Any]) -> KeptWork[Self]:
        """Return the file of an evaluation, whether it is written or not."""
        return KeptWork(path, key, cls, key="key", compare=_changed)


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return name, old and new value of entries that differ, but for those that files of earlier versions lack."""
    return changed_values(old, {name: value for name, value in new.items() if name in old or name in _OLDEST_KEY})


def evaluation_key(
    identity: ModelIdentity, decoding: Mapping[str, Any], digests: Mapping[str, Any], *, filtered: bool = False
) -> dict[str, Any]:
    """Return everything that results depend on: the model, its decoding options, and the hashes of the text by role.

    Args:
        filtered: True if the model drops positions: older files took them as attended.
    """
    attended = {"attended": "kept positions"} if filtered else {}
    return {"format": _FORMAT, **asdict(identity), "decoding": decoding, "text": digests, **attended}


def evaluation_path(directory: Path, text: str, digests: Mapping[str, Any], suffix: str = "") -> Path:
    """Return the file of an evaluation of a text, by its name and the hashes of its files by role."""
    return directory / RESULTS / f"{text}-{request_digest(digests)[:8]}{suffix}.json"
