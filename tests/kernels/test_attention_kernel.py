"""Our attention kernel against float64, for all sizes, masks, strides and numbers of threads."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchrlopt
from tests.kernels.image_cases import rand
from tests.kernels.kernel_cases import check, threads
from torchrlopt import _C
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(
    indirect.kernels() is None or not _C.kernel_takes_attention(64, 64, 64, 64), reason="needs AVX-512"
)


DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if indirect.kernels(dtype) is not None]


def expected(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False, scale: float = 1.0
) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q.double() @ k.double().mT * scale
    if mask is not None:
        scores = scores + mask.double()
    if is_causal:
        unseen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(unseen, -math.inf)
    weights = scores.softmax(-1)
    return torch.where((scores == -math.inf).all(-1, keepdim=True), 0.0, weights) @ v.double()


def operand(batch: int, heads: int, rows: int, size: int, draw: random.Random) -> Tensor:
    """Of any of the layouts in which models have them."""
    kind = draw.choice(["heads first", "rows first", "part of a row"])
    if kind == "heads first":
        return rand(batch, heads, rows, size)
    if kind == "rows first":
        return rand(batch, rows, heads, size).transpose(1, 2)
    return (
        rand(batch, rows, heads * size + 7)[..., 3 : 3 + heads * size]
        .unflatten(2, (heads, size))
        .transpose(1, 2)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(60))
def test_any_sizes(seed: int, dtype: torch.dtype) -> None:
    draw = random.Random(seed)
    batch, key_heads, groups = draw.randint(1, 3), draw.randint(1, 3), draw.choice([1, 1, 2, 3])
    rows, keys = draw.choice([8, 13, 28, 29, 64, 100]), draw.choice([1, 5, 16, 17, 64, 100, 300])
    size, value_size = draw.choice([1, 7, 16, 32, 40, 64, 80]), draw.choice([1, 8, 16, 33, 64, 130])
    size += dtype is torch.bfloat16 and size % 2  # which is read in pairs
    heads = key_heads * groups
    q, k = operand(batch, heads, rows, size, draw), operand(batch, key_heads, keys, size, draw)
    v = operand(batch, key_heads, keys, value_size, draw)
    is_causal = draw.random() < 0.3
    mask = None
    if not is_causal and draw.random() < 0.6:
        sizes = [draw.choice([1, n]) for n in (batch, heads, rows, keys)][draw.randint(0, 3) :]
        mask = rand(*sizes) * draw.choice([1.0, 30.0])
        mask = torch.where(rand(*sizes) > 1.0, -math.inf, mask).to(dtype)
    q, k, v = (each.to(dtype) for each in (q, k, v))
    scale = 1 / math.sqrt(size)
    results = []
    for count in (1, 2, 5):
        with threads(count):
            results.append(indirect.attend(q, k, v, mask, is_causal, scale, False))
    if not _C.kernel_takes_attention(rows, keys, size, value_size, str(dtype).removeprefix("torch.")):
        assert results == [None, None, None]
        return
    assert results[0] is not None
    assert all(torch.equal(each, results[0]) for each in results if each is not None)
    wanted = expected(q, k, v, mask, is_causal, scale)
    # In bfloat16 a weight is rounded before it is multiplied, and so is the result.
    terms = expected(q, k, v.abs(), mask, is_causal, scale) + wanted.abs()
    most = 5e-6 if dtype is torch.float32 else 2**-8 * terms + 1e-5
    assert ((results[0].double() - wanted).abs() <= most).all()
    assert results[0].transpose(1, 2).is_contiguous()
    by_heads = indirect.attend(q, k, v, mask, is_causal, scale, True)
    assert by_heads is not None
    assert by_heads.is_contiguous()
    assert torch.equal(by_heads, results[0])


def test_what_is_not_finite() -> None:
    """A score of NaN or infinity spoils the queries that see it, a value what it is summed up to."""
    q, k, v = rand(2, 3, 40, 16), rand(2, 3, 50, 16), rand(2, 3, 50, 24)
    alone = indirect.attend(q, k, v, None, False, 0.25, False)
    assert alone is not None
    for value in (math.nan, math.inf, -math.inf):
        left, right = q.clone(), v.clone()
        left[1, 2, 5, 3], right[0, 1, 7, 9] = value, value
        got = indirect.attend(left, k, right, None, False, 0.25, False)
        assert got is not None
        theirs = F.scaled_dot_product_attention(left, k, right, scale=0.25)
        torch.testing.assert_close(got, theirs, equal_nan=True, rtol=1e-5, atol=1e-5)
        others = torch.ones_like(alone, dtype=torch.bool)
        others[1, 2, 5], others[0, 1, :, 9] = False, False
        assert torch.equal(got[others], alone[others])


def test_large_scores_do_not_overflow() -> None:
    q, k, v = rand(1, 2, 30, 16) * 1e3, rand(1, 2, 30, 16) * 1e3, rand(1, 2, 30, 16)
    got = indirect.attend(q, k, v, None, False, 0.25, False)
    assert got is not None
    assert (got - expected(q, k, v, scale=0.25)).abs().max() < 0.2  # of rounding the scores
    assert bool(got.isfinite().all())


def test_what_is_not_read_goes_to_aten() -> None:
    few, wide = rand(1, 2, 3, 16), rand(1, 2, 16, 30).mT
    k, v = rand(1, 1, 20, 16), rand(1, 1, 20, 16)
    for q in (few, wide):
        assert indirect.attend(q, k, v, None, False, 0.25, False) is None
        got = indirect.attention(q, k, v, None, False, 0.25, True)
        assert (got - expected(q, k, v, scale=0.25)).abs().max() < 5e-6
    long = rand(1, 1, 20000, 64)
    assert indirect.attend(rand(1, 1, 8, 64), long, long, None, False, 1.0, False) is None
    with pytest.raises(ValueError, match="do not fit together"):
        indirect.attend(rand(1, 3, 8, 16), rand(1, 2, 8, 16), rand(1, 2, 8, 16), None, False, 1.0, False)
    with pytest.raises(ValueError, match="does not fit the scores"):
        indirect.attend(
            rand(1, 2, 8, 16), rand(1, 2, 9, 16), rand(1, 2, 9, 16), rand(8, 8), False, 1.0, False
        )


def sdpa(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, *mask)


@pytest.mark.parametrize("kind", ["none", "float", "bool", "causal", "repeated", "few", "half"])
def test_it_takes_the_place_of_atens(kind: str) -> None:
    shape = (2, 4, 3 if kind == "few" else 24, 32)
    q, k, v = rand(*shape), rand(2, 4, 30, 32), rand(2, 4, 30, 32)
    given: list[Tensor] = [q, k, v]
    function: Any = sdpa
    if kind == "float":
        given.append(rand(24, 30))
    if kind == "bool":
        given.append(rand(2, 1, 24, 30) > 0.5)
    if kind == "causal":
        given = [q, rand(*shape), rand(*shape)]
        function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    if kind == "repeated":
        given = [q, rand(2, 2, 30, 32), rand(2, 2, 30, 32)]
        function = lambda q, k, v: sdpa(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))  # noqa: E731
    if kind == "half":
        given = [each.half() for each in given]
    prepared = check(function, given, static=[])
    counted = inventory(prepared.split.main.graph)
    assert counted.packed.get("attention", 0) == (kind not in ("few", "half"))
    assert counted.plain.get("attention", 0) + counted.packed.get("attention", 0) <= 1
    if kind == "repeated":
        assert prepared.count("repeat_interleave") == 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_all, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.of_all(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
        z: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return z


@pytest.mark.parametrize("numerics", ["real", "strict"])
def test_through_the_product_interface(numerics: str) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    x, mask = torch.randn(3, 40, 64), torch.arange(40) < torch.tensor([[40], [13], [1]])
    fast = torchrlopt.optimise(
        model, (x, mask), executor="eager", numerics=numerics, measure=False, cache=False
    )
    compiled = torch.compile(model, backend="rlopt", dynamic=True)
    with torch.no_grad():
        for length in (40, 40, 9, 77, 3):
            given = torch.randn(3, length, 64), torch.arange(length) < torch.tensor([[length], [2], [1]])
            torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast(x, mask), model(x, mask), rtol=1e-4, atol=1e-5)
