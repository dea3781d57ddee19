"""Outputs in memory that something else holds are detected, and copied with their layout."""

from __future__ import annotations

import torch

from torchrlopt.executors.inductor import Memory, with_copies


def test_what_outlives_a_call_is_found() -> None:
    constant, argument = torch.ones(3, 4), torch.ones(3, 4)
    outputs = (torch.zeros(2), constant, constant[1:], argument.t(), torch.zeros(4).view(2, 2), None, 1)
    memory = Memory(outputs, [argument, 2])
    assert memory.kept() == (0, 1, 2, 4), "the outputs are held here"
    del outputs
    assert memory.kept() == (1, 2)


def test_copies_lie_and_share_as_what_they_are_copies_of() -> None:
    whole, gaps = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4)[:, ::2]
    outputs = (whole, whole.t(), whole, gaps, torch.ones(1).expand(3), None, torch.zeros(2))
    owned = with_copies(outputs, (0, 1, 2, 3, 4))
    for copy, output in zip(owned[:5], outputs[:5], strict=True):
        assert isinstance(copy, torch.Tensor)
        assert isinstance(output, torch.Tensor)
        assert torch.equal(copy, output)
        assert copy.stride() == output.stride()
        assert copy.untyped_storage().data_ptr() != output.untyped_storage().data_ptr()
        assert not copy._is_view()
    assert owned[2] is owned[0]
    owned[0].zero_()
    assert not owned[1].any()
    assert owned[5:] == outputs[5:]
