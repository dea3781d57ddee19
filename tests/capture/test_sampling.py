"""Fresh inputs: new values, but everything that must match the example does."""

from __future__ import annotations

import math

import torch

from torchrlopt.capture.sampling import extreme_inputs, random_inputs


def test_random_inputs_keep_kind_and_layout() -> None:
    image = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    ids = torch.randint(10, 1000, (4, 16))
    mask = torch.tensor([[0.0, -float("inf")], [0.0, 0.0]])
    flags = torch.tensor([True, False, True])
    expanded = torch.randn(1, 4).expand(3, 4)
    strided = torch.randn(4, 10)[:, ::2]
    examples = [image, ids, mask, flags, expanded, strided, 17, torch.ones(0, 2)]
    fresh = random_inputs(examples, (), seed=0)
    for old, new in zip(examples, fresh, strict=True):
        if isinstance(old, torch.Tensor):
            assert (old.shape, old.dtype, old.stride()) == (new.shape, new.dtype, new.stride())
    assert not torch.equal(fresh[0], image)
    assert (fresh[0] >= 0).all()
    assert torch.equal(fresh[1].flatten().sort().values, ids.flatten().sort().values)
    assert torch.equal(fresh[2].flatten().sort().values, mask.flatten().sort().values)
    assert fresh[3].sum() == 2
    assert fresh[6] == 17
    again = random_inputs(examples, (), seed=0)
    assert torch.equal(fresh[0], again[0])
    assert not torch.equal(fresh[0], random_inputs(examples, (), seed=1)[0])


def test_constant_weights_get_noise_and_others_stay() -> None:
    zeros, usual, scalar = torch.zeros(8), torch.randn(8), torch.tensor(2.0)
    state = torch.get_rng_state()
    fresh = random_inputs([zeros, usual, scalar], (0, 1, 2), seed=0)
    assert (fresh[0] >= 0).all()
    assert fresh[0].std() > 0
    assert fresh[1].data_ptr() == usual.data_ptr()
    assert torch.equal(fresh[2], scalar)
    assert torch.equal(state, torch.get_rng_state()), "torch's generator is not touched"


def test_extreme_inputs_are_so_row_by_row() -> None:
    x = torch.randn(4, 6, 32, 5, generator=torch.Generator().manual_seed(0)).to(
        memory_format=torch.channels_last
    )
    weight, ids, mask = torch.randn(8, 4), torch.arange(12), torch.tensor([0.0, 1.0, 1.0, 0.0])
    inputs = [weight, x, ids, mask, 17]
    found = extreme_inputs(inputs, inputs, (0,))
    assert found is not None
    assert [new is old for new, old in zip(found, inputs, strict=True)] == [True, False, True, True, True]
    offset, wide, outlier, tiny = (row.double() for row in found[1])
    assert found[1].stride() == x.stride()
    assert offset.mean() > 500 * offset.std()
    assert wide.std() > 20
    assert bool((wide[0] == wide[0, 0, 0]).all()), "a constant row"
    assert set(outlier[-1].flatten().tolist()) == {0.0, 1.0}
    assert outlier[0].abs().mean() > 1000 * outlier[1].abs().mean()
    assert outlier.abs().max() > 1e4
    assert tiny.abs().min() < 1e-9 < 1e-4 < tiny.abs().max()


def test_probabilities_stay_probabilities() -> None:
    for sign, low in ((1, 0.0), (-1, -math.inf)):
        x = sign * torch.rand(4, 8, 8)
        (found,) = extreme_inputs([x], [x], ()) or [x]
        assert low <= float(found.min())
        assert (float(found.max()) <= 1) == (sign == 1)
        assert bool(found.isfinite().all())
    half = torch.rand(4, 8).to(torch.float16) * 100
    (found,) = extreme_inputs([half], [half], ()) or [half]
    assert bool(found.isfinite().all())
    assert float(found.min()) >= 0, "as all of the example's"


def test_where_nothing_can_be_extreme() -> None:
    for inputs in ([torch.arange(8)], [torch.randn(3)], [torch.ones(0, 8)], [torch.eye(8)], [7]):
        assert extreme_inputs(inputs, inputs, ()) is None
    weight = torch.randn(8, 8)
    assert extreme_inputs([weight], [weight], (0,)) is None
