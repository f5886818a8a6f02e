"""Runs inside wrappers, cut off and continued, equal those that were not."""

import shutil

import pytest
import torch
from fit_all import KINDS, WRAPPED, resumed, whole
from running import folder, history, numbers


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_wrapped_run_goes_on_where_it_was_cut_off(kind, shared_folder, tmp_path):
    uncut = whole("FedEM", shared_folder, kind)
    shutil.copytree(uncut.cut, folder(tmp_path, "FedEM"))
    module, _ = resumed("FedEM", tmp_path, **KINDS[kind])
    assert history(folder(tmp_path, "FedEM")) == history(uncut.folder)
    assert numbers(folder(tmp_path, "FedEM")) == numbers(uncut.folder)
    state = module.state_dict()
    assert state.keys() == uncut.state.keys()
    assert all(torch.equal(leaf, uncut.state[name]) for name, leaf in state.items())
