import torch, fit_all
from functools import partial
from fit_all import *
from running import in_two_ranks, numbers, history
def both(out):
    module, trainer = fit("FedEM", out/"two", **RUN, **KINDS["masks"], devices=2, strategy="fed_ddp")
    if trainer.is_global_zero: torch.save(module.state_dict(), out/"two.pt")
def test_ranks(tmp_path):
    in_two_ranks(partial(both, tmp_path), timeout=500)
    module, _ = fit("FedEM", tmp_path/"one", **RUN, **KINDS["masks"])
    state = torch.load(tmp_path/"two.pt", weights_only=True)
    assert all(torch.equal(leaf, state[k]) for k, leaf in module.state_dict().items())
    assert numbers(folder(tmp_path/"one","FedEM")) == numbers(folder(tmp_path/"two","FedEM"))
