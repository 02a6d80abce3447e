"""Faults at every call that changes a file: what is left on disk, and whether the same command then does its work."""

from __future__ import annotations

import errno
import random
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparsenmt.training.checkpoints import Checkpoint
from tests.faults import invariants
from tests.faults.reports import Finding, Report, compare, first_line, refusal
from tests.faults.server import Result
from tests.faults.shim import Action, Call
from tests.faults.world import BEST, DECODE, MEAN, PREPARE, TRAIN, Files, World, differences, digest


@dataclass(frozen=True)
class Use:
    """What is done next with what a fault has left: it must end as it does before the command, or after it."""

    arguments: list[str]
    reads: str
    """Pattern of the files that it depends on."""


@dataclass(frozen=True)
class Scenario:
    """One command in one situation."""

    name: str
    arguments: list[str]
    start: str
    """The state that the command finds: see `world.STATES`."""
    keep_last: int = 2
    use: Use | None = None
    once: bool = False
    """What is done is not done again: repeating the command is then refused."""


AVERAGE = ["average", "case/model", "--last", "2"]
CHOOSE = [*AVERAGE[:-1], "1,2"]
USE_DATA = ["train", "recipe.yaml", "directory=case/other", "training.max_updates=2"]
USE_MODEL = [*DECODE[:5], "case/used.de", *DECODE[6:]]
TRAINS = Use(USE_DATA, r"prepared/.*")
DECODES = Use(USE_MODEL, r"model/(?!checkpoints/|metrics).*")

SCENARIOS = [
    Scenario("prepare", PREPARE, "empty", use=TRAINS),
    Scenario("prepare, half done before", PREPARE, "half prepared", use=TRAINS),
    Scenario("prepare, other data there", PREPARE, "prepared otherwise", use=TRAINS),
    Scenario("train", TRAIN, "prepared", use=DECODES),
    Scenario("train, resumed", TRAIN, "interrupted", use=DECODES),
    Scenario("train, resumed after a signal", TRAIN, "signalled"),
    Scenario("train, best of early ones", BEST, "prepared", keep_last=1),
    Scenario("train, the last step: a mean", MEAN, "without weights"),
    Scenario("decode", DECODE, "model and place"),
    Scenario("decode, half done before", DECODE, "half decoded"),
    Scenario("decode, older output there", DECODE, "model and output"),
    Scenario("average, in place", AVERAGE, "model", use=DECODES),
    Scenario("average, the best by validation", CHOOSE, "trained", use=DECODES),
    Scenario("average, to another place", [*AVERAGE, "--output", "case/mean"], "model", once=True),
]


@dataclass(frozen=True)
class Mode:
    """A kind of fault, and the calls it may happen at."""

    name: str
    action: Action
    at: Callable[[Call], bool]
    error: int = 0
    power: bool = False
    """What was not brought to the disk is lost as well."""


_GROWS = {"open", "fopen", "mkdir", "link", "symlink", "allocate", "write", "pwrite", "writev", "sendfile", "copy"}


def _any(call: Call) -> bool:
    return True


def _grows(call: Call) -> bool:
    return call.name in _GROWS


MODES = [
    Mode("killed", Action.KILL, _any),
    Mode("power lost", Action.KILL, _any, power=True),
    Mode("write cut, killed", Action.TORN, lambda call: call.bytes >= 2 and _grows(call)),
    Mode("disk full", Action.FULL, _grows),
    Mode("ENOSPC once", Action.FAIL, lambda call: call.name in ("rename", "fsync"), errno.ENOSPC),
    Mode("EIO once", Action.FAIL, _any, errno.EIO),
    Mode("disk dead", Action.DEAD, _any),
    Mode("SIGTERM", Action.SIGNAL, _any),
]
KILLED_AT_THE_END = Mode("killed", Action.KILL_AFTER, _any)


@dataclass(frozen=True)
class Case:
    """A fault: which, at which call."""

    mode: Mode
    call: Call


@dataclass
class Faults:
    """Tries faults in one scenario; what follows from a state is worked out once."""

    world: World
    scenario: Scenario

    def __post_init__(self) -> None:
        world, scenario = self.world, self.scenario
        self.start = world.state(scenario.start)
        world.set(self.start)
        self.calls = world.succeed(scenario.arguments)
        self.expected = world.files()
        self.points = [call for call in self.calls if call not in invariants.idle(self.calls)]
        self.report = Report(scenario.name, points=len(self.points))
        left = invariants.not_on_disk(world.case, self.calls)
        self.report.add("at success", (("other", f"the disk need not have {what}") for what in left))
        past = invariants.unseen(world.case, self.start, self.calls, self.expected)
        self.report.add("at success", (("other", f"{name} was written past the library of faults") for name in past))
        self._may_give = [self._give(files) for files in (self.start, self.expected)]
        self._repeated: dict[str, list[Finding]] = {}
        self._uses: dict[str, list[Finding]] = {}
        self._last: tuple[tuple[Action, int, int], tuple[Result, Files, Files]] | None = None

    def cases(self) -> list[Case]:
        """All of them; not at an fsync that has nothing to do."""
        found = [Case(mode, call) for call in self.points for mode in MODES if mode.at(call)]
        return [*found, Case(KILLED_AT_THE_END, self.calls[-1])]

    def sample(self, count: int, seed: int) -> list[Case]:
        """Some of them."""
        return random.Random(seed).sample(self.cases(), count)

    def try_all(self, cases: list[Case]) -> Report:
        """Try cases, and report."""
        for case in cases:
            self._try(case)
        self.report.cases += len(cases)
        return self.report

    def _try(self, case: Case) -> None:
        mode, call = case.mode, case.call
        result, left, without_power = self._fault(mode.action, call.number, mode.error)
        after = without_power if mode.power else left
        place = call.path.replace(str(self.world.case), "case")
        where = f"{mode.name} at call {call.number} ({call.name} {place})"
        self.report.add(where, _ending(mode, result))
        if not any(made.number == call.number for made in result.calls):
            self.report.add(where, [("other", "the call was not reached")])
        lost = invariants.lost_checkpoints(self.start, result.calls, after, keep_last=self.scenario.keep_last)
        lost += invariants.lost_others(self.start, after, self.expected)
        self.report.add(where, (("lost", text) for text in lost))
        if result.code == 0:  # what it could not tidy up, the next run has to
            found = compare("it ended well, but", self.expected, after)
            self.report.add(where, (each for each in found if each[0] == "wrong"))
        for follow, known, pattern in (
            (self._repeat, self._repeated, ".*"),
            (self._use, self._uses, self.scenario.use.reads if self.scenario.use else "-"),
        ):
            key = digest({name: content for name, content in after.items() if re.fullmatch(pattern, name)})
            if key not in known:
                known[key] = list(follow(after))
            self.report.add(where, known[key])

    def _fault(self, action: Action, number: int, error: int) -> tuple[Result, Files, Files]:
        """Run the command with a fault: how it ends, what it leaves, and what is left of that if the power goes too."""
        if self._last is None or self._last[0] != (action, number, error):
            world = self.world
            world.set(self.start)
            before = invariants.sizes(world.case)
            result = world.run(self.scenario.arguments, action, number, error)
            after = world.files(), invariants.without_power(world.case, world.files(), result.calls, before)
            self._last = (action, number, error), (result, *after)
        return self._last[1]

    def _repeat(self, after: Files) -> Iterator[Finding]:
        """The same command again, without a fault: what is wrong."""
        self.world.set(after)
        yield from self._unreadable(after)
        result = self.world.run(self.scenario.arguments)
        if result.code == 2 and self.scenario.once and not differences(self.expected, after):
            return
        if result.code != 0:
            yield "other", f"again, it ends with exit code {result.code}: {first_line(result.err)}"
        else:
            yield from compare("again,", self.expected, self.world.files())

    def _unreadable(self, after: Files) -> Iterator[Finding]:
        """Checkpoints that are complete, but that the program takes for damaged."""
        for update in sorted(invariants.checkpoints(after)):
            path = self.world.case / "model" / "checkpoints" / f"update-{update:08d}"
            try:
                if path.exists():
                    Checkpoint(path).check()
            except Exception as error:
                yield "lost", f"it is complete, but: {error}"

    def _use(self, after: Files) -> Iterator[Finding]:
        """Another command, that uses what the fault has left: what is wrong."""
        given = self._give(after)
        if isinstance(given, Result):
            yield from ((kind, f"then, using it: {text}") for kind, text in refusal(given))
        elif all(isinstance(each, Result) or differences(each, given) for each in self._may_give):
            yield "wrong", f"then, using it, it gives something else: {sorted(given)[:4]}"

    def _give(self, files: Files) -> Files | Result:
        """The files that are made out of these by using them, or how it ends without success."""
        if self.scenario.use is None:
            return {}
        self.world.set(files)
        result = self.world.run(self.scenario.use.arguments)
        if result.code != 0:
            return result
        return {name: content for name, content in self.world.files().items() if name not in files}


def _ending(mode: Mode, result: Result) -> list[Finding]:
    """What is wrong with how a command with a fault ended."""
    expected = {Action.KILL: -9, Action.KILL_AFTER: -9, Action.TORN: -9, Action.SIGNAL: 128 + signal.SIGTERM}
    if mode.action not in expected:
        return [] if result.code == 0 else refusal(result)
    if result.code == expected[mode.action] or (result.code == 0 and mode.action == Action.SIGNAL):
        return [("other", f"a traceback: {result.err[-300:]}")] if "Traceback" in result.err else []
    return [("other", f"exit code {result.code} instead of {expected[mode.action]}: {first_line(result.err)}")]
