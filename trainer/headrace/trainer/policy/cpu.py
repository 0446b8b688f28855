"""Megatron-core on a machine without CUDA: for tests and for the demo.

Megatron asks for CUDA by name. `install` gives its modules, and only them, another `torch`, in which the CUDA
device is the CPU; everyone else in the process keeps the real one. Where CUDA is available, nothing is done.
"""

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import torch

_CPU: Final = torch.device("cpu")
_PREFIX: Final = "megatron.core"
# What the policy uses, and the parts below that use CUDA and would be imported late.
_MODULES: Final = (
    "megatron.core.optimizer",
    "megatron.core.distributed",
    "megatron.core.dist_checkpointing",
    "megatron.core.dist_checkpointing.exchange_utils",
    "megatron.core.dist_checkpointing.strategies.filesystem_async",
    "megatron.core.dist_checkpointing.strategies.fully_parallel",
    "megatron.core.dist_checkpointing.strategies.state_dict_saver",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.pipeline_parallel",
)


def is_needed() -> bool:
    return not torch.cuda.is_available()


@contextmanager
def _import_context() -> Iterator[None]:
    """Without the warnings of each module that could use Transformer Engine or Apex.

    On the CPU also without torch.compile: Megatron gives it kernels that are not used here, and its first use
    imports a compiler, for as long as all the rest takes.
    """
    compiled = torch.compile
    if is_needed():
        torch.compile = _as_it_is  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.compile = compiled


def _as_it_is(function: Callable[..., Any] | None = None, **_options: object) -> Callable[..., Any]:
    return function or _as_it_is


with _import_context():
    for _name in _MODULES:
        importlib.import_module(_name)

_FACTORIES: Final = (
    "arange",
    "empty",
    "empty_like",
    "full",
    "ones",
    "ones_like",
    "tensor",
    "zeros",
    "zeros_like",
)
_CUDA_TYPES: Final = {
    "torch.FloatTensor": "torch.cuda.FloatTensor",
    "torch.BFloat16Tensor": "torch.cuda.BFloat16Tensor",
    "torch.HalfTensor": "torch.cuda.HalfTensor",
}


class _View:
    """A module in which some names mean something else."""

    def __init__(self, module: ModuleType, replaced: dict[str, Any]) -> None:
        self._module = module
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the module has
        return getattr(self._module, name)


def install() -> bool:
    """Make Megatron run on the CPU; False where CUDA is available, and nothing was done. May be repeated."""
    if not is_needed():
        return False
    view = _torch_without_cuda()
    for name, module in list(sys.modules.items()):
        if name.startswith(_PREFIX) and getattr(module, "torch", None) is torch:
            module.torch = view  # type: ignore[attr-defined]
    # It goes around torch.cuda, by functions that it imported from there.
    random = sys.modules["megatron.core.tensor_parallel.random"]
    random._set_cuda_rng_state = _set_rng_state  # type: ignore[attr-defined]  # noqa: SLF001
    random._get_cuda_rng_state = _get_rng_state  # type: ignore[attr-defined]  # noqa: SLF001
    return True


@contextmanager
def building() -> Iterator[None]:
    """While a model and its optimizer are built: tensors say that they are on CUDA.

    Megatron sorts parameters by the name of their tensor type, and moves tied embeddings with `.cuda()`.
    Tensors belong to everyone, so this must end before anyone else uses them. No effect where CUDA is.
    """
    if not is_needed():
        yield
        return
    cuda, kind = torch.Tensor.cuda, torch.Tensor.type

    def named_type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as torch's
        found = kind(tensor, *args, **kwargs)
        return _CUDA_TYPES.get(found, found) if isinstance(found, str) else found

    torch.Tensor.cuda = lambda tensor, *_args, **_kwargs: tensor  # type: ignore[method-assign]
    torch.Tensor.type = named_type  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.Tensor.cuda = cuda  # type: ignore[method-assign]
        torch.Tensor.type = kind  # type: ignore[method-assign]


def _torch_without_cuda() -> _View:
    random = _View(torch.cuda.random, {"get_rng_state": _get_rng_state, "set_rng_state": _set_rng_state})
    cuda = _View(
        torch.cuda,
        {
            "current_device": lambda: _CPU,
            "synchronize": lambda *_args: None,
            "get_rng_state": _get_rng_state,
            "set_rng_state": _set_rng_state,
            "manual_seed": torch.manual_seed,
            "random": random,
        },
    )
    factories = {name: _made_on_cpu(getattr(torch, name)) for name in _FACTORIES}
    return _View(torch, {"cuda": cuda, **factories})


def _made_on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401  as the factory's
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = _CPU
        return make(*args, **kwargs)

    return made


def _get_rng_state(*_args: object, **_kwargs: object) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, *_args: object, **_kwargs: object) -> None:
    torch.set_rng_state(state)
