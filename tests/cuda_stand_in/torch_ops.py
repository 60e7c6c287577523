"""Let torch's CPU compute on the memory of the fake GPU, which is the host's: `import torch` itself loads this module.

An operation of :data:`LISTED` waits until the current stream is idle and is then computed at once: it is never queued
behind a kernel that hangs. A copy between tensors of one layout is left to cudaMemcpyAsync, and is queued. Any other
operation launches a kernel of torch's that does not exist here, and fails by name.
"""

import ctypes
import inspect
import warnings

import torch

_ONE = "neg abs bitwise_not logical_not isnan isinf isfinite sqrt rsqrt exp log square ceil floor relu"
_TWO = """add sub mul div eq ne lt le gt ge bitwise_and bitwise_or logical_and logical_or remainder floor_divide maximum
 minimum"""
_OTHERS = """sum sum.dim_IntList sum.IntList_out any any.dim all all.dim nonzero max min amax amin mean mean.dim prod
 arange.start_out where.self index.Tensor index_select gather cumsum mm addmm addmm.out bmm bmm.out randn normal_
 uniform_ random_ random_.from random_.to bernoulli_.float cat masked_fill_.Scalar masked_select sort
 isin.Tensor_Tensor argmax argmin repeat_interleave.Tensor"""
LISTED = [
    *(name + form for name in _ONE.split() for form in ("", "_", ".out")),
    *(name + form for name in _TWO.split() for form in ("", "_", ".out", ".Tensor", ".Scalar", "_.Tensor", "_.Scalar")),
    *(name + form for name in _TWO.split() for form in (".Tensor_out", ".Scalar_out")),
    *_OTHERS.split(),
]
_MEMCPY_DEFAULT = 4
_library = None


def register():
    """Called by torch at its import, by the entry point torch.backends."""
    global _library
    if not torch.cuda.is_available():
        return
    _library = torch.library.Library("aten", "IMPL")
    forced = {"allow_override": True} if "allow_override" in inspect.signature(_library.impl).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is overridden
        for name in LISTED:
            base, _, overload = name.partition(".")
            packet = getattr(torch.ops.aten, base, None)
            if packet is None or (overload or "default") not in packet.overloads():
                continue
            operation = getattr(packet, overload or "default")
            if _is_dispatched(operation):
                _library.impl(name, _computed_here(operation), "CUDA", **forced)
        _library.impl("copy_", _copy, "CUDA", **forced)
        _library.impl("mm.out", _product, "CUDA", **forced)


def _is_dispatched(operation):
    try:
        torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CUDA")
    except RuntimeError:  # a builtin of TorchScript
        return False
    return True


def _host_view(value):
    """A CPU tensor over the same memory."""
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    if not value.numel():
        return torch.empty(value.shape, dtype=value.dtype)
    nbytes = value.untyped_storage().nbytes() - value.storage_offset() * value.element_size()
    memory = (ctypes.c_char * nbytes).from_address(value.data_ptr())
    flat = torch.frombuffer(memory, dtype=value.dtype, count=nbytes // value.element_size())
    return flat.as_strided(value.shape, value.stride())


def _each(function, value):
    if isinstance(value, (list, tuple)):
        return type(value)(_each(function, one) for one in value)
    return function(value)


def _computed_here(operation):
    schema = operation._schema.arguments
    written = {each.name for each in schema if each.alias_info is not None and each.alias_info.is_write}

    def run(*args, **kwargs):
        given = dict(zip((each.name for each in schema), args, strict=False)) | kwargs
        tensors = []
        _each(lambda one: tensors.append(one) if getattr(one, "is_cuda", False) else None, [*given.values()])
        device = tensors[0].device if tensors else torch.device(given.get("device") or "cuda")
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"fake CUDA: {operation} cannot be captured here")
        for each in {device, *(one.device for one in tensors)}:
            torch.cuda.current_stream(each).synchronize()
        outs = {name: torch.empty(0, dtype=kwargs[name].dtype) for name in kwargs if name in written}  # they may grow
        here = {name: _each(_host_view, value) for name, value in kwargs.items()} | outs
        if here.get("device") is not None:
            here["device"] = torch.device("cpu")
        result = operation.overloadpacket(*(_each(_host_view, one) for one in args), **here)
        for name, out in outs.items():
            if kwargs[name].shape != out.shape:
                kwargs[name].resize_(out.shape)
            _host_view(kwargs[name]).copy_(out)
        if written:
            return next(given[each.name] for each in schema if each.name in written)
        return _each(lambda one: _moved(one, device), result)

    return run


def _moved(value, device):
    if not isinstance(value, torch.Tensor):
        return value
    there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    if value.numel():
        _host_view(there).copy_(value)
    return there


def _product(a, b, out):
    """As the CPU's, but at once where a matrix holds zeros alone: our stand-in of compute multiplies large ones."""
    torch.cuda.current_stream(a.device).synchronize()
    if _host_view(a).any() and _host_view(b).any():
        torch.mm(_host_view(a), _host_view(b), out=_host_view(out))
    else:
        _host_view(out).zero_()
    return out


def _copy(to, source, non_blocking=False):
    """As torch's own: memory where nothing is converted or strided, else by the CPU."""
    plain = to.is_contiguous() and source.is_contiguous() and not (to.is_conj() or source.is_conj())
    if plain and to.dtype == source.dtype and to.shape == source.shape:
        _memcpy(to, source, non_blocking)
        return to
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("fake CUDA: a copy that converts cannot be captured here")
    for each in (to, source):
        if each.is_cuda:
            torch.cuda.current_stream(each.device).synchronize()
    _host_view(to).copy_(_host_view(source))
    return to


def _memcpy(to, source, non_blocking):
    stream = torch.cuda.current_stream((to if to.is_cuda else source).device)
    places = (ctypes.c_void_p(to.data_ptr()), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(to.nbytes))
    code = ctypes.CDLL("libcudart.so.13").cudaMemcpyAsync(*places, _MEMCPY_DEFAULT, ctypes.c_void_p(stream.cuda_stream))
    if code:
        raise RuntimeError(f"CUDA error: {code}")
    if not non_blocking and not (to.is_cuda and source.is_cuda):
        stream.synchronize()
