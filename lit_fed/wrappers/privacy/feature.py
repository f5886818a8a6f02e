"""Differential privacy: `--model.privacy`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from lit_fed.core.context import Context
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import part_of
from lit_fed.wrappers.feature import Feature
from lit_fed.wrappers.privacy.settings import Privacy, Private

if TYPE_CHECKING:
    from lit_fed.data.module import FederatedDataModule

__all__ = ["PrivacyFeature"]

LEFT_OUT = "choose an algorithm that averages models, or leave it out"
CLIPS = "--model.privacy clips changes of models, and {name} %s; " + LEFT_OUT
STEPS = "--model.privacy ExamplePrivacy cannot protect {name}: it %s; choose another algorithm, or leave it out"
FITTED = "--model.privacy ExamplePrivacy cannot protect {name}: its shared steps depend on {%s}, fitted without noise; "

COUNTED_ON = {
    "sampling_probability": "the share of clients in a round",
    "num_clients": "the number of clients",
    "total_samples": "the number of training samples",
    "weighting": "model.weighting",
    "batch_size": "data.batch_size",
}
"""Terms that ε and redrawn noise rely on in all rounds, with their names in messages."""

OF_PUBLIC_START = ", and the data that the models of --init_from learned from"
"""Further results not covered, for a run with a start declared public and all runs that start from it."""


COUNTED = ("noise_multiplier", "releases", "steps", "mixtures", "messages")
"""States by which ε is counted."""


@dataclass(frozen=True)
class PrivacyFeature(Feature):
    """Simulated differential privacy.

    Args:
        privacy: simulated differential privacy of what the server learns; null: none.
    """

    privacy: Privacy | None = None

    order = 3
    acts_on_messages = True
    callbacks = ("Guarantees",)
    is_private = True  # clients.csv holds mixture weights, which ε does not cover
    own_options = ("privacy.init_args.noise_seed",)
    reasons = {
        "privacy": "--model.privacy that adds noise to one average of messages a round",
        "noise_in_steps": (
            "--model.privacy ExamplePrivacy; the reason is what clients fit to their samples without noise"
        ),
        "noise_in_steps_alone": "the same, unless its mixture_noise covers what the reason names",
    }
    acts = {"clips": CLIPS, "noisy_steps": STEPS}
    kinds = {"multiples": "sends models times numbers that are private"}
    refused = {
        "by_positions privacy": (
            "--model.weighting is positions, and --model.privacy bounds weights by samples; give samples or uniform"
        ),
        "searched privacy": (
            "--model.solver.lr is searched on the clients' samples, and the ε of --model.privacy does "
            "not cover it; give a number"
        ),
        "client_work noisy_steps": (
            "--model.solver.client_work is given, and --model.privacy ExamplePrivacy counts as many steps for all "
            "clients; leave it out"
        ),
        "client_batch_size noisy_steps": (
            "--model.solver.client_batch_size is given, and --model.privacy ExamplePrivacy draws batches by "
            "sample_rate; leave it out"
        ),
        "clips accumulates": (
            "--model.privacy adds noise to one average a round, and {name} adds up what clients send from round to "
            "round, noise included; " + LEFT_OUT
        ),
        "clips refuses_privacy": (
            "--model.privacy charges one average of models a round, and {name} {refuses_privacy}; let all clients send "
            "all of their models once a round, choose another algorithm, or leave it out"
        ),
        "fixed_denominator stale_fill": (
            "--model.aggregation stale_fill has no meaning with --model.privacy, whose denominator is fixed already"
        ),
        "fixed_denominator by_samples !capped": (
            "--model.weighting is samples, by which one client may outweigh all others, and --model.privacy needs a "
            "bound; give --model.privacy.weight_cap, or leave --model.weighting out"
        ),
        "fixed_denominator capped uniform": (
            "--model.privacy.weight_cap caps weights by samples, and --model.weighting is uniform; leave one of them "
            "out"
        ),
        "noisy_messages by_samples": (
            "--model.weighting is samples, which tells how many each client has, and --model.privacy LocalPrivacy "
            "hides its data; leave --model.weighting out"
        ),
        "noisy_steps refuses_noise_in_steps": (
            FITTED % "refuses_noise_in_steps" + "choose another algorithm, or leave it out"
        ),
        "noisy_steps refuses_noise_in_steps_alone !mixture_noise": (
            FITTED % "refuses_noise_in_steps_alone" + "give --model.privacy.mixture_noise, or leave it out"
        ),
        "mixture_noise !refuses_noise_in_steps_alone": (
            "--model.privacy.mixture_noise is for FedEM's mixture weights, and {name} has none; leave it out"
        ),
        "deployed noise_by_target": (
            "--model.privacy.target_epsilon is given, and how much noise that takes follows from the rounds that a "
            "server announces; give nodes --model.privacy.noise_multiplier, such as the one that a simulation prints"
        ),
        "fixed_denominator sampling !poisson": (
            "--model.privacy {privacy} needs --data.client_sampling poisson; uniform and size have other guarantees"
        ),
    }

    @property
    def given(self) -> Privacy:
        """The privacy of a run that has some."""
        assert self.privacy is not None
        return self.privacy

    def facts(self, algorithm: Any) -> dict[str, Any]:
        privacy = self.given
        return {
            "privacy": type(privacy).__name__,
            "clips": not privacy.noises_steps,
            "noisy_steps": privacy.noises_steps,
            "noisy_messages": privacy.noises_messages,
            "fixed_denominator": privacy.fixes_denominator,
            "capped": privacy.weight_cap is not None,
            "mixture_noise": getattr(privacy, "mixture_noise", None) is not None,
            "noise_by_target": privacy.target_epsilon is not None and (privacy.noises_steps or privacy.noises_messages),
        }

    def usual_weighting(self) -> Literal["samples", "uniform"] | None:
        return self.given.usual_weighting()

    @property
    def weight_cap(self) -> int | None:
        return self.given.weight_cap

    def more_facts(self, facts: TrainingFacts, data: FederatedDataModule) -> TrainingFacts:
        """The size of each client, if ε depends on them."""
        return facts._replace(sizes=data.populations[0].train.sizes) if self.given.needs_sizes else facts

    def around(self, algorithm: Any) -> Any:
        return self.given.around(algorithm)

    def terms(self, terms: Context) -> Context:
        """With the source of the noise."""
        return terms._replace(secret=self.given.secret())

    def at_node(self) -> PrivacyFeature:
        """Without a seed of the noise: a node draws its own."""
        return replace(self, privacy=replace(self.given, noise_seed=None))  # type: ignore[type-var] # a dataclass

    def node_secret(self) -> bool:
        """Unless the noise has a seed."""
        return self.given.noise_seed is None

    def check_terms(self, before: dict[str, Any], now: Any) -> None:
        """Refuse other terms: the reported ε assumes the same ones in all rounds."""
        for name, said in COUNTED_ON.items():
            if before[name] != getattr(now, name):
                raise ConfigError(
                    f"--model.privacy counts on the same terms in all rounds, and {said} is {getattr(now, name)}, in "
                    f"the rounds of the checkpoint {before[name]}; give the same value, or start a new run"
                )

    # ------------------------------------------------------------------ what a run costs
    def check_start(self, path: str, spent: dict[str, Any] | None) -> list[str]:
        """Refuse models of another run that may reveal the same clients at no charge; returns a notice.

        Args:
            path: checkpoint of the run.
            spent: its guarantee, as `spent` gives it; None: it had none.

        Raises:
            ConfigError: naming the checkpoint.
        """
        start, privacy = f"--init_from {path}", self.given
        if privacy.public_start:
            return [f"{start} counts as public: ε says nothing of the data that its models were trained on"]
        if spent is not None and not _is_spent(spent):
            raise ConfigError(f"{start} says nothing sensible of the privacy of its models; give another checkpoint")
        if spent is None or (spent["unit"], spent["adjacency"]) != (privacy.unit, privacy.adjacency):
            kind = "without privacy" if spent is None else f"with privacy of {spent['unit']} ({spent['adjacency']})"
            raise ConfigError(
                f"{start} holds models that were trained {kind}, and ε of --model.privacy {type(privacy).__name__} "
                "would not cover what they tell of the clients; give the checkpoint of a run with the same "
                "--model.privacy, or --model.privacy.public_start true if it was trained on public data alone"
            )
        return [f"{start} has spent ε {spent['epsilon']:.4g} at δ {spent['delta']:g}, which are added in reports"]

    def guarantee(
        self, federation: Any, start: dict[str, Any] | None, *, starts: bool, exact: bool = True
    ) -> dict[str, Any]:
        """The guarantee of a run including the models that it started from, with ε and δ added.

        Args:
            federation: the run's `FederatedRounds`.
            start: cost of the models that the run started from, see `spent`; None: nothing.
            starts: whether the run started from models of another.
            exact: as of `Private.guarantee`.
        """
        found = part_of(federation.algorithm, federation.shared, Private)  # type: ignore[type-abstract]
        assert found is not None
        private, own = found
        counted = [getattr(own, name) for name in COUNTED if hasattr(own, name)]
        if not all(bool(((leaf >= 0) & leaf.isfinite()).all()) for leaf in counted):
            raise ConfigError(
                "the checkpoint's counts of private releases are negative or no numbers; give another --ckpt_path"
            )
        guarantee = private.guarantee(federation.context("plan"), own, exact)
        is_public = starts and self.given.public_start
        if is_public or (start or {}).get("public_start"):
            guarantee["not_covered"] += OF_PUBLIC_START
        if is_public or start is None:
            return guarantee
        both = {name: value + start["epsilon"] for name, value in guarantee.items() if name.startswith("epsilon")}
        return guarantee | both | {"delta": guarantee["delta"] + start["delta"], "epsilon_of_start": start["epsilon"]}

    def spent(self, federation: Any, start: dict[str, Any] | None, *, starts: bool) -> dict[str, Any] | None:
        """The guarantee in short."""
        guarantee = self.guarantee(federation, start, starts=starts, exact=False)
        names = ("epsilon", "delta", "unit", "adjacency")
        public = {"public_start": True} if guarantee["not_covered"].endswith(OF_PUBLIC_START) else {}
        return {name: guarantee[name] for name in names} | public


def _is_spent(value: Any) -> bool:
    """Whether a checkpoint's entry has the form of `spent`."""
    types = {"epsilon": float, "delta": float, "unit": str, "adjacency": str}
    whole = isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in types.items())
    return whole and value["epsilon"] >= 0 and 0 <= value["delta"] <= 1
