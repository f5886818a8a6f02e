"""Every algorithm under privacy of samples: protected as the rule says, or refused."""

import pytest
from combination import refuse
from federated_round import distance, make_clients, same_bits
from test_algorithms import SMALL, after_rounds, all_algorithms, everything, federation_of, small_mlp

from lit_fed.algorithms import SCAFFOLD, FedProx, ProxAvg
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.partial_models import PartialModel
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError
from lit_fed.models import Linear
from lit_fed.wrappers.base import innermost
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy

pytestmark = pytest.mark.every_combination

SMALL = SMALL | {"OfficialFedEM": {"shuffle_per_component": False}}  # they draw one batch a step for all models
ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]
PROTECTED = {
    "APFL", "ConsensusADMM", "Ditto", "EASGD", "FFALoRA", "FedADMM", "FedAdagrad", "FedAdam",
    "FedAvg", "FedAvgM", "FedAvgPlus", "FedBABU", "FedBuff", "FedDyn", "FedEM",
    "FedNTD", "FedNova", "FedOpt", "FedProx", "FedYogi", "KNNPer", "L2GD", "MOON",
    "OfficialFedEM", "Oracle", "ProxAvg", "ResponsibilityFedEM", "SCAFFOLD",
}  # fmt: skip
"""Those whose samples reach the server through the steps of the local solver alone, and through noisy mixtures."""

DOUBLED = {"FedADMM"}
"""Those whose clients send twice their way, as reflected or augmented models."""

STEERED_BY_NOISY_STATE = {
    "FedDyn",
    "FedEM",
    "OfficialFedEM",
    "ResponsibilityFedEM",
    "MOON",
    "SCAFFOLD",
    *DOUBLED,
    "ConsensusADMM",
    "EASGD",
    "FFALoRA",
    "FedBABU",
    "L2GD",
    "ProxAvg",
}
"""Of these what clients keep steers what they send: it came from noisy steps, is noised, or depends on no sample."""


def name_of(algorithm):
    return type(algorithm).__name__


def named(algorithms):
    return pytest.mark.parametrize("algorithm", algorithms, ids=name_of)


every_protected = named([one for one in ALL if name_of(one) in PROTECTED])


def private(algorithm, noise=0.0, clip_norm=1e300, sample_rate=1.0, **more):
    """The algorithm inside; without noise, bound and draws its steps are full batches."""
    if "noise_in_steps_alone" in algorithm.incompatible:
        more = {"mixture_noise": 5 * noise} | more
    settings = ExamplePrivacy(
        noise_multiplier=noise, clip_norm=clip_norm, sample_rate=sample_rate, delta=1e-3, noise_seed=0, **more
    )
    refuse(algorithm, privacy=settings)
    return settings.around(algorithm)


@named([one for one in ALL if name_of(one) not in PROTECTED])
def test_what_cannot_be_protected_is_refused(algorithm):
    mixture = {"mixture_noise": 5.0} if "noise_in_steps_alone" in algorithm.incompatible else {}
    settings = ExamplePrivacy(noise_multiplier=1.0, clip_norm=1.0, sample_rate=0.1, delta=1e-3, **mixture)
    with pytest.raises(ConfigError, match=rf"^--model.privacy ExamplePrivacy cannot protect {name_of(algorithm)}: "):
        refuse(algorithm, privacy=settings)


@named([FedProx(local_solve="exact"), FedProx(inexactness=0.5), ProxAvg(local_solve="exact"), SCAFFOLD(option="I")])
def test_variants_that_look_at_samples_beside_the_steps(algorithm):
    with pytest.raises(ConfigError, match=r"its shared steps depend on .*, fitted without noise; choose another"):
        private(algorithm)


@every_protected
def test_without_noise_bound_and_draws_it_takes_full_batches(algorithm):
    train, options = make_clients([5, 2], seed=1), {"rounds": 2, "batch_size": 0}
    options |= {"network": small_mlp if isinstance(algorithm, PartialModel) else Linear}
    plain = after_rounds(algorithm, train, **options)
    wrapped = after_rounds(private(algorithm), train, **options)
    assert distance(plain.predictions(), wrapped.predictions()) < 1e-12
    assert plain.metrics["loss"] == pytest.approx(wrapped.metrics["loss"], rel=1e-9)


@every_protected
def test_both_client_trainers_and_all_blocks_agree(algorithm):
    train = make_clients([6, 1, 3])
    options = {
        "rounds": 1,
        "network": small_mlp
        if name_of(algorithm) in ("FedEM", "ResponsibilityFedEM", "OfficialFedEM", "APFL", "FedBABU", "L2GD")
        else Linear,
    }
    wrapped = private(algorithm, 1.0, 0.5, 0.4)
    one, other = (
        after_rounds(wrapped, train, trainer=trainer(), **options) for trainer in (SequentialTrainer, VectorizedTrainer)
    )
    assert distance(everything(one), everything(other)) < 1e-9
    again = after_rounds(wrapped, train, clients_per_block=1, **options)
    assert same_bits(everything(one), everything(again))
    assert float(one.shared.own.steps.max()) > 0


def one_phase(algorithm, train, **options):
    """The shared state after the messages of one round."""
    solver = LocalSolver(lr=1.0, local_steps=1)
    options |= {"network": small_mlp if isinstance(innermost(algorithm), PartialModel) else Linear}
    return after_rounds(algorithm, train, rounds=1, solver=solver, weighting="uniform", **options)


def with_another_sample(train, row):
    """The same clients, one sample of whom is quite another."""
    x, y = train.x.clone(), train.y.clone()
    x[row], y[row] = 100 * x[row].neg() + 7, 1 - y[row]
    return Split(x, y, train.offsets)


@named([one for one in ALL if name_of(one) in PROTECTED - {"L2GD", "EASGD", "FedAdagrad", "FedAdam", "FedYogi"}])
def test_a_sample_moves_what_is_learnt_by_no_more_than_the_bound(algorithm):
    """Messages of one step differ by η·2C/L at most when one sample is another one."""
    train, sent = make_clients([6, 6], seed=3), []
    mixture = {"mixture_noise": 0.0} if "noise_in_steps_alone" in algorithm.incompatible else {}
    wrapped = private(algorithm, 0.0, 0.2, **mixture)
    for clients in (train, with_another_sample(train, 2)):
        models = tree.models(one_phase(wrapped, clients).shared)[0].parameters
        sent.append(models)
    moved = float(tree.norm(tree.sub(*sent)))
    assert 0 < moved <= 2 * 0.2 / 6 * (1 + 1e-9)


@named([one for one in ALL if name_of(one) in PROTECTED - STEERED_BY_NOISY_STATE])
def test_what_clients_keep_for_themselves_does_not_steer_what_they_send(algorithm):
    shown = []
    for shift in (0.0, 0.7):
        federation = federation_of(private(algorithm, 1.0, 0.5, 0.6), make_clients([4, 2]))
        kept = [leaf for leaf in federation.store.buffers() if leaf.is_floating_point()]
        for leaf in kept:
            leaf += shift
        federation.round()
        shown.append(federation.shared)
    assert same_bits(*shown)
