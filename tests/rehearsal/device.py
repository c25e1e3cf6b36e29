"""A device that pretends to be a GPU: its tensors say `cuda`, compute on the CPU, and refuse what a GPU would.

It refuses operators that mix devices, generators of the CPU, and types for which CUDA has no kernel.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import varlen  # noqa: F401, makes its operators known
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

CUDA = torch.device("cuda", 0)
# The device of the tensors inside torch: CUDA's autocast takes them, and for their gradients torch asks no driver for
# streams.
STAND_IN = torch.device("xla", 0)
SHORT = (torch.bfloat16, torch.float16)
aten = torch.ops.aten
COPY = (aten._to_copy.default, aten.copy_.default)
INDEXED = (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default)  # by tensors of any device
PRODUCTS = (aten.mm.default, aten.mm.dtype, aten.addmm.default, aten.bmm.default, aten.dot.default)


class OnDevice(Tensor):
    """A tensor of the device; its values are in another one on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> OnDevice:
        self = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=STAND_IN,
            _extra_dispatch_keys=torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA),
        )
        self.held = values
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return compute(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    def tolist(self) -> Any:
        return self.held.tolist()


class Device(TorchDispatchMode):
    """Gives the device also those operators that make a tensor there from none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


DEVICE = Device()
CALLED: set[Any] = set()  # the operators that the device has computed


@cache
def is_composite(func: Any) -> bool:
    """Return whether an operator only calls others; without gradients, torch dispatches it as it is."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the result of an operator, on the device if one of its tensors or its argument `device` is there."""
    if is_composite(func):
        with DEVICE:
            return func.decompose(*args, **kwargs)
    leaves, form = tree_flatten((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    there = {id(x.held): x for x in tensors if isinstance(x, OnDevice)}
    device = kwargs.get("device")
    if func is aten.copy_.default:
        device = args[0].device
    result_there = bool(there) if device is None else torch.device(device).type in (CUDA.type, STAND_IN.type)
    if not there and not result_there:
        return func(*args, **kwargs)
    check(func, tensors, kwargs)
    CALLED.add(func)
    args, kwargs = tree_unflatten([x.held if isinstance(x, OnDevice) else x for x in leaves], form)
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    result = KERNELS.get(func, func)(*args, **kwargs)
    if not result_there:
        return result
    # An operator in place returns its argument, which must stay the same object.
    return tree_map_only(Tensor, lambda x: there[id(x)] if id(x) in there else OnDevice(x), result)


# What a GPU refuses


class Refused(RuntimeError):
    pass


def check(func: Any, tensors: Sequence[Tensor], kwargs: dict[str, Any]) -> None:
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != "cuda":
        raise Refused(f"{func}: the generator is on {generator.device}")
    if func in COPY:
        return
    first = tensors[:1] if func in INDEXED else tensors
    strangers = [x for x in first if not isinstance(x, OnDevice)]
    if torch.Tag.pointwise in func.tags or func is aten.fill_.Tensor:
        strangers = [x for x in strangers if x.dim()]  # a number may come from a CPU
    if strangers:
        raise Refused(f"{func}: tensors on cuda and on cpu")
    if func in PRODUCTS and any(not x.is_floating_point() for x in tensors):
        raise Refused(f"{func}: CUDA has no product of {tensors[0].dtype}")


# Kernels that only CUDA has


def wide_product(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    """Compute torch.mm with `out_dtype`."""
    if not (a.dtype == b.dtype and a.dtype in SHORT and out_dtype == torch.float32):
        raise Refused(f"mm of {a.dtype} and {b.dtype} into {out_dtype}")
    return a.float() @ b.float()


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, *rest: Any, **settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the forward pass of torch.nn.attention.varlen."""
    settings |= settings_of(PACKED, rest, 4)
    check_packed(query, key, value, ends)
    out = torch.empty_like(query)
    for places in sequences(ends):
        q, k, v = (heads_first(x[places], query.shape[1]) for x in (query, key, value))
        out[places] = (attention_weights(q, k, settings) @ v).transpose(0, 1).to(out.dtype)
    return out, torch.zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


def packed_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, ends: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute its backward pass; with s the scores and p = softmax(s), ds = p (dp - sum p dp)."""
    settings = settings_of(PACKED_BACKWARD, rest, 7)
    check_packed(query, key, value, ends)
    heads, scale = query.shape[1], scale_of(query, settings)
    gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    for places in sequences(ends):
        g, q, k, v = (heads_first(x[places], heads) for x in (grad, query, key, value))
        p = attention_weights(q, k, settings)
        by_p = g @ v.mT
        by_scores = p * (by_p - (p * by_p).sum(-1, keepdim=True)) * scale
        for gradient, by_x in zip(gradients, (by_scores @ k, by_scores.mT @ q, p.mT @ g), strict=True):
            of_heads = by_x.transpose(0, 1).unflatten(1, (gradient.shape[1], -1))
            gradient[places] = of_heads.sum(2).to(gradient.dtype)
    return gradients


PACKED = torch.ops.torch_attn._varlen_attn.default
PACKED_BACKWARD = torch.ops.torch_attn._varlen_attn_backward.default


def settings_of(func: Any, values: Sequence[Any], first: int) -> dict[str, Any]:
    """Return arguments of an operator by name, from the number `first` on."""
    names = [argument.name for argument in func._schema.arguments[first:]]
    return dict(zip(names, values, strict=False))


def check_packed(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> None:
    types = {x.dtype for x in (query, key, value)}
    if len(types) > 1 or query.dtype not in SHORT:
        raise Refused(f"packed attention of {types}")
    if ends.dtype != torch.int32:
        raise Refused(f"packed attention: ends in {ends.dtype}")


def sequences(ends: Tensor) -> Iterator[slice]:
    for start, end in itertools.pairwise(ends.tolist()):
        yield slice(start, end)


def heads_first(x_AHD: Tensor, heads: int) -> Tensor:
    """Return queries, keys or values in float32, with as many heads as the queries have."""
    return x_AHD.float().repeat_interleave(heads // x_AHD.shape[1], dim=1).transpose(0, 1)


def scale_of(query: Tensor, settings: dict[str, Any]) -> float:
    return settings["scale"] or query.shape[-1] ** -0.5


def attention_weights(q_HLD: Tensor, k_HLD: Tensor, settings: dict[str, Any]) -> Tensor:
    """Return the weights of causal attention within a window, if there is one."""
    places, (window, _) = torch.arange(q_HLD.shape[1]), settings["window_size"]
    back_LL = places[:, None] - places
    unseen_LL = (back_LL < 0) | (back_LL > (window if window >= 0 else len(places)))
    scores = q_HLD @ k_HLD.mT * scale_of(q_HLD, settings)
    return scores.masked_fill(unseen_LL, -torch.inf).softmax(-1)


KERNELS = {aten.mm.dtype: wide_product, PACKED: packed_attention, PACKED_BACKWARD: packed_attention_backward}


# torch.cuda


def add_device_guards() -> None:
    """Give torch guards for both devices, which it asks for before any operator.

    It has a guard for a GPU that is not there, and takes that where another one counts no devices. So it gets one whose
    every method returns 0, which also does for the other device.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 10).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, stand_in = 1, 9  # in torch's list of devices
    guards[stand_in] = ctypes.addressof(NO_DEVICES)
    guards[cuda] = ctypes.addressof(NO_DEVICES)
    torch._C._ensureCUDADeviceGuardSet()


# An object of C++ with a table of 64 methods.
ZERO = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
METHODS = (ctypes.c_void_p * 64)(*[ctypes.cast(ZERO, ctypes.c_void_p).value] * 64)
NO_DEVICES = ctypes.c_void_p(ctypes.addressof(METHODS))


class Stream:
    """A stream whose work is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        pass


def pretend() -> None:
    """Let torch find this device; a process can't undo it, since torch counts its devices once."""
    add_device_guards()
    there = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_bf16_supported": lambda: True,
        "get_device_capability": lambda: (9, 0),
        "get_device_name": lambda: "a pretended GPU",
        "Stream": Stream,
        "current_stream": Stream,
        "stream": nullcontext,
        "synchronize": lambda: None,
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "get_device_properties": lambda device: SimpleNamespace(total_memory=80 * 2**30),
        "memory_snapshot": list,
        "set_per_process_memory_fraction": lambda share: None,
        "empty_cache": lambda: None,
    }
    for name, value in there.items():
        setattr(torch.cuda, name, value)
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor makes its tensor by operators, too
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter can't become another class
    DEVICE.__enter__()
