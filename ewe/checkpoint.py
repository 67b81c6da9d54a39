"""Checkpoints: all that training needs to go on as if it had never stopped, in safetensors and JSON.

A checkpoint is a folder `checkpoints/step-NNNNNNNN` that is whole or not there. It holds the weights, the
optimizer's moments, the loss scaler, torch's random state and the step; the learning rate and the order of
the data are functions of the step, so nothing else has a state (nothing draws from numpy's global generator).
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ewe import progress, store
from ewe.compute import Compute
from ewe.distributed import ALONE, World

KEPT = 2


def save(
    run: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    compute: Compute,
    world: World = ALONE,
) -> None:
    """Publish the checkpoint of a step (unless it is there) and remove all but the last two."""
    random = _random_states(compute.device, world)
    if not world.leads:
        return
    path = run / "checkpoints" / f"step-{step:08d}"
    if not path.exists():
        moments = {
            f"{index}.{name}": tensor
            for index, state in optimizer.state_dict()["state"].items()
            for name, tensor in state.items()
        }
        with store.publish(path) as folder:
            folder.mkdir()
            write_tensors(model.state_dict(), folder / "model.safetensors")
            write_tensors(moments, folder / "optimizer.safetensors")
            write_tensors(random, folder / "random.safetensors")
            state = {"step": step, "compute": str(compute), "scaler": scaler.state_dict()}
            store.publish_json(folder / "state.json", state)
    for old in _checkpoints(run)[:-KEPT]:
        shutil.rmtree(old)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file as readable as any other; OSError where there is no room."""
    path.touch()
    mode = path.stat().st_mode & 0o777  # as the umask has it; the library's own is 0600
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from None
    path.chmod(mode)


def latest(run: Path) -> Path | None:
    """The newest checkpoint, if there is one."""
    found = _checkpoints(run)
    return found[-1] if found else None


def restore(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    compute: Compute,
    world: World = ALONE,
) -> int:
    """Put a checkpoint's state into these objects and torch's generators; returns its step."""
    device = str(compute.device)
    model.load_state_dict(load_file(path / "model.safetensors", device=device))
    moments: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load_file(path / "optimizer.safetensors", device=device).items():
        index, name = key.split(".")
        moments.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    random = load_file(path / "random.safetensors")
    if f"cpu.{world.rank}" in random:
        torch.set_rng_state(random[f"cpu.{world.rank}"])
    if compute.device.type == "cuda" and f"cuda.{world.rank}" in random:
        torch.cuda.set_rng_state(random[f"cuda.{world.rank}"], compute.device)
    processes = sum(name.startswith("cpu.") for name in random)
    if processes != world.size:
        progress.warn(f"{path} was made by {processes} processes and goes on in {world.size}: another dropout.")
    state: dict[str, Any] = store.read_json(path / "state.json")
    if state["scaler"]:  # empty without fp16
        scaler.load_state_dict(state["scaler"])
    if state["compute"] != str(compute):
        progress.warn(f"{path} was made on {state['compute']} and goes on on {compute}: the same data, other rounding.")
    return int(state["step"])


def _checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def _random_states(device: torch.device, world: World) -> dict[str, Tensor]:
    """Of every process."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {f"{name}.{rank}": state for name in states for rank, state in enumerate(world.gather(states[name]))}
