"""Compatibility: one table of the combinations of features, data and algorithms that are refused before training.

A *fact* has a name and a text that messages may quote, e.g. `ef21`, or `privacy` → `ClientPrivacy`. A row of `REFUSED`
names incompatible facts (`!ef21`: the fact is false) and the message. The first row whose facts are all true is raised.
A new feature adds its facts to `Compatibility.facts`, and rows to the table; an algorithm declares its limits by
`message`, `participation` and `incompatible`. A reason may have its own fix, `REASON; FIX`, which replaces that of the
row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import innermost

__all__ = ["FEATURES", "REFUSED", "Compatibility"]

FEATURES = {
    "size_sampling": "--data.client_sampling size",
    "loss": "--model.loss",
    "client_lr": "--model.solver.client_lr",
    "client_batch": "--model.solver.client_batch_size",
    "privacy": "--model.privacy that adds noise to one average of messages a round",
    "noise_in_steps": "--model.privacy ExamplePrivacy; the reason is what clients fit to their samples without noise",
    "noise_in_steps_alone": "the same, unless its mixture_noise covers what the reason names",
    "secure_sums": "--model.secure_aggregation, which cuts changes off at a range",
    "robust": "--model.robust_aggregation or --model.attack",
    "local_norm": "--model.batch_norm local",
    "personal_parts": "--model.personal",
    "encoded_broadcast": "--model.downlink_compression, which encodes changes of the server's last models",
    "deployment": "clients on machines of their own",
    "ef21": "--model.compression_feedback ef21",
}
"""Keys of `Algorithm.incompatible`, and the feature of each."""

LEFT_OUT = "choose an algorithm that averages models, or leave it out"
ROWS, NOTHING = "keeps rows of single clients at the server", "sends nothing to a server"
MULTIPLES = "sends models times numbers that are the client's own"
STATISTICS = "sends statistics of samples, and no models"
ENCODES = "encodes changes of models, and {name} %s; " + LEFT_OUT
CLIPS = "--model.privacy clips changes of models, and {name} %s; " + LEFT_OUT
STEPS = "--model.privacy ExamplePrivacy cannot protect {name}: %s; choose another algorithm, or leave it out"
FITTED = "its shared steps depend on {%s}, fitted without noise"
SUMS = "--model.secure_aggregation shows the server a sum of changes of models, and {name} %s; " + LEFT_OUT
JUDGES = "{robust} acts on changes of models, and {name} %s; " + LEFT_OUT
AVERAGES = "--model.faults.average {average} is one of models, and {name} %s; choose renormalised"
REWEIGHS = (
    "--model.faults.average {average} changes the weights of messages, and %s has weights of its own; choose "
    "renormalised"
)
BY_SIZE = "--data.client_sampling is size, by which a client may be drawn twice in a round, and {name} %s; give uniform"
EF21 = "--model.compression_feedback is ef21, and %s; give ef14"
ADDS_UP = "{name} adds up what clients send from round to round, and would add up what was known before"
DIVIDED = "{name} needs %s, and {dataset} has %s; give another --data.dataset or --model.algorithm"
SAMPLES = "clients with samples of their own"
PARTIES = "parties that hold different features of the same samples, such as FeatureBlocks"
SIMULATE = (
    "{name} %s; choose another --model.algorithm for clients on machines of their own, or simulate it with data on "
    "this one"
)

SELECTS = "--model.selection {selection} selects clients by losses that they report, and %s"
PARTS = "--model.personal keeps [{personal}] out of an average of models, and {name} %s; " + LEFT_OUT

SEARCHES = "--model.solver.lr is auto, which is searched on the clients' samples, and %s; give a number"

POSITIONS = "--model.weighting is positions, and %s; give samples or uniform"

REFUSED: dict[str, str] = {
    # ------------------------------------------------------------------ settings without a wrapper
    "stale_fill own_filling": (
        "--model.aggregation is stale_fill, and {name} says itself what absent clients count for; leave it out"
    ),
    "by_positions privacy": POSITIONS % "--model.privacy bounds weights by samples",
    "by_positions secure": POSITIONS % "--model.secure_aggregation bounds weights by samples",
    "by_positions robust": POSITIONS % "{robust} bounds weights by samples",
    "by_positions faults": POSITIONS % "--model.faults weighs absent clients by their samples",
    "by_positions size": POSITIONS % "--data.client_sampling size draws clients by their samples",
    "by_positions deployed": POSITIONS % "nodes tell their numbers of samples alone",
    "searched privacy": SEARCHES % "the ε of --model.privacy does not cover it",
    "searched deployed": SEARCHES % "those of a federation are on their nodes",
    "loss refuses_loss": (
        "--model.loss is {loss}, and {name} {refuses_loss}; leave it out, or choose another --model.algorithm"
    ),
    "client_lr refuses_client_lr": "--model.solver.client_lr is given, and {name} {refuses_client_lr}; leave it out",
    "client_work noisy_steps": (
        "--model.solver.client_work is given, and --model.privacy ExamplePrivacy counts as many steps for all clients; "
        "leave it out"
    ),
    "client_batch refuses_client_batch": (
        "--model.solver.client_batch_size is given, and {name} {refuses_client_batch}; leave it out"
    ),
    "client_batch noisy_steps": (
        "--model.solver.client_batch_size is given, and --model.privacy ExamplePrivacy draws batches by sample_rate; "
        "leave it out"
    ),
    "counted_classes deployed": (
        "--model.loss.weight is inverse_frequency, and nodes do not tell how many labels of each class they have; give "
        "a list of weights"
    ),
    "local_norm refuses_local_norm": "--model.batch_norm is local, and {name} {refuses_local_norm}; leave it out",
    "personal rows": PARTS % "combines the whole models of single clients",
    "personal nothing": PARTS % NOTHING,
    "personal statistics": PARTS % STATISTICS,
    "personal refuses_personal_parts": PARTS % "{refuses_personal_parts}",
    "alternating noisy_steps": (
        "--model.personal_training is alternating, and --model.privacy ExamplePrivacy counts the steps of one stage; "
        "give joint, or leave it out"
    ),
    # ------------------------------------------------------------------ privacy
    "clips rows": CLIPS % ROWS,
    "clips multiples": CLIPS % "sends models times numbers that are private",
    "clips nothing": CLIPS % NOTHING,
    "clips statistics": CLIPS % STATISTICS,
    "clips accumulates": (
        "--model.privacy adds noise to one average a round, and {name} adds up what clients send from round to round, "
        "noise included; " + LEFT_OUT
    ),
    "clips refuses_privacy": (
        "--model.privacy charges one average of models a round, and {name} {refuses_privacy}; let all clients send all "
        "of their models once a round, choose another algorithm, or leave it out"
    ),
    "fixed_denominator stale_fill": (
        "--model.aggregation stale_fill has no meaning with --model.privacy, whose denominator is fixed already"
    ),
    "fixed_denominator by_samples !capped": (
        "--model.weighting is samples, by which one client may outweigh all others, and --model.privacy needs a bound; "
        "give --model.privacy.weight_cap, or leave --model.weighting out"
    ),
    "fixed_denominator capped uniform": (
        "--model.privacy.weight_cap caps weights by samples, and --model.weighting is uniform; leave one of them out"
    ),
    "second_bound !second_part": (
        "--model.privacy.second_clip_norm bounds what is sent beside models, and {name} sends nothing else; leave it "
        "out"
    ),
    "noisy_messages by_samples": (
        "--model.weighting is samples, which tells how many each client has, and --model.privacy LocalPrivacy hides "
        "its data; leave --model.weighting out"
    ),
    "noisy_steps rows": STEPS % "it keeps rows of single clients at the server, which was not looked into",
    "noisy_steps multiples": STEPS % "it sends models times numbers that are private",
    "noisy_steps nothing": STEPS % "it sends nothing, so that there is nothing to protect",
    "noisy_steps statistics": STEPS % STATISTICS,
    "noisy_steps refuses_noise_in_steps": STEPS % FITTED % "refuses_noise_in_steps",
    "noisy_steps refuses_noise_in_steps_alone !mixture_noise": (
        "--model.privacy ExamplePrivacy cannot protect {name}: " + FITTED % "refuses_noise_in_steps_alone" + "; give "
        "--model.privacy.mixture_noise, or leave it out"
    ),
    "mixture_noise !refuses_noise_in_steps_alone": (
        "--model.privacy.mixture_noise is for FedEM's mixture weights, and {name} has none; leave it out"
    ),
    # ------------------------------------------------------------------ secure sums
    "secure rows": SUMS % "needs the message of every single client",
    "secure multiples": SUMS % "sends models times numbers that no range bounds",
    "secure nothing": SUMS % NOTHING,
    "secure statistics": SUMS % STATISTICS,
    "secure refuses_secure_sums": SUMS % "{refuses_secure_sums}",
    "sum_dropout fixed_denominator": (
        "--model.secure_aggregation.dropout_fraction is {sum_dropout}, and whether a round is void then depends on "
        "who takes part, which ε of --model.privacy {privacy} does not cover; give --model.faults.dropout instead, by "
        "which clients drop out before they send keys"
    ),
    "sum_dropout needs_all": (
        "--model.secure_aggregation.dropout_fraction is {sum_dropout}, and {name} needs every client in every "
        "round; leave it out"
    ),
    # ------------------------------------------------------------------ compression
    "compression rows": "--model.compression " + ENCODES % ROWS,
    "compression nothing": "--model.compression " + ENCODES % NOTHING,
    "compression statistics": "--model.compression " + ENCODES % STATISTICS,
    "compression multiples": "--model.compression " + ENCODES % MULTIPLES,
    "downlink refuses_encoded_broadcast": (
        "--model.downlink_compression encodes changes of the server's last models, and {name} "
        "{refuses_encoded_broadcast}; leave it out"
    ),
    "downlink rows": "--model.downlink_compression " + ENCODES % ROWS,
    "downlink nothing": "--model.downlink_compression " + ENCODES % NOTHING,
    "downlink statistics": "--model.downlink_compression " + ENCODES % STATISTICS,
    "downlink multiples": "--model.downlink_compression " + ENCODES % MULTIPLES,
    "feedback_none accumulates": (
        "--model.compression_feedback is none, and {name} adds up what clients send from round to round, so that what "
        "a codec loses is lost for good; give ef14"
    ),
    "ef21 accumulates": EF21 % ADDS_UP,
    "ef21 second_part": EF21 % ADDS_UP,
    "ef21 refuses_ef21": EF21 % "{name} {refuses_ef21}",
    "ef21 incomplete": EF21 % "clients of {name} send some of the models, each to a mean of its own",
    "ef21 stale_fill": EF21
    % ("--model.aggregation stale_fill has no absent clients to fill in, for their last changes count"),
    "compression noisy_messages": (
        "--model.compression {compression} encodes changes before --model.privacy {privacy} adds noise to all of their "
        "numbers, so that nothing is saved; leave it out"
    ),
    "ef21 privacy": (
        "--model.compression_feedback is ef21, whose server adds up what it learns from round to round, the noise of "
        "--model.privacy included; give ef14"
    ),
    "secure scaled_codec": (
        "--model.compression {compression}: its scales or positions differ from client to client, and with "
        "--model.secure_aggregation their sum cannot be decoded; choose RandomK"
    ),
    "secure downlink": (
        "--model.downlink_compression gives clients other models than the server has, and the masked words of "
        "--model.secure_aggregation encode changes of the server's; leave one out"
    ),
    # ------------------------------------------------------------------ robust rules and attacks
    "rule accumulates": JUDGES % "keeps a running sum of changes, which a rule that leaves some out would break",
    "robust rows": JUDGES % ROWS,
    "robust multiples": JUDGES % MULTIPLES,
    "robust nothing": JUDGES % NOTHING,
    "robust statistics": JUDGES % STATISTICS,
    "robust refuses_robust": JUDGES % "{refuses_robust}",
    "rule_cap !by_samples": (
        "--model.robust_aggregation.weight_cap caps weights by samples, and all clients count the same; add "
        "--model.weighting samples, or leave it out"
    ),
    "freezing_rule": (
        "{robust} would freeze components that fewer than half of the clients train; choose CenteredClipping, "
        "GeometricMedian, NormBound, or TrimmedMean with a trim below the smallest group"
    ),
    "rule fixed_denominator": (
        "{robust}: the noise of --model.privacy has the sensitivity of a sum, and a rule that selects or takes the "
        "middle has another; choose LocalPrivacy, or leave one out"
    ),
    "robust fixed_denominator": (
        "{robust}: the noise of --model.privacy holds for clients that bound their changes, and attackers do not; "
        "choose LocalPrivacy, or leave one out"
    ),
    "robust secure": (
        "--model.secure_aggregation shows the server a sum, and {robust_option} needs every message; leave one out"
    ),
    "robust ef21": (
        "{robust} leaves out some of what clients send, and --model.compression_feedback is ef21, whose server adds it "
        "up from round to round; give ef14"
    ),
    # ------------------------------------------------------------------ clients that fail
    "faults needs_all": "{name} needs every client in every round; leave out --model.faults",
    "over_selection serverless": (
        "--model.faults.over_selection is a server's that takes the first messages, and {name} has no server; leave it "
        "out"
    ),
    "average rows": AVERAGES % "does not average models",
    "average multiples": AVERAGES % "does not average models",
    "average nothing": AVERAGES % "does not average models",
    "average statistics": AVERAGES % "does not average models",
    "average refuses_privacy": AVERAGES % "{refuses_privacy}",
    "average accumulates": AVERAGES % "keeps a running sum of changes",
    "average incomplete": AVERAGES % "averages each model over those who chose it",
    "average stacked": AVERAGES % "does not average models",
    "average stale_fill": (
        "--model.faults.average {average} says what absent clients count for, and so does --model.aggregation "
        "stale_fill; leave one of them out"
    ),
    "lost_messages secure": (
        "--model.faults loses messages after work, and without them --model.secure_aggregation finds no sum; give "
        "--model.secure_aggregation.dropout_fraction instead, or --model.faults.dropout with when before"
    ),
    "average privacy": REWEIGHS % "--model.privacy",
    "average secure": REWEIGHS % "--model.secure_aggregation",
    "average robust": REWEIGHS % "--model.robust_aggregation or --model.attack",
    "average ef21": REWEIGHS % "--model.compression_feedback ef21",
    # ------------------------------------------------------------------ how clients are sampled
    "ef21 size": (
        "--model.compression_feedback is ef21, whose server knows of each client once, and --data.client_sampling is "
        "size, by which a client may be drawn twice in a round; give ef14, or uniform"
    ),
    "poisson probability needs_all": (
        "--data.client_sampling is poisson, by which a client takes part in a round with probability {probability}, "
        "and {name} needs every client in every round; leave out --data.client_fraction and --data.clients_per_round"
    ),
    "size needs_all": BY_SIZE % "needs every client once in every round",
    "size refuses_size_sampling": BY_SIZE % "{refuses_size_sampling}",
    "size stale_fill": (
        "--data.client_sampling is size, whose draws stand for all clients, so that --model.aggregation stale_fill has "
        "no absent ones to fill in; give renormalised, or sample uniformly"
    ),
    "size by_samples counts_draws": (
        "--data.client_sampling is size, by which large clients are drawn more often, and --model.weighting is "
        "samples, by which they would count for more once again; give uniform, or sample uniformly"
    ),
    "fixed_denominator sampling !poisson": (
        "--model.privacy {privacy} needs --data.client_sampling poisson; uniform and size have other guarantees"
    ),
    "over_selection sampling !uniformly": (
        "--model.faults.over_selection wants a number of clients, and --data.client_sampling is {sampling}; give "
        "uniform, or leave it out"
    ),
    # ------------------------------------------------------------------ clients selected by their losses
    "selection serverless": SELECTS % "{name} has no server to select them" + "; leave it out",
    "selection nothing": SELECTS % "{name} sends nothing to a server" + "; leave it out",
    "selection needs_all": SELECTS % "{name} needs every client in every round" + "; leave it out",
    "selection privacy": (
        SELECTS % "the ε of --model.privacy covers neither these losses nor a cohort that depends on them" + "; leave "
        "one of them out"
    ),
    "selection secure": (
        SELECTS % "--model.secure_aggregation shows the server nothing but sums over clients" + "; leave one of them "
        "out"
    ),
    "selection downlink": (
        SELECTS % "--model.downlink_compression encodes one broadcast for the clients of a round" + "; leave one of "
        "them out"
    ),
    "selection over_selection": (
        SELECTS % "--model.faults.over_selection draws clients beyond those of a round" + "; leave one of them out"
    ),
    "selection sampling !uniformly": (
        "--model.selection {selection} draws candidates itself, and --data.client_sampling is {sampling}; give "
        "uniform, or leave --model.selection out"
    ),
    # ------------------------------------------------------------------ what clients hold, and where they run
    "has_features needs_samples": DIVIDED % (SAMPLES, PARTIES),
    "has_samples needs_features": DIVIDED % (PARTIES, SAMPLES),
    "deployed serverless": SIMULATE % "has no server: one that played the network would see every client's model",
    "deployed refuses_deployment": SIMULATE % "{refuses_deployment}",
    "deployed secure": (
        "--model.secure_aggregation counts what secure sums cost, and hides no message; leave it out for clients on "
        "machines of their own, or simulate it with data on this machine"
    ),
    "deployed poison": "--data.poison alters samples, and those of a federation are on their nodes; leave it out",
    "deployed drops_nodes !forgives": (
        "--data.dataset.missing is drop, and nothing says what a round without a client is; add "
        "--model.faults.on_bad_client drop, or choose wait or stop"
    ),
}
"""Facts that do not go together, all of them, and the message. The order decides which of several messages is raised.

Why size sampling is refused: with p_i = n_i/n the probability of client i, the mean over C draws of their messages is
on average the mean weighted by samples, E[Σ_draws m_i / C] = Σ_i p_i m_i. So every draw weighs the same and no
client is absent. This does not hold if each client has to count once.
"""


class Compatibility(NamedTuple):
    """An algorithm with the user's other choices; unknown or missing ones keep their default."""

    algorithm: Any  # it may be inside wrappers
    aggregation: str = "renormalised"
    weighting: str | None = None  # None: not given
    loss: Any = None
    solver: Any = None  # `LocalSolver`
    privacy: Any = None
    secure: Any = None
    compression: Any = None  # `Compression`
    robustness: Any = None  # `Robustness`
    faults: Any = None
    sampling: str | None = None  # `--data.client_sampling`; None: not known yet
    probability: float = 1.0  # probability that a client takes part in a round
    dataset: tuple[str, str] | None = None  # its name, and the unit that it divides among clients; None: not known yet
    deployed: bool = False  # whether clients are on separate machines
    missing: str | None = None  # `--data.dataset.missing` of a federation
    poison: bool = False
    batch_norm: str = "average"
    personal: Any = None  # `PersonalSettings`
    selection: Any = None

    def check(self) -> None:
        """Refuse incompatible settings.

        Raises:
            ConfigError: with the message of the first row of `REFUSED` whose facts are all true.
        """
        facts = self.held
        for names, message in REFUSED.items():
            if all((name.removeprefix("!") in facts) != name.startswith("!") for name in names.split()):
                raise ConfigError(_filled_in(names, message, facts))

    @property
    def held(self) -> dict[str, str]:
        """The true facts, with their texts for messages."""
        return {name: str(held) for name, held in self.facts.items() if held not in (None, False)}

    @property
    def facts(self) -> dict[str, Any]:
        """The facts by name; False or None if a fact is not true."""
        return self._of_algorithm | self._of_settings | self._of_privacy | self._of_wrappers | self._of_data

    @property
    def _of_algorithm(self) -> dict[str, Any]:
        message, takes = self.algorithm.message, self.algorithm.participation
        name, reasons = type(innermost(self.algorithm)).__name__, self.algorithm.incompatible
        for feature in reasons:
            if feature not in FEATURES:
                raise ConfigError(f"{name}.incompatible has {feature!r}; give some of {', '.join(FEATURES)}")
        return {f"refuses_{feature}": reason for feature, reason in reasons.items()} | {
            "name": name,
            message.kind: True,
            "stacked": message.reduce == "stack",
            "incomplete": not message.complete,
            "accumulates": message.accumulates,
            "second_part": message.beside_models,
            "needs_all": takes.needs_all_clients,
            "counts_draws": takes.counts_draws,
            "own_filling": not takes.fills_in_absent,
            f"needs_{takes.divided_by}": True,
            "serverless": not self.algorithm.has_server,
        }

    @property
    def _of_settings(self) -> dict[str, Any]:
        parts = None if self.personal is None else self.personal.parts
        return {
            "stale_fill": self.aggregation == "stale_fill",
            "by_samples": self.weighting == "samples",
            "by_positions": self.weighting == "positions",
            "uniform": self.weighting == "uniform",
            "loss": None if self.loss is None else type(self.loss).__name__,
            "client_lr": self.solver is not None and bool(self.solver.client_lr),
            "client_work": self.solver is not None and bool(self.solver.client_work),
            "client_batch": self.solver is not None and bool(self.solver.client_batch_size),
            "searched": self.solver is not None and self.solver.lr == "auto",
            "counted_classes": getattr(self.loss, "counts_classes", False),
            "local_norm": self.batch_norm == "local",
            "personal": None if parts is None else parts if isinstance(parts, str) else ", ".join(parts),
            "alternating": parts is not None and self.personal.training == "alternating",
            "selection": None if self.selection is None else type(self.selection).__name__,
        }

    @property
    def _of_privacy(self) -> dict[str, Any]:
        privacy = self.privacy
        if privacy is None:
            return {}
        return {
            "privacy": type(privacy).__name__,
            "clips": not privacy.noises_steps,
            "noisy_steps": privacy.noises_steps,
            "noisy_messages": privacy.noises_messages,
            "fixed_denominator": privacy.fixes_denominator,
            "capped": privacy.weight_cap is not None,
            "second_bound": getattr(privacy, "second_clip_norm", None) is not None,
            "mixture_noise": getattr(privacy, "mixture_noise", None) is not None,
        }

    @property
    def _of_wrappers(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        if self.secure is not None:
            facts |= {"secure": True, "sum_dropout": getattr(self.secure, "dropout_fraction", 0) or None}
        if self.compression is not None:
            up, feedback = self.compression.up, self.compression.feedback
            facts |= {
                "compression": None if up is None else type(up).__name__,
                "scaled_codec": up is not None and not up.adds_up,
                "downlink": self.compression.down is not None,
                "ef21": feedback == "ef21",
                "feedback_none": feedback == "none",
            }
        if self.robustness is not None and self.robustness.given:
            rule = self.robustness.rule
            facts |= {
                "robust": self.robustness.option,
                "robust_option": "--model.attack" if rule is None else "--model.robust_aggregation",
                "rule": rule is not None,
                "rule_cap": self.robustness.weight_cap,
                "freezing_rule": self.robustness.freezes_minorities(self.algorithm) and not rule.only_slows_minorities,
            }
        if self.faults is not None:
            facts |= {
                "faults": True,
                "over_selection": bool(self.faults.over_selection),
                "average": None if self.faults.average == "renormalised" else self.faults.average,
                "lost_messages": self.faults.loses_messages,
                "forgives": self.faults.forgives,
            }
        return facts

    @property
    def _of_data(self) -> dict[str, Any]:
        sampling, (dataset, divided_by) = self.sampling, self.dataset or (None, None)
        return {
            "sampling": sampling,
            "size": sampling == "size",
            "poisson": sampling == "poisson",
            "uniformly": sampling == "uniform",
            "probability": f"{self.probability:.4g}" if self.probability < 1 else None,
            "dataset": dataset,
            f"has_{divided_by}": dataset is not None,
            "known": dataset is not None,
            "deployed": self.deployed,
            "drops_nodes": self.missing == "drop",
            "poison": self.poison,
        }


def _filled_in(names: str, message: str, facts: dict[str, str]) -> str:
    """The message of a row with the facts; if the algorithm's reason has a fix, that replaces the row's."""
    refused = next((name for name in names.split() if name.startswith("refuses_")), "")
    reason, _, fix = facts.get(refused, "").partition("; ")
    if not fix:
        return message.format_map(facts)
    return f"{message.rpartition('; ')[0].format_map(facts | {refused: reason})}; {fix}"
