"""Checkpoints: whole or not at all, the previous one kept, damage named."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from fsn.errors import UserError
from fsn.train import checkpoint as module
from fsn.train.checkpoint import Checkpoints, NonFinite


def save(store: Checkpoints, step: int, evaluated: bool = False) -> str:
    tensors = {
        "weights": {"a": torch.full((4,), float(step))},
        "optimizer": {"moment.a": torch.full((4,), -float(step)), "steps": torch.tensor(float(step))},
    }
    return store.save({"step": step, "note": 1 / 3}, tensors, evaluated=evaluated)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 7)
    found = Checkpoints(tmp_path).load()
    assert found is not None and found.name == "step-00000007"
    assert found.state["step"] == 7 and found.state["note"] == 1 / 3
    assert torch.equal(found.tensors["weights"]["a"], torch.full((4,), 7.0))
    assert found.tensors["optimizer"]["steps"] == 7
    assert not found.warnings


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_written(tmp_path: Path, value: float) -> None:
    store = Checkpoints(tmp_path)
    save(store, 6)
    bad = {"weights": {"a": torch.ones(4), "b": torch.tensor([1.0, value])}, "optimizer": {}}
    with pytest.raises(
        NonFinite, match=r"after step 7 the weight b is not finite; .* saved in .*step-00000006"
    ):
        store.save({"step": 7}, bad)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CURRENT", "step-00000006"]
    found = Checkpoints(tmp_path).load()
    assert found is not None and found.state["step"] == 6 and not found.warnings


def test_none_where_there_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nothing").load() is None


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for step in (1, 2, 3, 4):
        save(store, step)
    save(store, 4, evaluated=True)
    assert store.names() == ["step-00000004-evaluated", "step-00000004"]
    assert (tmp_path / "CURRENT").read_text() == "step-00000004-evaluated\n"


@pytest.mark.parametrize(
    "file", ["weights.safetensors", "optimizer.safetensors", "state.json", "state.sha256"]
)
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "empty"])
def test_damage_is_found_and_the_one_before_is_used(tmp_path: Path, file: str, damage: str) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1)
    victim = tmp_path / save(store, 2) / file
    data = victim.read_bytes()
    if damage == "truncated":
        victim.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        place = len(data) // 3
        victim.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    elif damage == "empty":
        victim.write_bytes(b"")
    else:
        victim.unlink()
    found = Checkpoints(tmp_path).load()
    assert found is not None and found.state["step"] == 1
    assert len(found.warnings) == 1
    assert "step-00000002" in found.warnings[0] and found.name == "step-00000001"


def test_a_damaged_one_is_replaced_when_the_run_comes_there_again(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1)
    (tmp_path / save(store, 2) / "weights.safetensors").write_bytes(b"")
    again = Checkpoints(tmp_path)
    assert again.load() is not None
    save(again, 2)
    found = Checkpoints(tmp_path).load()
    assert found is not None and found.state["step"] == 2 and not found.warnings


def test_all_damaged_is_an_error_that_names_them(tmp_path: Path) -> None:
    (tmp_path / save(Checkpoints(tmp_path), 3) / "state.json").write_bytes(b"{")
    with pytest.raises(UserError, match="step-00000003"):
        Checkpoints(tmp_path).load()


def test_a_lost_pointer_is_no_loss(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 5)
    (tmp_path / "CURRENT").unlink()
    found = Checkpoints(tmp_path).load()
    assert found is not None and found.state["step"] == 5


def test_a_folder_half_written_is_ignored_and_cleared(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1)
    half = tmp_path / ".writing-step-00000002"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    again = Checkpoints(tmp_path)
    found = again.load()
    assert found is not None and found.state["step"] == 1
    save(again, 3)
    assert not half.exists()


@pytest.mark.parametrize("fails_at", range(4))
def test_a_full_disk_leaves_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1)
    honest, calls = module.write_bytes_atomic, 0

    def full(path: Path, data: bytes) -> Any:
        nonlocal calls
        calls += 1
        if calls > fails_at:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        honest(path, data)

    monkeypatch.setattr(module, "write_bytes_atomic", full)
    with pytest.raises(OSError, match="space"):
        save(store, 2)
    monkeypatch.undo()
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["CURRENT", "step-00000001"]
    found = Checkpoints(tmp_path).load()
    assert found is not None and found.state["step"] == 1 and not found.warnings
    save(store, 2)
    assert Checkpoints(tmp_path).names()[0] == "step-00000002"
