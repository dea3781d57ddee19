"""Avoids holding weights twice: originals whose packed copies are in use move to files, read back on access.

A file is deleted as soon as it is mapped, so nothing is left behind; its pages take memory only when they are
read. Nothing else about a weight changes: it is the same object with the same numbers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from torchrlopt.executors.registry import Lowered
from torchrlopt.storage.directory import default_directory, make_private
from torchrlopt.torch_private.tensors import num_storage_holders


def weights_facts(inputs: Sequence[Any], static: Iterable[int], lowered: Lowered) -> dict[str, Any]:
    """Return the bytes of the weights, and of what was made from them, for the report."""
    weights = [inputs[at] for at in static if isinstance(inputs[at], torch.Tensor)]
    packed = getattr(lowered, "packed", None)
    if packed is None:
        return {"weight_bytes": _num_bytes(weights)}
    own = {_memory(weight) for weight in weights}
    others = (each for each in packed if _memory(each) not in own)
    return {"weight_bytes": _num_bytes(weights), "packed_bytes": _num_bytes(others)}


def release(inputs: Sequence[Any], static: Collection[int], lowered: Lowered) -> int:
    """Move the originals that no call reads any more to files.

    Only CPU tensors that do not share their memory are moved.

    Returns:
        The number of bytes moved.

    Raises:
        OSError: a file cannot be written; weights moved before stay moved, and are right.
    """
    unread: Collection[int] = getattr(lowered, "unread", ())
    held = {_memory(each) for each in getattr(lowered, "packed", None) or ()}
    read = {_memory(inputs[at]) for at in static if at not in unread}
    folder = default_directory()
    make_private(folder)
    num_bytes = 0
    for at in sorted(set(static).intersection(unread)):
        weight = inputs[at]
        if _is_alone(weight) and _memory(weight) not in held | read:
            weight.data = _mapped(weight.detach(), folder)
            num_bytes += weight.nbytes
    return num_bytes


def _is_alone(weight: Any) -> bool:
    """Whether its memory is not shared: a view, an array or a state_dict would keep the old memory."""
    return (
        isinstance(weight, torch.Tensor)
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and weight.numel() > 0
        and weight.untyped_storage().nbytes() == weight.nbytes
        and not weight.untyped_storage().is_shared()
        and num_storage_holders(weight.untyped_storage()) == 2  # the weight, and our handle of it
    )


def _mapped(weight: torch.Tensor, folder: os.PathLike[str]) -> torch.Tensor:
    """Map a weight's numbers from an unnamed file. Writes go to memory, not to the file.

    Not by `torch.from_file`: its mappings count as shared between processes, and are not copied for them.
    """
    with tempfile.TemporaryFile(dir=folder, prefix="weight") as file:
        weight.view(-1).view(torch.uint8).numpy().tofile(file)
        file.flush()
        pages = mmap.mmap(file.fileno(), weight.nbytes, access=mmap.ACCESS_COPY)
    return torch.frombuffer(pages, dtype=weight.dtype).view(weight.shape)


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors, counting each memory once."""
    return sum({_memory(each): each.nbytes for each in tensors}.values())


def _memory(tensor: torch.Tensor) -> int:
    """Return an identifier of a tensor's memory. Packed tensors show no address."""
    return id(tensor) if tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()
