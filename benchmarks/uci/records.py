"""Results as one JSON object a line, so that a run may be broken off and taken up at any time."""

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Key", "append", "key_of", "recorded"]

Key = tuple[str, str, int]
"""Dataset, method and split."""


def key_of(line: dict[str, Any]) -> Key:
    """What was measured."""
    return line["dataset"], line["method"], line["split"]


def recorded(path: Path) -> list[dict[str, Any]]:
    """The results so far; a line that a broken run left unfinished does not count."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def append(path: Path, line: dict[str, Any]) -> None:
    """One more result, on a line of its own."""
    unfinished = path.exists() and path.read_bytes()[-1:] not in {b"", b"\n"}
    with path.open("a") as file:
        file.write(("\n" if unfinished else "") + json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
