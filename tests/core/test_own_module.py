"""A LightningModule's own steps, federated, against plain loops over the same module, which know no lit_fed."""

import copy

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from own_modules import (
    LitAutoEncoder,
    LitClassifier,
    LitSegmenter,
    LitText,
    LitWithLosses,
    Texts,
    loss_of,
    mean_of,
    padded,
    trained,
)
from quiet import assert_same_state, quiet_trainer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from lit_fed import Digits, Ditto, FedAvg, FedEM, FederatedDataModule, FederatedModule, LocalSolver, OwnLoss
from lit_fed.core import tree
from lit_fed.core.plan import plan_of
from lit_fed.core.types import LocalWork

ROUNDS = 2


def pairs():
    samples, clients, at = Digits().load(), {}, 0
    for name, size in {"anna": 40, "bela": 33, "cleo": 21}.items():  # the 33rd sample is a batch of its own
        clients[name] = samples.x[at : at + size].reshape(size, 64), samples.y[at : at + size]
        at += size
    return FederatedDataModule.from_clients(clients, batch_size=16, test_fraction=0.0, num_classes=10)


def texts(num_clients=3):
    loaders = {f"client {one}": DataLoader(Texts(9 + one, one), collate_fn=padded) for one in range(num_clients)}
    return FederatedDataModule.from_clients(loaders, batch_size=4, test_fraction=0.2)


def pictures():
    rng, clients = torch.Generator().manual_seed(0), {}
    for name, size in {"anna": 9, "bela": 6, "cleo": 5}.items():
        x = torch.randn(size, 1, 4, 6, generator=rng)
        clients[name] = x, (x[:, 0] > -0.5).long() + (x[:, 0] > 0.5)
    return FederatedDataModule.from_clients(clients, batch_size=4, test_fraction=0.2)


CASES = {
    "classifier": (LitClassifier, pairs, {}),
    "text": (LitText, texts, {}),
    "autoencoder": (LitAutoEncoder, pairs, {"target": OwnLoss()}),
    "masks": (LitSegmenter, pictures, {}),
}


def federated(algorithm, network, data, **settings):
    module = FederatedModule(algorithm, network=network, **settings)
    quiet_trainer(ROUNDS).fit(module, data)
    return module


def modules_of(network, models):
    """A module for each of M stacked models."""
    found = []
    for m in range(len(next(iter(models.parameters.values())))):
        one = network()
        one.load_state_dict(
            {name: leaf.clone() for name, leaf in tree.index(models.parameters | models.buffers, m).items()}
        )
        found.append(one)
    return found


def samples_of(module, data, client):
    """All training samples of a client, as one batch that the module's steps read."""
    own, some = module.federation.terms.task.own, data.seen.train.client(client)
    return own.batch(some.all_x, some.all_y)


def rows_of(module, data, client, round_idx):
    """Positions of the samples of each local step of a client."""
    ctx = module.federation.context("train")._replace(round_idx=round_idx)
    plan = plan_of(ctx, LocalWork(epochs=1), [client], [int(data.seen.train.sizes[client])])
    counts = plan.counts[0].tolist()
    return [plan.index[0, step, 0, :count] for step, count in enumerate(counts) if count]


def batches(module, data, client, round_idx):
    whole = samples_of(module, data, client)
    return [tree_map(lambda leaf, rows=rows: leaf[rows], whole) for rows in rows_of(module, data, client, round_idx)]


def assert_close(models, modules, within=1e-6):
    for m, one in enumerate(modules):
        state = one.state_dict()
        for name, leaf in tree.index(models.parameters | models.buffers, m).items():
            torch.testing.assert_close(
                leaf, state[name], rtol=0, atol=within, msg=lambda said, name=name: f"{name}: {said}"
            )


@pytest.mark.parametrize("case", CASES)
def test_fedavg_is_the_plain_loop(case):
    network, make, settings = CASES[case]
    data = make()
    module = federated(FedAvg(), network, data, **settings)
    (shared,) = modules_of(network, module.federation.server.initial_shared.models)
    sizes = data.seen.train.sizes.tolist()
    for round_idx in range(ROUNDS):
        rate = scheduled(shared, round_idx)
        each = [
            trained(shared, batches(module, data, one, round_idx), epoch=round_idx, lr=rate)
            for one in range(len(sizes))
        ]
        shared = mean_of(each, sizes)
    assert_close(module.federation.shared.models, [shared])


def scheduled(module, round_idx):
    """The rate of a round, by the module's own scheduler stepped once an epoch; None: it has none."""
    found = copy.deepcopy(module).configure_optimizers()
    if not isinstance(found, tuple):
        return None
    (optimizer,), (scheduler,) = found
    for _ in range(round_idx):
        optimizer.step()
        scheduler.step()
    return optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("case", CASES)
def test_ditto_is_the_plain_loop(case):
    network, make, settings = CASES[case]
    data, pull = make(), 0.5
    module = federated(Ditto(prox_weight=pull), network, data, **settings)
    (shared,) = modules_of(network, module.federation.server.initial_shared.models)
    sizes = data.seen.train.sizes.tolist()
    personal = [copy.deepcopy(shared) for _ in sizes]
    for round_idx in range(ROUNDS):
        received = {name: leaf.detach().clone() for name, leaf in shared.named_parameters()}

        def pulled(one, batch, epoch, received=received):
            away = sum((leaf - received[name]).square().sum() for name, leaf in one.named_parameters())
            return loss_of(one, batch, epoch) + pull / 2 * away

        common = {"epoch": round_idx, "lr": scheduled(shared, round_idx)}
        given = [batches(module, data, one, round_idx) for one in range(len(sizes))]
        personal = [trained(one, some, loss=pulled, **common) for one, some in zip(personal, given, strict=True)]
        shared = mean_of([trained(shared, some, **common) for some in given], sizes)
    assert_close(module.federation.shared.models, [shared])
    states = module.store.gather(torch.arange(len(sizes)))["state"]
    for client, one in enumerate(personal):
        assert_close(tree.row(states, client), [one])


@pytest.mark.parametrize("case", ["group norm", "sample losses", "text", "autoencoder", "masks"])
def test_fedem_is_the_plain_loop(case):
    network, make, settings = CASES.get(case, (None, pairs, {}))
    if network is None:
        kind = LitWithLosses if case == "sample losses" else LitClassifier
        norm = "batch" if case == "sample losses" else "group"

        def network():
            return kind(norm=norm)

    data = make()
    module = federated(FedEM(num_components=2), network, data, **settings)
    components = modules_of(network, module.federation.server.initial_shared.models)
    sizes = data.seen.train.sizes.tolist()
    mixtures = [torch.full((2,), 0.5) for _ in sizes]
    for round_idx in range(ROUNDS):
        rate, found = scheduled(components[0], round_idx), []
        for client in range(len(sizes)):
            whole, rows = samples_of(module, data, client), rows_of(module, data, client, round_idx)
            with torch.no_grad():
                losses = torch.stack([sample_losses(one.eval(), whole, round_idx) for one in components], 1)
            q = (mixtures[client].log() - losses).softmax(1)
            mixtures[client] = q.mean(0)
            found.append([
                trained(
                    one, [(some, q[some, m]) for some in rows], epoch=round_idx, lr=rate,
                    loss=lambda one, batch, epoch, whole=whole: weighted(one, whole, *batch, epoch),
                )
                for m, one in enumerate(components)
            ])  # fmt: skip
        components = [mean_of([each[m] for each in found], sizes) for m in range(2)]
    # Adam divides by roots of squares that are themselves near rounding
    assert_close(module.federation.shared.models, components, within=2e-5 if case == "autoencoder" else 2e-6)
    states = module.store.gather(torch.arange(len(sizes)))["state"]
    torch.testing.assert_close(states.mixture, torch.stack(mixtures), rtol=0, atol=2e-6)


def sample_losses(one, batch, epoch):
    """The loss of each sample: its own method, or `training_step` on each alone."""
    if hasattr(one, "sample_losses"):
        return one.sample_losses(batch)
    size = len(next(iter(batch.values())) if isinstance(batch, dict) else batch[0])
    alone = [tree_map(lambda leaf, row=row: leaf[row : row + 1], batch) for row in range(size)]
    return torch.stack([loss_of(one, some, epoch) for some in alone])


def weighted(one, whole, rows, weight, epoch):
    """The loss of an M-step: the sum of weighted losses over the number of samples."""
    batch = tree_map(lambda leaf: leaf[rows], whole)
    return (weight * sample_losses(one, batch, epoch)).sum() / len(rows)


def test_a_resumed_run_is_the_whole_one(tmp_path):
    whole = federated(FedEM(num_components=2), lambda: LitClassifier(norm="group"), pairs())
    first = FederatedModule(FedEM(num_components=2), network=lambda: LitClassifier(norm="group"))
    quiet_trainer(1, tmp_path).fit(first, pairs())
    again = FederatedModule(FedEM(num_components=2), network=lambda: LitClassifier(norm="group"))
    quiet_trainer(ROUNDS, tmp_path).fit(again, pairs(), ckpt_path="last")
    assert_same_state(again, whole)


def test_one_client_is_trainer_fit():
    """Three epochs of one client, whose optimizer goes on, are those of Lightning on the same batches."""
    for case in CASES:
        network, make, settings = CASES[case]
        data = one_client(make())
        module = FederatedModule(FedAvg(), LocalSolver(persist_optimizer=True), network, **settings)
        quiet_trainer(3).fit(module, data)
        (alone,) = modules_of(network, module.federation.server.initial_shared.models)
        epochs = [batches(module, data, 0, round_idx) for round_idx in range(3)]
        loader = OfEpochs(alone, epochs)
        trainer = Trainer(
            max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, reload_dataloaders_every_n_epochs=1,
        )  # fmt: skip
        trainer.fit(alone, loader)
        # Adam divides by roots of squares that are themselves near rounding
        assert_close(module.federation.shared.models, [alone], within=1e-6 if case == "classifier" else 5e-6)


class OfEpochs(LightningDataModule):
    """The batches of each epoch."""

    def __init__(self, module, epochs):
        super().__init__()
        self.epochs = epochs

    def train_dataloader(self):
        return DataLoader(self.epochs[self.trainer.current_epoch], batch_size=None)


def one_client(data):
    """The data of the first client alone, without test samples."""
    data.setup()
    samples = data.seen.train.client(0)
    if data.seen.inputs is not None:
        loader = DataLoader(Texts(9, 0), collate_fn=padded)
        return FederatedDataModule.from_clients({"one": loader}, batch_size=4, test_fraction=0.0)
    x, y, common = samples.all_x, samples.all_y, {"batch_size": 16, "test_fraction": 0.0}
    if x.ndim == 4:  # masks are kept as positions
        return FederatedDataModule.from_clients({"one": (x, y.unflatten(1, x.shape[2:]))}, **common)
    return FederatedDataModule.from_clients({"one": (x, y)}, num_classes=10, **common)


@pytest.mark.parametrize("algorithm", [FedAvg(), Ditto(), FedEM(num_components=2)], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("network", [LitClassifier, LitWithLosses], ids=["group norm", "batch norm with losses"])
def test_clients_at_once_are_the_same(algorithm, network):
    norm = "batch" if network is LitWithLosses else "group"
    each = [
        federated(algorithm, lambda: network(norm=norm), pairs(), client_trainer=name)
        for name in ("sequential", "vectorized")
    ]
    one, other = (module.federation.shared.models for module in each)
    for name, leaf in (one.parameters | one.buffers).items():
        torch.testing.assert_close(leaf, (other.parameters | other.buffers)[name], rtol=0, atol=1e-6)


def test_a_run_with_a_scheduler_goes_on_for_more_rounds(tmp_path):
    """The rates of a round come from the module, not from the run that a checkpoint is of."""
    first, again = (FederatedModule(FedAvg(), network=LitAutoEncoder, target=OwnLoss()) for _ in range(2))
    quiet_trainer(1, tmp_path).fit(first, pairs())
    quiet_trainer(ROUNDS, tmp_path).fit(again, pairs(), ckpt_path="last")
    assert_same_state(again, federated(FedAvg(), LitAutoEncoder, pairs(), target=OwnLoss()))
