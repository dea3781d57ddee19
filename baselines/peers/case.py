"""Names of the peers, and the case that one of them is measured on."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "torchrlopt"

#: Names of the peers on the CPU, in the order of reports; the first is the baseline of every ratio.
PEERS: tuple[str, ...] = (
    "eager",
    "inductor",
    "inductor_freezing",
    "onnxruntime",
    "openvino",
    OURS,
)

#: Peers that compute float32 models in lower precision, whose results are less accurate by intent.
ROUNDED_PEERS: tuple[str, ...] = (
    "eager_autocast",
    "inductor_autocast",
    "inductor_int8",
    "onnxruntime_int8",
    "openvino_default",
    "openvino_int8",
)

#: Data types that a comparison can run in.
DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")

# torchrlopt's default options; a label names only what differs from them.
_DEFAULT_WEIGHTS, _DEFAULT_SEARCHER = "check", "agent"


@dataclass(frozen=True)
class Case:
    """One peer on one model.

    Attributes:
        model: Name in `baselines.models.NAMES` or in `baselines.trained.table.NAMES`.
        peer: One of `PEERS` or `ROUNDED_PEERS`, or on a GPU of `baselines.peers.cuda.CUDA_PEERS`.
        batch: Batch size of the inputs.
        dtype: One of `DTYPES`.
        threads: Threads of the peer's kernels.
        executor: torchrlopt's executor; empty for the others.
        weights: torchrlopt's option of that name; empty for the others.
        searcher: torchrlopt's searcher; empty for the others.
        device: "cpu", or "cuda".
        callers: Python threads that call at the same time.
        max_error: torchrlopt's option of that name, a number or "bfloat16"; empty for none.
    """

    model: str
    peer: str
    batch: int
    dtype: str
    threads: int
    executor: str = ""
    weights: str = ""
    searcher: str = ""
    device: str = "cpu"
    callers: int = 1
    max_error: str = ""

    @property
    def label(self) -> str:
        """The peer's name; for torchrlopt with its executor and its non-default options."""
        weights = "" if self.weights == _DEFAULT_WEIGHTS else self.weights
        searcher = "" if self.searcher == _DEFAULT_SEARCHER else self.searcher
        return "/".join(
            part for part in (self.peer, self.executor, weights, searcher, self.max_error) if part
        )

    @property
    def is_rounded(self) -> bool:
        """Whether the case trades accuracy for time."""
        return self.peer in ROUNDED_PEERS or bool(self.max_error)

    @property
    def budget(self) -> float:
        """The largest root mean square error that the case may have, in units of the output's."""
        return float("inf") if self.max_error in ("", "bfloat16") else float(self.max_error)


def is_ours(peer: str) -> bool:
    """Whether a peer, given by name or label, is torchrlopt in one of its settings."""
    return peer.startswith(OURS)
