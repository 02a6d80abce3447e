"""A fake CUDA device on a machine without one: real numbers on the CPU, with a label that says where they would be.

PyTorch's own `FakeTensorMode` has shapes and devices, but no numbers: it cannot carry a beam search or the compaction
of a memory, which depend on them. So every storage has a label here, CPU or CUDA, and the numbers stay on the CPU.
`Tensor.device` answers with the label, factories with ``device="cuda"`` and copies to it set it, and every operator
that PyTorch dispatches is checked: tensors of two devices in one operator raise, as on a GPU, and every operation that
makes the processor wait for the device is recorded with the function of the package that asked for it.

It does not see: numbers and speed of a device, operators that do not exist there, memory, streams, CUDA graphs, and
operators inside compiled PyTorch code. Kernels of `sparsenmt.native` read addresses, which are recorded, too.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_LIBRARY, _TORCH = f"{Path(os.__file__).parent}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}"

Kind = Literal["read", "upload", "host tensor", "address"]
T = TypeVar("T")


@dataclass(frozen=True)
class Event:
    """Something that a program for a device should do seldom.

    A *read* waits for the device, an *upload* copies a tensor to it, a *host tensor* was made on the CPU without a
    copy to follow, an *address* was handed to something other than PyTorch.
    """

    kind: Kind
    where: str  # "model/attention.py: hide_padding"; of code outside the package, the path of its file
    what: str  # the operation


class WrongDeviceError(RuntimeError):
    """An operator has tensors of two devices."""


# Operators whose result has a size, or is a Python number, that only the device knows.
_READS = frozenset(
    {
        *("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive"),
        *("bincount", "is_nonzero", "nonzero_numpy", "argwhere"),
    }
)
_COPIES = frozenset({"copy_", "_to_copy", "_foreach_copy_", "_copy_from"})
_OF_PYTHON_NUMBERS = frozenset({"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "scalar_tensor"})


class FakeDevice:
    """The labels and events of one test; `running` switches it on, and everything must be made while it is."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._cuda: dict[int, torch.UntypedStorage] = {}  # kept, so that no later one has the same number
        self._made_by: torch.device = CPU  # the device that a factory in progress was asked for
        self._function_mode = _FunctionMode(self)
        self.quiet = False

    @contextmanager
    def running(self) -> Iterator[FakeDevice]:
        with ExitStack() as stack:
            for module in ("torch.nn.utils.clip_grad", "torch.optim.optimizer"):
                name = f"{module}._group_tensors_by_device_and_dtype"
                stack.enter_context(mock.patch(name, self._grouped(sys.modules[module])))
            stack.enter_context(mock.patch("torch.cuda.is_bf16_supported", lambda **_: True))
            forked = torch.random.fork_rng  # all numbers are drawn on the CPU
            stack.enter_context(mock.patch("torch.random.fork_rng", lambda devices=(), **rest: forked([], **rest)))
            functions = torch.autograd.function.BackwardCFunction
            stack.enter_context(mock.patch.object(functions, "apply", self._of_backward(functions.apply)))
            stack.enter_context(_DispatchMode(self))
            stack.enter_context(self._function_mode)
            yield self

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Preparations of a test: nothing is recorded."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    def counts(self) -> Counter[tuple[Kind, str]]:
        return Counter((event.kind, event.where) for event in self.events)

    def record(self, kind: Kind, what: str) -> None:
        if not self.quiet:
            self.events.append(Event(kind, _asking_function(), what))

    def device_of(self, tensor: Tensor) -> torch.device:
        return CUDA if _storage(tensor) in self._cuda else CPU

    def label(self, found: T, device: torch.device) -> T:
        """Say where the tensors of a result are; return it."""
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                number = _storage(tensor)
                if device.type == "cuda":
                    with torch._C.DisableTorchFunction():
                        self._cuda[number] = tensor.untyped_storage()
                else:
                    self._cuda.pop(number, None)
        return found

    def moved(self, tensor: Tensor, device: torch.device, what: str) -> Tensor:
        """The tensor on a device: itself, or a copy, which is recorded."""
        if self.device_of(tensor).type == device.type:
            return tensor
        self.record("read" if device.type == "cpu" else "upload", what)
        return self.label(tensor.clone(), device)  # differentiable

    def _of_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A backward function written in Python: the autograd engine calls it without the mode of functions."""

        def apply(*args: Any) -> Any:
            with self._function_mode:
                return plain(*args)

        return apply

    def _grouped(self, module: Any) -> Callable[..., Any]:
        """PyTorch's grouping of tensors by their device, which does not ask `Tensor.device`."""
        plain = module._group_tensors_by_device_and_dtype

        def grouped(lists: Sequence[Sequence[Tensor | None]], *rest: Any) -> Any:
            (first,) = {self.device_of(tensor) for tensor in lists[0] if tensor is not None}
            return {(first, dtype): each for (_, dtype), each in plain(lists, *rest).items()}

        return grouped


class _DispatchMode(TorchDispatchMode):
    """Checks every operator, forward and backward."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        fake, name = self._device, func._schema.name.removeprefix("aten::")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [tensor for tensor in given if fake.device_of(tensor).type == "cuda"]
        if name in _COPIES:
            self._copy(name, args)
        elif there:
            here = [tensor for tensor in given if fake.device_of(tensor).type == "cpu" and tensor.dim()]
            if here:
                shapes = [tuple(tensor.shape) for tensor in here]
                where = _asking_function()
                raise WrongDeviceError(f"{where}: {name} of tensors on cuda:0 and tensors {shapes} on the CPU")
            if name in _READS or _has_dynamic_index(name, args, kwargs):
                fake.record("read", name)
        found = func(*args, **kwargs)
        own = {_storage(tensor) for tensor in given}
        made = CUDA if there else fake._made_by if not given else CPU
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and _storage(leaf) not in own:
                fake.label(leaf, made)
        return found

    def _copy(self, name: str, args: Any) -> None:
        """Record a copy from one device to another into an existing tensor."""
        pairs = zip(args[0], args[1], strict=False) if name == "_foreach_copy_" else [args[:2]]
        for pair in pairs:
            if len(pair) < 2 or not isinstance(pair[1], Tensor) or not isinstance(pair[0], Tensor):
                continue
            into, source = (self._device.device_of(tensor).type for tensor in pair)
            if into != source:
                self._device.record("read" if into == "cpu" else "upload", name)


class _FunctionMode(TorchFunctionMode):
    """Answers questions for the device with the label, and carries out what names a device."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._fake = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(self._fake, func, args, kwargs)
        if "device" in kwargs and kwargs["device"] is not None:
            return self._make(func, args, kwargs, torch.device(kwargs.pop("device")))
        if _is_factory(func, args, kwargs):
            return self._make(func, args, kwargs, CPU)
        fake, there = self._fake, any(isinstance(each, Tensor) and self._fake.device_of(each) == CUDA for each in args)
        before, fake._made_by = fake._made_by, CUDA if there else CPU  # of what the function makes inside
        try:
            return func(*args, **kwargs)
        finally:
            fake._made_by = before

    def _make(self, func: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
        """Make a tensor on a device."""
        fake, name = self._fake, func.__name__
        if args and isinstance(args[0], Tensor) and name in ("as_tensor", "asarray"):
            return fake.moved(args[0], device, name)
        if device.type == "cuda" and getattr(kwargs.get("generator"), "device", CUDA).type == "cpu":
            raise WrongDeviceError(f"{_asking_function()}: {name} on cuda:0 with a generator of the CPU")
        before, fake._made_by = fake._made_by, device
        try:
            found = func(*args, **kwargs)
        finally:
            fake._made_by = before
        if kwargs.get("out") is None:
            fake.label(found, device)
        if device.type == "cpu":
            fake.record("host tensor", name)
        elif name in _OF_PYTHON_NUMBERS:
            fake.record("upload", name)
        return found


_FACTORIES = frozenset(
    getattr(torch, name)
    for name in (
        *("tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "scalar_tensor", "empty", "zeros", "ones"),
        *("full", "arange", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm", "tril_indices"),
        *("triu_indices", "empty_strided", "complex", "range"),
    )
)


def _is_factory(func: Any, args: Any, kwargs: Any) -> bool:
    return func in _FACTORIES and kwargs.get("out") is None


def _device_of(fake: FakeDevice, func: Any, args: Any, kwargs: Any) -> torch.device:
    return fake.device_of(args[0])


def _to(fake: FakeDevice, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`Tensor.to` with any of its arguments but a memory format."""
    tensor, *rest = args
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for each in rest:
        if isinstance(each, Tensor):
            device, dtype = fake.device_of(each), each.dtype
        elif isinstance(each, torch.device | str):
            device = each
        elif isinstance(each, torch.dtype):
            dtype = each
    found: Tensor = tensor if device is None else fake.moved(tensor, torch.device(device), "to")
    return found if dtype is None else func(found, dtype)


def _move(device: torch.device) -> Callable[..., Tensor]:
    return lambda fake, func, args, kwargs: fake.moved(args[0], device, func.__name__)


def _read_list(fake: FakeDevice, func: Any, args: Any, kwargs: Any) -> Any:
    if fake.device_of(args[0]).type == "cuda":
        fake.record("read", func.__name__)
    return func(*args, **kwargs)


def _read_array(fake: FakeDevice, func: Any, args: Any, kwargs: Any) -> Any:
    if fake.device_of(args[0]).type == "cuda":
        raise WrongDeviceError(f"{_asking_function()}: {func.__name__} of a tensor on cuda:0")
    return func(*args, **kwargs)


def _address(fake: FakeDevice, func: Any, args: Any, kwargs: Any) -> Any:
    if fake.device_of(args[0]).type == "cuda":
        fake.record("address", "data_ptr")
    return func(*args, **kwargs)


def _of_its_own(fake: FakeDevice, func: Any, args: Any, kwargs: Any) -> Tensor:
    """`Tensor.new_tensor`: on the device of the tensor."""
    device = kwargs.pop("device", None) or fake.device_of(args[0])
    found = func(*args, **kwargs)
    fake.label(found, torch.device(device))
    if torch.device(device).type == "cuda":
        fake.record("upload", "new_tensor")
    return found  # type: ignore[no-any-return]


_ANSWERS: Mapping[Any, Callable[..., Any]] = {
    Tensor.device.__get__: _device_of,
    Tensor.is_cuda.__get__: lambda fake, func, args, kwargs: fake.device_of(args[0]).type == "cuda",  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: lambda fake, func, args, kwargs: fake.device_of(args[0]).type == "cpu",  # type: ignore[attr-defined]
    Tensor.to: _to,
    Tensor.cpu: _move(CPU),
    Tensor.cuda: _move(CUDA),
    Tensor.tolist: _read_list,
    Tensor.numpy: _read_array,
    Tensor.__array__: _read_array,
    Tensor.data_ptr: _address,
    Tensor.new_tensor: _of_its_own,
    Tensor.pin_memory: lambda fake, func, args, kwargs: args[0],
}


def _has_dynamic_index(name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Indices by a mask, and repetitions by a tensor: the size of the result must be read."""
    if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return name == "repeat_interleave" and kwargs.get("output_size") is None


def _storage(tensor: Tensor) -> int:
    """The storage of a tensor, which its views share."""
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def asking_frame(*skipped: str) -> FrameType | None:
    """The innermost function on the stack that is not of PyTorch, the standard library, or one of these files."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        of_python = path.startswith(_LIBRARY) and "-packages" not in path
        if not of_python and not path.startswith((_TORCH, "<")) and path not in (__file__, *skipped):
            return frame
        frame = frame.f_back
    return None


def _asking_function() -> str:
    """File and name of the function that asks."""
    frame = asking_frame()
    # From Python 3.12 on comprehensions are parts of their functions.
    while frame is not None and frame.f_code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>"):
        frame = frame.f_back
    if frame is None:
        return "?"
    return f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}: {frame.f_code.co_name}".replace("\\", "/")
