"""The algorithms of docs/results/synthetic.md with their settings; nothing but the learning rate is tuned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lit_fed.algorithms import Algorithm
    from lit_fed.core.local_solver import LocalSolver

__all__ = ["ENTRIES", "INIT_SEEDS", "LEARNING_RATES", "NOT_RUN", "ROUNDS", "SEED", "SOLVER", "Entry"]

LEARNING_RATES = [round(10 ** (-half / 2), 6) for half in range(1, 7)]
ROUNDS = 200
SEED = 1234
INIT_SEEDS = [*range(1234, 1242)]
"""One for each model; the first three are the official FedEM code's."""

SOLVER = {"schedule": "multi_step", "weight_decay": 5e-4, "momentum": 0.0, "persist_optimizer": False}
MOMENTUM = {"momentum": 0.9, "persist_optimizer": True}
"""As the official FedEM code trains everything but its proximal methods."""

PLAIN: dict[str, Any] = {}

SPLITTING = {"relative": True, "mean_norm_below": 0.5, "max_norm_above": 0.0, "warmup_rounds": 20}


@dataclass(frozen=True)
class Entry:
    """A row of the page."""

    name: str
    label: str
    kind: str
    solver_options: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    setting: str = ""
    paper: str = ""
    remark: str = ""
    mixture: bool = False  # a form of FedEM
    tuned: str = ""  # the hyper-parameter that is tuned; empty: the learning rate
    grid: tuple[float, ...] = tuple(LEARNING_RATES)

    @property
    def tuned_name(self) -> str:
        """What is tuned, in short."""
        return self.tuned or "lr"

    def algorithm(self, value: float) -> Algorithm:
        """The algorithm with this value of what is tuned."""
        from lit_fed import algorithms
        from lit_fed.core.graphs import topology

        options = self.options_at(value)
        if "topology" in options:
            options["topology"] = getattr(topology, options["topology"])()
        return getattr(algorithms, self.kind)(**options)  # type: ignore[no-any-return]

    def options_at(self, value: float) -> dict[str, Any]:
        """The algorithm's hyper-parameters."""
        return self.options | ({self.tuned: value} if self.tuned else {})

    def solver_options_at(self, value: float) -> dict[str, Any]:
        """The local solver's."""
        return SOLVER | self.solver_options | ({} if self.tuned else {"lr": value})

    def solver(self, value: float) -> LocalSolver:
        """The local solver."""
        from lit_fed.core.local_solver import LocalSolver

        return LocalSolver(**self.solver_options_at(value))

    def settings(self) -> dict[str, Any]:
        """What a kept file must have been made with."""
        return {"algorithm": self.kind, "options": self.options, "solver": SOLVER | self.solver_options}


ENTRIES = [
    Entry("fedem", "FedEM", "FedEM", MOMENTUM, {"num_components": 3}, "3 components", "74.7 / 66.7", mixture=True),
    Entry("fedem_8", "FedEM, 8 components", "FedEM", MOMENTUM, {"num_components": 8}, "8 components", mixture=True),
    Entry(
        "fedem_sparse",
        "FedEM, sparse",
        "FedEM",
        MOMENTUM,
        {"num_components": 3, "min_weight": 0.1},
        "3 components, those of weight 0.1 and more are sent",
        mixture=True,
    ),
    Entry(
        "surrogate",
        "surrogate optimisation",
        "SurrogateOptimization",
        MOMENTUM,
        {},
        "FedEM's surrogate, 3 components",
        mixture=True,
    ),
    Entry("fedavg", "FedAvg", "FedAvg", MOMENTUM, paper="68.2 / 58.9"),
    Entry("fedavg_plus", "FedAvg+", "FedAvgPlus", MOMENTUM, {}, "tuned for an epoch", "68.9 / 60.2"),
    Entry("local", "Local", "Local", MOMENTUM, paper="65.7 / 58.4"),
    Entry("oracle", "Oracle", "Oracle", MOMENTUM, {}, "groups: the largest of each client's true weights"),
    Entry("fedprox", "FedProx", "FedProx", PLAIN, {"prox_weight": 0.1}, "μ = 0.1", "68.2 / 59.0"),
    Entry("fedsgd", "FedSGD", "FedSGD", PLAIN, {}, "one step per round"),
    Entry("fedavgm", "FedAvgM", "FedAvgM", PLAIN, {"server_lr": 1.0, "server_momentum": 0.9}, "η_g = 1, momentum 0.9"),
    Entry("fedadagrad", "FedAdagrad", "FedAdagrad", PLAIN, {"server_lr": 0.1, "tau": 0.001}, "η_g = 0.1, τ = 0.001"),
    Entry("fedyogi", "FedYogi", "FedYogi", PLAIN, {"server_lr": 0.01, "tau": 0.001}, "η_g = 0.01, τ = 0.001"),
    Entry("fedadam", "FedAdam", "FedAdam", PLAIN, {"server_lr": 0.01, "tau": 0.001}, "η_g = 0.01, τ = 0.001"),
    Entry("fedbuff", "FedBuff", "FedBuff", MOMENTUM, {"buffer_size": 100}, "K = 100, 200 clients on their way"),
    Entry("scaffold", "SCAFFOLD", "SCAFFOLD", PLAIN, {"option": "II"}, "option II"),
    Entry("qfedavg", "q-FedAvg", "QFedAvg", PLAIN, {"fairness_power": 1.0}, "q = 1"),
    Entry("qfedsgd", "q-FedSGD", "QFedSGD", PLAIN, {"fairness_power": 1.0}, "q = 1, one step per round"),
    Entry("afl", "AFL", "AFL", PLAIN, {"lambda_lr": 0.01}, "γ_λ = 0.01, one step per round"),
    Entry("per_fedavg", "Per-FedAvg", "PerFedAvg", PLAIN, {"variant": "exact", "inner_lr": 0.1}, "exact, α = 0.1"),
    Entry(
        "pfedme",
        "pFedMe",
        "PFedMe",
        PLAIN,
        {"prox_weight": 15.0, "inner_steps": 5, "inner_lr": 0.05},
        "λ = 15, K = 5, inner rate 0.05",
        remark="The column of the FedEM paper with this name was made by an algorithm that this page calls prox_avg.",
    ),
    Entry("prox_avg", "prox_avg", "ProxAvg", PLAIN, {"prox_weight": 1.0}, "μ = 1", "69.2 / 61.2 as pFedMe"),
    Entry(
        "l2gd",
        "L2GD",
        "L2GD",
        PLAIN,
        {
            "communication_probability": 0.25,
            "prox_weight": 0.1,
            "flips_per_round": 4,
            "gradient": "stochastic",
            "scaling": "slides",
        },
        "p = 0.25, λ = 0.1, 4 coins per round, stochastic gradients",
        remark="The official FedEM code has an L2SGD whose averaging changes nothing, since it assigns to copies: what "
        "it computes is Local. Here clients are pulled to their mean, and a step is scaled by 1/(1 − p).",
    ),
    Entry("easgd", "EASGD", "EASGD", PLAIN, {"moving_rate": 0.9}, "β = 0.9, served by the centre"),
    Entry(
        "easgd_personal",
        "EASGD, personal",
        "EASGD",
        PLAIN,
        {"moving_rate": 0.9, "serve": "personal"},
        "β = 0.9, served by the client's own model",
    ),
    Entry("ditto", "Ditto", "Ditto", PLAIN, {"prox_weight": 1.0}, "λ = 1"),
    Entry("ditto_l2sgd", "ditto_l2sgd", "DittoL2SGD", PLAIN, {"prox_weight": 1.0}, "λ = 1"),
    Entry("mean_reg_mtl", "mean_reg_mtl", "MeanRegularizedMTL", PLAIN, {"mean_weight": 1.0}, "λ = 1"),
    Entry(
        "apfl",
        "APFL",
        "APFL",
        MOMENTUM,
        {"alpha": 0.5, "alpha_update": "fixed"},
        "α = 0.5",
        remark="The official FedEM code has an APFL whose mixing step changes nothing: it averages the probabilities "
        "of FedAvg and of Local, which this page calls fedem_apfl. Here the personal model is trained through the "
        "mixture of the parameters.",
    ),
    Entry(
        "apfl_adaptive",
        "APFL, adaptive",
        "APFL",
        MOMENTUM,
        {"alpha": 0.01, "alpha_update": "first_step"},
        "α from 0.01, adapted each round",
    ),
    Entry("fedem_apfl", "fedem_apfl", "FedEMAPFL", MOMENTUM, {"local_share": 0.5}, "half and half"),
    Entry("fml", "FML", "FML", MOMENTUM, {"alpha": 0.5, "beta": 0.5}, "α = β = 0.5"),
    Entry(
        "fedper",
        "FedPer",
        "FedPer",
        MOMENTUM,
        {"private_layers": 1},
        "1 private layer: all that a linear model has, so it is Local",
    ),
    Entry("ifca", "IFCA", "IFCA", MOMENTUM, {"num_clusters": 3}, "3 clusters"),
    Entry("ifca_8", "IFCA, 8 clusters", "IFCA", MOMENTUM, {"num_clusters": 8}, "8 clusters"),
    Entry(
        "clustered_fl",
        "Clustered FL",
        "ClusteredFL",
        MOMENTUM,
        SPLITTING,
        "the paper's division; in two when the mean update is below half of the longest, after 20 rounds",
        "69.1 / 59.0",
        remark="The official FedEM code compares the largest coordinate of an update with the tolerance for its "
        "length, so it practically never splits, and its column is FedAvg. Here it splits. The paper's division, which "
        "is optimal for its criterion, cut off single clients here; complete linkage found eight clusters of many.",
    ),
    Entry(
        "clustered_fl_complete",
        "Clustered FL, complete linkage",
        "ClusteredFL",
        MOMENTUM,
        SPLITTING | {"linkage": "complete"},
        "the authors' code's division; otherwise as above",
    ),
    Entry(
        "consensus_admm",
        "consensus ADMM",
        "ConsensusADMM",
        PLAIN,
        {"penalty_weight": 0.1, "local_solve": "inexact"},
        "ρ = 0.1, one epoch as local solve",
    ),
    Entry(
        "mixture_admm",
        "mixture ADMM",
        "MixtureADMM",
        PLAIN,
        {"form": "alternating_prox", "prox_weight": 1.0, "local_solve": "inexact"},
        "form a (alternating prox), λ = 1, one epoch as local solve",
    ),
    Entry(
        "dfedem",
        "D-FedEM",
        "DFedEM",
        MOMENTUM,
        {"num_components": 3, "topology": "ErdosRenyi", "mixing": "fmmc"},
        "3 components, Erdős–Rényi graph with p = 0.5, fastest mixing",
        mixture=True,
    ),
    Entry(
        "mocha",
        "MOCHA",
        "MOCHA",
        {"local_steps": 64},
        {"loss": "hinge", "rounds_per_relation": 10},
        "hinge loss, 64 coordinate steps per round, Ω anew in each tenth",
        tuned="regularisation",
        grid=(0.1, 0.03, 0.01, 0.003, 0.001, 0.0003),
    ),
    Entry("fedu", "FedU", "FedU", PLAIN, {"laplacian_weight": 0.0003}, "η = 0.0003, complete graph"),
    Entry("ucfl", "UCFL", "UCFL", MOMENTUM, {"num_streams": 8}, "8 streams, after 5 rounds of FedAvg"),
]

NOT_RUN = {
    "DecentralizedSurrogate": "with FedEM's surrogate it is D-FedEM, which a test says",
    "FedFOMO": "no run was made",
    "FedNova": "no run was made",
    "FedeRiCo": "no run was made; on CIFAR-10 in federico-table1.md",
    "GADMM": "it seeks the common model of consensus ADMM",
    "CQGGADMM": "it seeks the common model of consensus ADMM",
    "SharingADMM": "its parties hold features of the same samples, and these clients hold samples",
}
"""Algorithms without a row, and why."""
