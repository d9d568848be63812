"""Files without pickle: tensors and a JSON specification in one safetensors file, written atomically.

The specification travels in the file's metadata. Reading one runs no code: it gives numbers and text.
"""

import json
import os
import uuid
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from credibly.core.errors import FileFormatError

__all__ = ["read", "write"]

_KEY = "credibly"


def write(path: str | os.PathLike[str], specification: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write both to `path`: the file appears whole or not at all."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {str(target.parent)!r} of {str(target)!r} does not exist")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode  # what the user's umask grants; safetensors would grant less
        # clones, because safetensors refuses tensors that share memory
        plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        save_file(plain, temporary, metadata={_KEY: json.dumps(specification, allow_nan=False)})
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The specification and the tensors, on the CPU.

    Raises:
        FileFormatError: if the file is not one of ours; nothing in it is executed.
    """
    try:
        with safe_open(os.fspath(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if _KEY not in metadata:
                raise FileFormatError(f"{path} is a safetensors file, but was not written by credibly.save")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            specification = json.loads(metadata[_KEY])
    except (SafetensorError, json.JSONDecodeError) as error:
        raise FileFormatError(
            f"{path} is not a file written by credibly.save ({error}); pickle files are never loaded"
        ) from error
    if not isinstance(specification, dict):
        raise FileFormatError(f"{path} is not a file written by credibly.save: its specification is no mapping")
    return specification, tensors
