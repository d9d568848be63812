"""Save and load results: posteriors, recalibrations, conformal predictors.

A file holds tensors and a JSON specification; it never holds code. Every part keeps its constructor's options under
their own names, so one encoder serves all: an object is its class's public name and its options, a module its state
besides. The network itself is code, and is given again on loading: its names, shapes and ties are compared.
"""

import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credibly.core.copying import copied
from credibly.core.dropout_rates import learned_rates, set_known_rates
from credibly.core.errors import FileFormatError
from credibly.core.files import read, write
from credibly.model import Model, OutputSelector

__all__ = ["load", "save"]

_FORMAT = 1
_PUBLIC = (
    "calibration",
    "conformal",
    "core.linalg",
    "decision",
    "distributions",
    "inference",
    "likelihoods",
    "posteriors",
    "priors",
    "standardization",
    "training",
)


def save(obj: object, path: str | os.PathLike[str]) -> None:
    """Write a result to a file, atomically.

    Args:
        obj: a posterior, a recalibration, a conformal predictor, or any other object of this library whose parts are
            numbers, text, tensors and such objects.
        path: the file; an existing one is replaced whole.
    """
    encoder = _Encoder()
    specification = {"format": _FORMAT, "object": encoder.encode(obj)}
    write(path, specification, encoder.tensors)


def load(
    path: str | os.PathLike[str],
    *,
    net: nn.Module | None = None,
    output: OutputSelector | None = None,
    classes: Iterable[type] = (),
    device: str | torch.device = "cpu",
) -> Any:
    """Read a result from a file written by `save`. Nothing in the file is executed.

    Args:
        path: the file.
        net: the network of a posterior, in any state; it is copied.
        output: the model's `output` again, where it is a callable.
        classes: the user's own likelihoods, priors or methods that the file mentions.
        device: where all tensors go.

    Raises:
        FileFormatError: if the file is not one of ours, or does not fit the network.
    """
    specification, tensors = read(path)
    if specification.get("format") != _FORMAT:
        raise FileFormatError(f"{path} has format {specification.get('format')}; this version reads {_FORMAT}")
    return _Decoder(tensors, net, output, classes, torch.device(device)).decode(specification["object"])


class _Encoder:
    """Turns objects into JSON values and collects their tensors by number."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, list):
            return [self.encode(item) for item in value]
        if isinstance(value, tuple):
            return {"$tuple": [self.encode(item) for item in value]}
        if isinstance(value, Mapping):
            return {"$dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, Tensor):
            return {"$tensor": self._keep(value)}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        return self._encode_model(value) if isinstance(value, Model) else self._encode_object(value)

    def _keep(self, tensor: Tensor) -> str:
        name = str(len(self.tensors))
        self.tensors[name] = tensor
        return name

    def _encode_object(self, value: Any) -> dict[str, Any]:
        cls = type(value)
        if isinstance(value, type) or (callable(value) and not isinstance(value, nn.Module) and not _is_public(cls)):
            raise TypeError(f"{value!r} is code and cannot be saved")
        encoded = {"$object": _public_name(cls), "options": self._options(value)}
        if isinstance(value, nn.Module):
            encoded["state"] = self.encode(_state(value))
        return encoded

    def _options(self, value: Any) -> dict[str, Any]:
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [name for name, p in inspect.signature(type(value)).parameters.items() if p.kind in named]
        missing = [name for name in names if not hasattr(value, name)]
        if missing and isinstance(value, Distribution):
            raise TypeError(
                f"a {type(value).__name__} cannot be saved: it is a prediction, and is made again by what made it. A "
                "region that holds one, of PITScore or HighestDensity, is not saved either: save the predictor that "
                "gave it, or its ends, `region.lower` and `region.upper`"
            )
        if missing:
            raise TypeError(
                f"{type(value).__name__} cannot be saved: a posterior, a recalibration or a conformal predictor can. A "
                f"class of your own must keep its constructor's options under their own names; missing {missing}"
            )
        return {name: self.encode(getattr(value, name)) for name in names}

    def _encode_model(self, model: Model) -> dict[str, Any]:
        output = {"$given": True} if callable(model.output) else self.encode(model.output)
        return {
            "$model": {
                "likelihood": self.encode(model.given_likelihood),
                "prior": self.encode(model.prior),
                "noise_prior": self.encode(model.noise_prior),
                "inputs": self.encode(model.inputs),
                "targets": self.encode(model.targets),
                "output": output,
                "offset": self.encode(model.offset),
                "network": _description(model.net),
                "state": self.encode(_state(model.core)),
            }
        }


class _Decoder:
    """Turns JSON values back into objects, of known classes only."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        net: nn.Module | None,
        output: OutputSelector | None,
        classes: Iterable[type],
        device: torch.device,
    ) -> None:
        self._tensors = tensors
        self._net = net
        self._output = output
        self._own = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes}
        self._device = device
        self._place = device  # modules are built on the CPU and then moved, so that ties survive
        self._readers: dict[str, Callable[[Any], Any]] = {
            "$float": float,
            "$tuple": lambda items: tuple(self.decode(item) for item in items),
            "$dict": lambda items: {self.decode(key): self.decode(item) for key, item in items},
            "$tensor": lambda name: self._tensors[name].to(self._place),
            "$dtype": _dtype,
            "$model": self._built_on_cpu(self._decode_model),
        }

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$object" in value:
            cls = self._class(value["$object"])
            build = self._built_on_cpu(self._decode_object) if issubclass(cls, nn.Module) else self._decode_object
            return build(value)
        ((kind, content),) = value.items()
        if kind not in self._readers:
            raise FileFormatError(f"the file holds a value of unknown kind {kind!r}")
        return self._readers[kind](content)

    def _decode_object(self, value: dict[str, Any]) -> Any:
        cls = self._class(value["$object"])
        made = cls(**{name: self.decode(option) for name, option in value["options"].items()})
        if isinstance(made, nn.Module):
            _set_state(made, self.decode(value["state"]))
        return made

    def _built_on_cpu(self, build: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def built(content: Any) -> Any:
            outer, self._place = self._place, torch.device("cpu")
            try:
                return build(content).to(outer)
            finally:
                self._place = outer

        return built

    def _class(self, name: str) -> type:
        if name in self._own:
            return self._own[name]
        package, _, short = name.rpartition(".")
        if package in _PUBLIC:
            module = import_module(f"credibly.{package}")
            found = getattr(module, short, None) if short in module.__all__ else None
            if isinstance(found, type):
                return found
        raise FileFormatError(
            f"the file mentions `{name}`, which is not part of this library; if it is your own class, pass "
            f"load(..., classes=[{short}])"
        )

    def _decode_model(self, parts: dict[str, Any]) -> Model:
        if self._net is None:
            raise FileFormatError("the file holds a posterior over a network's weights; pass load(..., net=network)")
        net = copied(self._net).cpu()
        set_known_rates(net, parts["network"].get("rates", {}))
        _check_network(parts["network"], _description(net))
        output = parts["output"]
        if isinstance(output, dict):
            if not callable(self._output):
                raise FileFormatError("the model's `output` was a callable; pass it again as load(..., output=...)")
            output = self._output
        model = Model(
            net,
            self.decode(parts["likelihood"]),
            self.decode(parts["prior"]),
            inputs=self.decode(parts["inputs"]),
            targets=self.decode(parts["targets"]),
            output=output,
            offset=self.decode(parts["offset"]),
            noise_prior=self.decode(parts["noise_prior"]),
        )
        _set_state(model.core, self.decode(parts["state"]))
        for name, parameter in model.net.named_parameters():
            parameter.requires_grad_(name not in parts["network"]["frozen"])
        return model


def _state(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name, tied ones once."""
    return {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}


def _set_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Put values in place, with their dtype and device; tied weights stay one."""
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        value.data = state[name].clone()


def _description(net: nn.Module) -> dict[str, Any]:
    """What a network must have in common with the one that was saved."""
    groups: dict[int, list[str]] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return {
        "shapes": {name: list(value.shape) for name, value in _state(net).items()},
        "ties": sorted(names for names in groups.values() if len(names) > 1),
        "printed": str(net),
        "frozen": [name for name, parameter in net.named_parameters() if not parameter.requires_grad],
        "rates": learned_rates(net),
    }


def _check_network(saved: dict[str, Any], given: dict[str, Any]) -> None:
    missing = sorted(saved["shapes"].keys() - given["shapes"].keys())
    unknown = sorted(given["shapes"].keys() - saved["shapes"].keys())
    if missing or unknown:
        raise FileFormatError(f"`net` is another network than the saved one: it lacks {missing} and has {unknown}")
    for name, shape in saved["shapes"].items():
        if shape != given["shapes"][name]:
            raise FileFormatError(f"`net` has `{name}` of shape {given['shapes'][name]}; the saved one has {shape}")
    if saved["ties"] != given["ties"]:
        raise FileFormatError(f"`net` ties the weights {given['ties']}; the saved network ties {saved['ties']}")
    pairs = zip(saved["printed"].splitlines(), given["printed"].splitlines(), strict=False)
    for ours, theirs in pairs:
        if ours != theirs:
            warnings.warn(
                f"`net` has the weights of the saved network but prints differently: {theirs.strip()!r} in place of "
                f"{ours.strip()!r}; an activation or a dropout rate may have changed",
                stacklevel=2,
            )
            break


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise FileFormatError(f"the file mentions the unknown dtype {name!r}")
    return found


def _is_public(cls: type) -> bool:
    return any(getattr(import_module(f"credibly.{package}"), cls.__name__, None) is cls for package in _PUBLIC)


def _public_name(cls: type) -> str:
    """`package.Name` for the library's own classes, the full name for the user's."""
    for package in _PUBLIC:
        if getattr(import_module(f"credibly.{package}"), cls.__name__, None) is cls:
            return f"{package}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
