"""Creates the peer of a case; a peer's framework is imported only for it, so that peak memory is its own."""

from __future__ import annotations

import importlib
import importlib.util

from baselines.peers.case import OURS, PEERS, Case
from baselines.peers.peer import Peer

# Peers whose package, of the same name, is not in the extra `baselines`.
_OPTIONAL = {"openvino"}
_CLASSES = {
    "onnxruntime": "runtimes:OnnxRuntimePeer",
    "openvino": "runtimes:OpenVinoPeer",
    OURS: "rlopt:RlOptPeer",
}
"""Modules of this package and their classes; the other peers are PyTorch's."""


def make_peer(case: Case, folder: str) -> Peer:
    """Create the peer of a case without compiling anything.

    Args:
        case: What to make.
        folder: An empty folder for the peer's files.

    Raises:
        ValueError: There is no such peer.
    """
    if case.device == "cpu" and case.peer not in PEERS:
        raise ValueError(f"no peer named {case.peer!r}; choose one of: {', '.join(PEERS)}")
    on_cpu = _CLASSES.get(case.peer, "pytorch:TorchPeer")
    module, name = ("cuda:CudaPeer" if case.device == "cuda" else on_cpu).split(":")
    made: Peer = getattr(importlib.import_module(f"baselines.peers.{module}"), name)(case, folder)
    return made


def installed_peers() -> tuple[str, ...]:
    """The peers that can run here: those whose optional packages are installed."""
    return tuple(
        peer for peer in PEERS if peer not in _OPTIONAL or importlib.util.find_spec(peer) is not None
    )
