"""Files: tensors and a specification, whole or not at all, and never a pickle."""

import json
import os
import pickle
import stat

import pytest
import torch
from safetensors.torch import save_file

import credibly
from credibly.core import files
from credibly.core.errors import FileFormatError

TENSORS = {
    "single": torch.randn(3, 4),
    "double": torch.randn(2, dtype=torch.float64),
    "half": torch.randn(2).to(torch.bfloat16),
    "whole": torch.arange(5),
    "flags": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
}


def test_what_is_written_is_read(tmp_path):
    specification = {"kind": "test", "options": [1, 2.5, None, {"ä": True}]}
    files.write(tmp_path / "file", specification, TENSORS)
    found, tensors = files.read(tmp_path / "file")
    assert found == specification
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)


def test_strided_shared_and_differentiable_tensors_are_written_by_value(tmp_path):
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    parts = {"all": base, "column": base[:, 1], "transposed": base.T, "expanded": base[:1].expand(5, 4)}
    files.write(tmp_path / "file", {}, parts)
    _, tensors = files.read(tmp_path / "file")
    assert all(torch.equal(tensors[name], value) for name, value in parts.items())


def test_a_file_without_tensors(tmp_path):
    files.write(tmp_path / "file", {"a": 1}, {})
    assert files.read(tmp_path / "file") == ({"a": 1}, {})


@pytest.mark.parametrize("specification", [{"bad": float("nan")}, {"bad": object()}])
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, specification):
    files.write(tmp_path / "file", {"version": 1}, {})
    with pytest.raises((ValueError, TypeError)):
        files.write(tmp_path / "file", specification, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert files.read(tmp_path / "file")[0] == {"version": 1}


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    files.write(tmp_path / "file", {"version": 1}, {})

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write(tmp_path / "file", {"version": 2}, TENSORS)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert files.read(tmp_path / "file")[0] == {"version": 1}


def test_a_new_file_has_the_permissions_that_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "file", {}, {})
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


class Marker:
    """Unpickling one writes a flag."""

    def __init__(self, flag):
        self.flag = str(flag)

    def __reduce__(self):
        return (os.mkdir, (self.flag,))


@pytest.mark.parametrize("read", [lambda path: files.read(path), credibly.load])
@pytest.mark.parametrize("write", ["pickle", "torch", "torch legacy", "appended", "prefixed"])
def test_a_callable_hidden_in_a_file_is_refused_and_does_not_run(tmp_path, read, write):
    path, flag = tmp_path / "file", tmp_path / "flag"
    hidden = pickle.dumps(Marker(flag))
    if write == "pickle":
        path.write_bytes(hidden)
    elif write.startswith("torch"):
        torch.save({"net": Marker(flag)}, path, _use_new_zipfile_serialization=write == "torch")
    else:
        files.write(path, {"kind": "test"}, TENSORS)
        whole = path.read_bytes()
        path.write_bytes(whole + hidden if write == "appended" else hidden + whole)
    with pytest.raises(FileFormatError, match="not a file written by credibly"):
        read(path)
    assert not flag.exists()
    pickle.loads(hidden)
    assert flag.exists(), "the marker would have shown that the file was unpickled"


def test_a_safetensors_file_of_others_is_refused(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "file", metadata={"format": "pt"})
    with pytest.raises(FileFormatError, match="was not written by credibly"):
        files.read(tmp_path / "file")
    save_file({"w": torch.zeros(2)}, tmp_path / "bare")
    with pytest.raises(FileFormatError, match="was not written by credibly"):
        files.read(tmp_path / "bare")


@pytest.mark.parametrize("text", ["{broken", "3", "[]", json.dumps("x")])
def test_a_damaged_specification_is_refused(tmp_path, text):
    save_file({"w": torch.zeros(2)}, tmp_path / "file", metadata={"credibly": text})
    with pytest.raises(FileFormatError, match="not a file written by credibly"):
        files.read(tmp_path / "file")


def test_a_truncated_or_empty_file_is_refused(tmp_path):
    files.write(tmp_path / "file", {}, TENSORS)
    whole = (tmp_path / "file").read_bytes()
    for part in (whole[:-3], whole[:20], b""):
        (tmp_path / "part").write_bytes(part)
        with pytest.raises(FileFormatError):
            files.read(tmp_path / "part")


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none")
