"""Makes the peer of a case; what a peer runs on is imported only for it: its peak memory is its own."""

from __future__ import annotations

import importlib.util

from baselines.peers.case import OURS, PEERS, Case
from baselines.peers.peer import Peer

# Peers that need a package which torchrlopt's own extras do not bring.
_OPTIONAL = {
    "openvino": "openvino",
    "tensorflow": "tensorflow",
    "tensorflow_plain": "tensorflow",
    "tvm": "tvm",
}


def make_peer(case: Case, folder: str) -> Peer:
    """Makes the peer of a case; nothing is compiled yet.

    Args:
        case: What to make.
        folder: An empty folder for the peer's files.

    Raises:
        ValueError: There is no such peer.
    """
    if case.device == "cuda":
        from baselines.peers.cuda import CudaPeer

        return CudaPeer(case)
    if case.peer not in PEERS:
        raise ValueError(f"no peer named {case.peer!r}; choose one of: {', '.join(PEERS)}")
    if case.peer in ("onnxruntime", "openvino"):
        from baselines.peers.runtimes import OnnxRuntimePeer, OpenVinoPeer

        return OnnxRuntimePeer(case, folder) if case.peer == "onnxruntime" else OpenVinoPeer(case, folder)
    if case.peer.startswith("tensorflow"):
        from baselines.peers.tensorflow import TensorFlowPeer

        return TensorFlowPeer(case, folder)
    if case.peer == "tvm":
        from baselines.peers.tvm import TvmPeer

        return TvmPeer(case, folder)
    if case.peer == OURS:
        from baselines.peers.rlopt import RlOptPeer

        return RlOptPeer(case)
    from baselines.peers.pytorch import TorchPeer

    return TorchPeer(case)


def installed_peers() -> tuple[str, ...]:
    """The peers that can run here: those whose optional packages are installed."""
    return tuple(
        peer
        for peer in PEERS
        if peer not in _OPTIONAL or importlib.util.find_spec(_OPTIONAL[peer]) is not None
    )
