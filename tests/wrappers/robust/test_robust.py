"""Robust aggregation around algorithms: what is dropped, skipped, remembered and refused, and what runs tell."""

import json
from dataclasses import dataclass

import pandas as pd
import pytest
import torch
from federated_round import Federation, make_clients, make_context, make_task, same_bits
from normalised import NormalisedMLP

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.algorithms import IFCA, SCAFFOLD, UCFL, FedAvg, FedEM, MixtureADMM
from lit_fed.algorithms.scaffold import ScaffoldUpdate
from lit_fed.core import tree
from lit_fed.core.types import Chosen, ModelState, Reduced
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ClientError, ConfigError
from lit_fed.training.module import facts_of
from lit_fed.wrappers.base import WrappedShared, part_of
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.robust.attacks import Invalid, SignFlip
from lit_fed.wrappers.robust.rules import (
    Bulyan,
    CenteredClipping,
    GeometricMedian,
    Krum,
    MajorityVote,
    Median,
    NormBound,
    TrimmedMean,
)
from lit_fed.wrappers.robust.wrapper import NEVER_JUDGED, RobustAverage
from lit_fed.wrappers.secure.wrapper import SecureSum

ROUND = torch.arange(5)


def stepped(rule, values, weights=(1, 1, 1, 1, 1), *, algorithm=None, shared=None, ids=ROUND, **fields):
    """The shared state after one server step on messages whose one parameter is what is given, [m, M]."""
    algorithm = RobustAverage(algorithm or FedAvg(), rule)
    ctx = make_context(weighting="uniform", **fields)
    if shared is None:
        inner = algorithm.inner.shared_init(ctx)
        start = ModelState({"w": torch.zeros(algorithm.num_models, 1).double()}, {})
        inner = inner._replace(models=start)
        shared = WrappedShared(inner, algorithm.server_memory(ctx, inner))
    sent = ModelState({"w": torch.tensor(values).double().view(len(ids), -1, 1)}, {})
    weights = torch.tensor(weights, dtype=torch.float64)
    return algorithm.server_step(ctx, shared, Reduced(sent, weights), ids)


def number(shared):
    return round(float(shared.inner.models.parameters["w"]), 9)


def test_messages_that_are_no_numbers_are_dropped_and_remembered():
    new = stepped(NormBound(100.0), [1.0, torch.nan, 3.0, torch.inf, 5.0], ids=torch.tensor([0, 2, 4, 6, 8]))
    assert number(new) == 3
    assert new.own.refused.tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert new.own.kept.tolist() == [1, -1, 0, -1, 1, -1, 0, -1, 1, -1]
    again = stepped(NormBound(1.0), [4.0], [1], shared=new, ids=torch.tensor([1]))
    assert again.own.kept.tolist() == [1, 1, 0, -1, 1, -1, 0, -1, 1, -1], "what others sent last is remembered"
    assert number(again) == 4


def test_clients_that_count_for_nothing_are_no_liars():
    new = stepped(NormBound(100.0), [1.0, torch.nan, 3.0, 2.0, 5.0], [1, 0, 1, 0, 1])
    assert number(new) == 3
    assert not new.own.refused.any()


def test_too_few_messages_change_nothing():
    new = stepped(Krum(1), [1.0, 2.0, torch.nan, 3.0, 4.0])
    assert number(new) == 0
    assert new.own.skipped == 1
    assert new.own.kept[:5].tolist() == [0] * 5
    assert number(stepped(Krum(1), [1.0, 2.0, 2.0, 3.0, 4.0])) == 2
    assert stepped(Krum(1), [1.0, 2.0, 2.0, 3.0, 4.0], shared=new).own.skipped == 1


def test_without_a_rule_the_client_is_named():
    with pytest.raises(ClientError, match=r"client 3, round 0.*give --model.robust_aggregation"):
        stepped(None, [1.0, 2.0, 3.0, torch.nan, 4.0])


def test_as_many_attackers_are_tolerated_as_there_are():
    values = [0.0, 1.0, 2.0, 3.0, 100.0]
    assert number(stepped(TrimmedMean(), values)) == 2, "a fifth, one"
    attackers = torch.zeros(10, dtype=torch.bool)
    attackers[[4, 5, 6, 7]] = True
    assert number(stepped(TrimmedMean(), [0.0, 1.0, 2.0, 3.5, 100.0], attackers=attackers)) == 2, "2 of 5"
    assert number(stepped(TrimmedMean(0), values, attackers=attackers)) == pytest.approx(21.2)


def test_weights_are_capped():
    values = [1.0, 2.0, 3.0, 4.0, 1000.0]
    assert number(stepped(NormBound(1e9, weight_cap=2), values, [1, 1, 1, 1, 50])) == pytest.approx(2010 / 6)


def test_the_last_result_is_where_the_next_starts():
    rule = CenteredClipping(1.0)
    first = stepped(rule, [10.0] * 5)
    assert number(first) == 1
    second = stepped(rule, [11.0] * 5, shared=first)
    assert number(second) == 3, "one from where it was, in the direction of the last change, and one more"
    assert float(second.own.start[0]["w"]) == pytest.approx(2)
    from_zero = stepped(CenteredClipping(1.0, start="zero"), [10.0] * 5)
    assert from_zero.own.start == ()
    assert number(stepped(CenteredClipping(1.0, start="zero"), [11.0] * 5, shared=from_zero)) == 2
    skipped = stepped(rule, [torch.nan] * 5, shared=second)
    assert same_bits(skipped.own.start, second.own.start)


def chosen(rule, values, taken, weights):
    """IFCA's new models [M] after messages of a cluster each."""
    algorithm, ctx = RobustAverage(IFCA(3), rule), make_context(weighting="uniform")
    inner = algorithm.inner.shared_init(ctx)._replace(
        models=ModelState({"w": torch.tensor([[10.0], [20.0], [30.0]]).double()}, {})
    )
    one_hot = torch.nn.functional.one_hot(torch.tensor(taken), 3).double()
    sent = ModelState({"w": (one_hot * torch.tensor(values).double()[:, None])[:, :, None]}, {})
    reduced = Reduced(Chosen(sent, one_hot), torch.tensor(weights).double())
    shared = WrappedShared(inner, algorithm.server_memory(ctx, inner))
    mean, judged = algorithm.decode(ctx, shared, reduced, torch.arange(len(taken)))
    return mean, judged, algorithm.server_step(ctx, shared, reduced, torch.arange(len(taken)))


def test_models_that_clients_choose_are_judged_by_those_who_chose_them():
    mean, judged, new = chosen(Median(), [11.0, 12.0, 999.0, 25.0, 21.0], [0, 0, 0, 1, 1], [1] * 5)
    assert new.inner.models.parameters["w"][:, 0].tolist() == pytest.approx([12, 23, 30])
    assert judged.kept[:5].tolist() == [0, 1, 0, 1, 1]
    assert mean.value.taken.tolist() == pytest.approx([0.6, 0.4, 0])


def test_a_model_with_too_few_messages_stays_and_leaves_its_weight_to_the_others():
    """Layers that all clusters share are sums over the clusters: shares of less than 1 would shrink them."""
    mean, judged, new = chosen(Krum(0), [11.0, 12.0, 11.5, 25.0, 21.0], [0, 0, 0, 1, 1], [1] * 5)
    assert new.inner.models.parameters["w"][:, 0].tolist() == pytest.approx([11, 20, 30])
    assert mean.value.taken.tolist() == [1, 0, 0]
    assert mean.weight == 3
    assert judged.kept[:5].tolist() == [1, 0, 0, 0, 0]
    assert judged.skipped == 0
    mean, judged, _ = chosen(Krum(0), [11.0, 12.0], [0, 1], [1] * 2)
    assert (float(mean.weight), int(judged.skipped)) == (0, 1)


def test_layers_that_clusters_share():
    runs = [
        Federation(one, make_clients([20] * 6), make_task(network=TwoLayers), weighting="uniform")
        for one in (IFCA(2, clustered_layers=1), RobustAverage(IFCA(2, clustered_layers=1), NormBound(1e300)))
    ]
    for run in runs:
        run.round()
        run.round()
    plain, robust = (tree.models(run.shared)[0] for run in runs)
    for name, leaf in plain.parameters.items():
        assert torch.allclose(leaf, robust.parameters[name], rtol=0, atol=1e-12)


class TwoLayers(torch.nn.Sequential):
    def __init__(self, input_shape, num_outputs):
        super().__init__(torch.nn.Linear(*input_shape, 3), torch.nn.Tanh(), torch.nn.Linear(3, num_outputs))


def test_one_verdict_over_both_parts_of_scaffold():
    """A control variate that is far off takes the model along."""
    algorithm = RobustAverage(SCAFFOLD(), Krum(1))
    run = Federation(algorithm, make_clients([20] * 6), weighting="uniform")
    models = tree.models(run.shared.inner)[0]
    sent = ScaffoldUpdate(
        tree.map_leaves(lambda leaf: torch.stack([leaf + step / 10 for step in range(6)]), models),
        tree.map_leaves(
            lambda leaf: torch.stack([leaf * 0 + 9.0 * (step == 2) for step in range(6)]), models.parameters
        ),
    )
    reduced = Reduced(sent, torch.ones(6).double())
    _, judged = algorithm.decode(make_context(num_clients=6), run.shared, reduced, torch.arange(6))
    assert judged.kept.sum() == 1
    assert judged.kept[2] == 0


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (UCFL(), {"robust_aggregation": Median()}, "Median acts on changes of models, and UCFL keeps rows"),
        (MixtureADMM(), {"robust_aggregation": Krum()}, "MixtureADMM keeps a running sum"),
        (FedEM(), {"robust_aggregation": Median()}, "Median would freeze components that fewer than half"),
        (FedEM(), {"robust_aggregation": Bulyan()}, "Bulyan would freeze"),
        (FedEM(), {"robust_aggregation": MajorityVote()}, "MajorityVote would freeze"),
        (FedEM(), {"robust_aggregation": NormBound(weight_cap=5)}, "add --model.weighting samples"),
        (
            FedAvg(),
            {"robust_aggregation": Median(), "privacy": ClientPrivacy(1.0, delta=1e-3, clip_norm=1.0)},
            "Median: the noise of --model.privacy has the sensitivity of a sum",
        ),
        (
            FedAvg(),
            {"attack": SignFlip(), "privacy": ClientPrivacy(1.0, delta=1e-3, clip_norm=1.0)},
            "SignFlip: the noise of --model.privacy holds for clients that bound their changes",
        ),
        (FedAvg(), {"robust_aggregation": Krum(), "secure_aggregation": SecureSum()}, "needs every message; leave one"),
        (FedAvg(), {"attack": SignFlip(), "secure_aggregation": SecureSum()}, "--model.attack needs every message"),
    ],
)
def test_what_does_not_go_together(algorithm, options, message):
    with pytest.raises(ConfigError, match=message):
        FederatedModule(algorithm, **options)


def test_what_is_allowed_of_mixtures():
    FederatedModule(FedEM(1), robust_aggregation=Median())
    FederatedModule(IFCA(), robust_aggregation=Median())
    FederatedModule(FedEM(), robust_aggregation=TrimmedMean(1))
    FederatedModule(FedEM(), weighting="samples", robust_aggregation=GeometricMedian(weight_cap=5))


def test_steps_of_one_size_and_running_statistics():
    clients = make_clients([20] * 3)
    with pytest.raises(ConfigError, match=r"add --model\.batch_norm local"):
        Federation(RobustAverage(FedAvg(), MajorityVote()), clients, make_task(network=NormalisedMLP))


def data(**options):
    return FederatedDataModule(Digits(), num_clients=9, batch_size=64, **options)


@pytest.mark.parametrize(
    ("robustness", "options", "message"),
    [
        (
            {"robust_aggregation": Krum(4)}, {},
            "Krum with 4 attackers needs more than 10 clients in a round, and 9 are drawn; draw more, or lower "
            "--model.robust_aggregation.num_attackers",
        ),
        ({"robust_aggregation": Krum(1, bucket_size=3)}, {},
            "more than 12 clients .*num_attackers or .*bucket_size",
        ),
        ({"robust_aggregation": TrimmedMean(5)}, {},
            "needs more than 10 clients .* lower --model.robust_aggregation.trim",
        ),
        ({"robust_aggregation": Median()}, {"attackers": 5},
            "Median with 5 attackers needs more than 10 .* lower --data.attackers",
        ),
        ({"robust_aggregation": Bulyan()}, {"client_fraction": 0.5}, None),
        ({"robust_aggregation": Krum(num_selected=9)}, {"client_fraction": 0.5},
            "needs more than 8 clients in a round, and 4",
        ),
        ({"attack": SignFlip()}, {}, "which needs --data.attackers"),
    ],
)  # fmt: skip
def test_cohorts_too_small_are_refused_at_set_up(robustness, options, message):
    module = data(**options)
    module.prepare_data()
    module.setup("fit")
    settings = FederatedModule(FedAvg(), **robustness).settings
    if message is None:
        assert facts_of(settings, module, 1).weighting == "uniform"
        return
    with pytest.raises(ConfigError, match=message):
        facts_of(settings, module, 1)


@dataclass(frozen=True)
class Often(Invalid):
    """NaN from those who attack, in the second round alone."""

    def strike(self, sent):
        return super().strike(sent) if sent.round_idx == 1 else sent.values


def test_what_a_run_tells(tmp_path, capsys):
    module = FederatedModule(FedEM(2), robust_aggregation=TrimmedMean(2), attack=Often())
    trainer = FederatedTrainer(accelerator="cpu", max_epochs=2, logger=RoundLogger(str(tmp_path), "run"))
    trainer.fit(module, datamodule=data(attackers=2))
    trainer.test(module, datamodule=trainer.datamodule)
    folder, said = tmp_path / "run/version_0", capsys.readouterr()
    attackers = trainer.datamodule.populations[0].attackers.tolist()
    names = [trainer.datamodule.populations[0].names[one] for one in attackers]
    assert "TrimmedMean freezes components that no more clients train than it trims" in said.err
    assert f"round 1: clients {', '.join(names)} sent NaN or infinity, and count for nothing" in said.err
    assert f"2 messages of NaN or infinity dropped, of {names[0]} (1), {names[1]} (1)" in said.out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["robust/dropped_clients"] == dict.fromkeys(names, 1)
    assert (summary["robust/dropped"], summary["robust/skipped"]) == (2, 0)
    rounds = pd.read_csv(folder / "metrics.csv").dropna(subset="robust/kept")
    assert rounds["robust/dropped"].tolist() == [0, 2]
    assert rounds["robust/kept_attackers"].tolist()[1] == 0
    assert 0 < rounds["robust/kept_attackers"].tolist()[0] < 1
    assert rounds["robust/kept_honest"].between(0.1, 1).all()
    clients = pd.read_csv(folder / "clients.csv")
    own = part_of(module.federation.algorithm, module.shared, RobustAverage)[1]
    assert (own.kept != NEVER_JUDGED).all()
    assert clients["kept"].tolist() == pytest.approx(own.kept.tolist())
    assert (clients.loc[clients["attacker"], "kept"] == 0).all()
