"""Creates the peer of a case; a peer's framework is imported only for it, so that peak memory is its own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

from baselines.peers.case import OURS, PEERS, ROUNDED_PEERS, Case
from baselines.peers.peer import Peer

# Packages that are not in the extra `baselines`, by peer.
_OPTIONAL = {
    "openvino": "openvino",
    "openvino_default": "openvino",
    "openvino_int8": "nncf",
    "inductor_int8": "torchao",
}
_CLASSES = {
    "onnxruntime": "runtimes:OnnxRuntimePeer",
    "onnxruntime_int8": "runtimes:OnnxRuntimePeer",
    "openvino": "runtimes:OpenVinoPeer",
    "openvino_default": "runtimes:OpenVinoPeer",
    "openvino_int8": "runtimes:OpenVinoPeer",
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
    known = (*PEERS, *ROUNDED_PEERS)
    if case.device == "cpu" and case.peer not in known:
        raise ValueError(f"no peer named {case.peer!r}; choose one of: {', '.join(known)}")
    on_cpu = _CLASSES.get(case.peer, "pytorch:TorchPeer")
    module, name = ("cuda:CudaPeer" if case.device == "cuda" else on_cpu).split(":")
    made: Peer = getattr(importlib.import_module(f"baselines.peers.{module}"), name)(case, folder)
    return made


def installed_peers(peers: Sequence[str] = PEERS) -> tuple[str, ...]:
    """Those of the peers that can run here, because their optional packages are installed."""
    return tuple(peer for peer in peers if peer not in _OPTIONAL or importlib.util.find_spec(_OPTIONAL[peer]))
