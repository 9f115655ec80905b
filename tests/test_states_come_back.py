"""Offloaded states come back exactly: bits, layouts, sharing, objects, whatever is moved (G-11)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pinned_manager.states import OffloadStateTypeEnum, offload_states, reload_states
from support.states import PLACES, octets_of, picture, tensors_of, trainings

KINDS = st.one_of(st.none(), st.sets(st.sampled_from(list(OffloadStateTypeEnum))))


@pytest.mark.parametrize("place", PLACES)
@given(optimizer=trainings(), include=KINDS, pin_memory=st.booleans())
def test_any_states(
    disk: Path,
    place: str,
    optimizer: torch.optim.Optimizer,
    include: set[str] | None,
    pin_memory: bool,
) -> None:
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    offload_states(optimizer, include, place, pin_memory, nvme_path=disk)
    assert tensors_of(optimizer).keys() == tensors.keys()
    reload_states(optimizer)
    assert picture(tensors_of(optimizer)) == before


@given(optimizer=trainings(), moves=st.lists(st.tuples(st.sampled_from(PLACES), KINDS), max_size=4))
def test_any_moves(
    disk: Path, optimizer: torch.optim.Optimizer, moves: list[tuple[str, set[str] | None]]
) -> None:
    """From anywhere to anywhere, before it all comes home."""
    before = picture(tensors_of(optimizer))
    for place, include in moves:
        offload_states(optimizer, include, place, nvme_path=disk)
    reload_states(optimizer)
    assert picture(tensors_of(optimizer)) == before


@given(optimizer=trainings())
def test_host_memory_can_be_read(optimizer: torch.optim.Optimizer) -> None:
    """What was in host memory is there under way too, in locked pages."""
    before = picture(tensors_of(optimizer))
    offload_states(optimizer)
    under_way = picture(tensors_of(optimizer))
    assert {name: (seen.octets, seen.shares_with) for name, seen in under_way.items()} == {
        name: (seen.octets, seen.shares_with) for name, seen in before.items()
    }
    for name, tensor in tensors_of(optimizer).items():
        stays = tensor.numel() == 0 or ("state" in name and tensor.dim() == 0)
        assert under_way[name].pinned or stays, name
    with torch.no_grad():  # and changed: the change comes home
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.zero_()
    changed = {name: octets_of(tensor) for name, tensor in tensors_of(optimizer).items()}
    reload_states(optimizer)
    assert {name: octets_of(t) for name, t in tensors_of(optimizer).items()} == changed


def test_pinned_memory_comes_back_pinned(disk: Path) -> None:
    from pinned_manager import is_pinned, new_locked_tensor

    parameter = torch.nn.Parameter(new_locked_tensor(5000, torch.float32).fill_(2.5))
    optimizer = torch.optim.SGD([parameter])
    address = parameter.data_ptr()
    offload_states(optimizer)
    assert parameter.data_ptr() == address  # it is where it should be
    offload_states(optimizer, device="nvme", nvme_path=disk)
    assert parameter.numel() == 0
    reload_states(optimizer)
    assert is_pinned(parameter)
    assert bool((parameter == 2.5).all())


@pytest.mark.parametrize("place", PLACES)
def test_conjugated_and_inference_tensors(disk: Path, place: str) -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([parameter])
    values = torch.randn(10, dtype=torch.complex64)
    conjugated = values.clone().conj()
    negated = values.clone().conj().imag
    with torch.inference_mode():
        inferred = torch.randn(10)
    expected = [values.conj().resolve_conj(), -values.imag, inferred.clone()]
    optimizer.state[parameter] = {"a": [conjugated, negated, inferred]}
    with torch.inference_mode(), torch.device("meta"):  # of the caller: they do not leak in
        offload_states(optimizer, None, place, nvme_path=disk)
        reload_states(optimizer)
    for tensor, value in zip([conjugated, negated, inferred], expected, strict=True):
        assert torch.equal(tensor, value)
    assert conjugated.is_conj()
    assert negated.is_neg()
    assert inferred.is_inference()
    assert not parameter.is_inference()
