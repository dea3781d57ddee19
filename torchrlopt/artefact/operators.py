"""The operators of PyTorch that a file may name, without their overloads.

They compute new tensors of tensors, numbers and names of modes, in memory that they check or allocate. Those
are left out that read files, draw random numbers, turn data into Python numbers, or trust an index without
looking. `checked` has what some operators leave to their callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.eager.kernels.packing import MOST_TRANSPOSED_STRIDE

_ELEMENTWISE = (
    "abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_left_shift "
    "bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min cos "
    "cosh div elu eq erf exp expm1 floor fmod ge gelu gt hardshrink hardsigmoid hardswish hardtanh "
    "isinf isnan isneginf isposinf le leaky_relu lerp log log10 log1p log2 logical_and logical_not "
    "logical_or logical_xor lt maximum minimum mish mul nan_to_num ne neg pow reciprocal relu "
    "remainder round rsqrt rsub sgn sigmoid sign silu sin sinh softplus softshrink sqrt square sub "
    "tan tanh threshold masked_fill trunc where"
)
_OTHERS = (
    "_adaptive_avg_pool2d _adaptive_avg_pool3d _addmm_activation _embedding_bag _fused_rms_norm "
    "_log_softmax _native_batch_norm_legit_no_training _prelu_kernel _safe_softmax "
    "_scaled_dot_product_flash_attention_for_cpu _softmax _to_copy _unsafe_view _upsample_bicubic2d_aa "
    "_upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _weight_norm_interface addmm alias amax amin aminmax any arange argmax "
    "argmin as_strided avg_pool1d avg_pool2d avg_pool3d baddbmm bmm cat channel_shuffle chunk clone "
    "constant_pad_nd contiguous convolution copy cummax cummin cumprod cumsum detach diagonal dot "
    "einsum embedding empty_strided expand fill flip full full_like gather glu grid_sampler_2d "
    "grid_sampler_3d index index_put index_select kthvalue linalg_vector_norm linear "
    "log_sigmoid_forward logcumsumexp logsumexp matmul max max_pool1d max_pool2d_with_indices "
    "max_pool3d_with_indices mean median min mm mode mv native_channel_shuffle native_group_norm "
    "native_layer_norm new_full new_ones new_zeros ones ones_like permute pixel_shuffle prod "
    "reflection_pad1d reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad1d "
    "replication_pad2d replication_pad3d reshape roll scalar_tensor scaled_dot_product_attention "
    "scatter scatter_add scatter_reduce select select_scatter slice slice_scatter sort split "
    "split_with_sizes squeeze stack std sum t topk transpose tril triu unbind unfold unsafe_split "
    "unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean view zeros zeros_like"
)

NAMES = {
    "aten": frozenset(
        [*_ELEMENTWISE.split(), *(f"{name}_" for name in _ELEMENTWISE.split()), *_OTHERS.split()]
    ),
    "mkldnn": frozenset(
        (
            "_convolution_pointwise",
            "_convolution_transpose_pointwise",
            "_linear_pointwise",
            "_reorder_convolution_weight",
            "_reorder_convolution_transpose_weight",
            "_reorder_linear_weight",
        )
    ),
    "torchrlopt": frozenset({"recurrent"}),
}
"""The names by namespace; elementwise operators also in their in-place forms."""


def _check_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any, **named: Any) -> None:
    mask = named.get("attn_mask")
    if q.dim() != 4 or q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3]:
        raise _do_not_fit(q, k, v)
    if mask is not None:
        mask.expand(*q.shape[:3], k.shape[2])  # raises


def _check_batch_norm(x: torch.Tensor, *others: Any) -> None:
    if x.dim() < 2 or any(each is not None and each.shape != x.shape[1:2] for each in others[:4]):
        raise _do_not_fit(x, *(each for each in others[:4] if each is not None))


def _check_bags(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> None:
    is_list = weight.dim() == 2 and indices.dim() == offsets.dim() == 1 and offsets.numel() > 0
    if not is_list or offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise _do_not_fit(weight, indices, offsets)
    left = indices.numel() - int(offsets[-1])
    if left < 0 or (include_last_offset and left):
        raise _do_not_fit(weight, indices, offsets)


def _check_group_norm(
    x: torch.Tensor, weight: Any, bias: Any, batch: int, channels: int, pixels: int, *others: Any
) -> None:
    if min(batch, channels, pixels) < 0 or x.numel() != batch * channels * pixels:
        raise _do_not_fit(x)
    if not all(
        each is None or (each.is_contiguous() and each.numel() == channels) for each in (weight, bias)
    ):
        raise _do_not_fit(x)  # they are read by their first address


def _check_weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> None:
    is_dense = v.is_contiguous() and g.is_contiguous()
    if dim not in (0, v.dim() - 1) or g.numel() != v.shape[dim] or not is_dense:
        raise _do_not_fit(v, g)


def _check_resize(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None) -> None:
    """The window over which pixels are averaged is as wide as a scale says."""
    for given, old, new in zip(scales, x.shape[2:], sizes, strict=False):
        if given is not None and not new <= given * old * 2 <= 4 * (new + 1):
            raise UnsupportedError("a scale is not that of the sizes", expected=new / max(old, 1), got=given)


def _check_quotient(a: Any, b: Any, *, rounding_mode: str | None = None, **others: Any) -> None:
    """The lowest integer by -1 ends the process."""
    if rounding_mode != "trunc" or a.is_floating_point() or a.dtype is torch.bool:
        return
    if bool(((a == torch.iinfo(a.dtype).min) & (torch.as_tensor(b) == -1)).any()):
        raise UnsupportedError("a quotient has no value", got=f"{torch.iinfo(a.dtype).min} by -1")


def _check_transposed(
    x: Any, weight: Any, bias: Any, padding: Any, output_padding: Any, stride: list[int], *others: Any
) -> None:
    if max(stride, default=0) > MOST_TRANSPOSED_STRIDE:
        raise UnsupportedError(
            "a stride is too large", expected=f"at most {MOST_TRANSPOSED_STRIDE}", got=max(stride)
        )


def _check_packed(x: Any, weight: Any, *others: Any, **named: Any) -> None:
    if weight is None:
        raise UnsupportedError("a kernel has no weight")


def _do_not_fit(*tensors: torch.Tensor) -> UnsupportedError:
    return UnsupportedError("operands do not fit each other", got=[tuple(each.shape) for each in tensors])


_CHECKS: dict[str, Callable[..., None]] = {
    "div": _check_quotient,
    "div_": _check_quotient,
    "_upsample_bicubic2d_aa": _check_resize,
    "_upsample_bilinear2d_aa": _check_resize,
    "_embedding_bag": _check_bags,
    "_convolution_transpose_pointwise": _check_transposed,
    "_scaled_dot_product_flash_attention_for_cpu": _check_attention,
    "convolve": _check_packed,
    "linear": _check_packed,
    "_native_batch_norm_legit_no_training": _check_batch_norm,
    "_weight_norm_interface": _check_weight_norm,
    "native_group_norm": _check_group_norm,
}
"""What these operators do not check: they would read beyond the memory of an operand, or crash."""

SIZED = frozenset(
    {"empty_strided", "expand", "full", "ones", "zeros", "new_full", "new_ones", "new_zeros", "repeat"}
    | {"room_for"}
)
"""What makes tensors of sizes that a call names, as a list or one by one."""


def checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of an operator with all checks.

    Args:
        name: of the operator, without its namespace and overload.
        function: an overload of it, or its builtin.
    """
    check = _CHECKS.get(name)
    if check is None:
        return function

    def run(*args: Any, **named: Any) -> Any:
        check(*args, **named)
        return function(*args, **named)

    return run
