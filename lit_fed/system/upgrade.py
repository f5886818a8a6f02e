"""Settings of version 0.2: the line to write in a configuration, and checkpoints read in today's names.

docs/upgrade.md lists the same lines.
"""

from __future__ import annotations

from typing import Any

from lit_fed.errors import ConfigError

__all__ = ["GONE", "facts_of_today", "instead_of", "upgraded"]

PAGE = "docs/upgrade.md has the line to write for each option of version 0.2"

GONE: dict[str, str] = {
    "model.algorithm.average": (
        "for samples write --model.algorithm FedEM, for clients DFedEM; for responsibility, and for auto outside of "
        "privacy, robust rules, EF21 and nodes, write --model.algorithm ResponsibilityFedEM (ResponsibilityDFedEM); "
        "rescaled is gone"
    ),
    "model.algorithm.min_weight": "leave it out, clients send all components",
    "model.algorithm.most_components": "leave it out, clients send all components",
    "model.algorithm.shuffle_per_component": (
        "leave out false; for true write --model.algorithm OfficialFedEM "
        "--model.algorithm.refresh_mixture_at_eval false"
    ),
    "model.algorithm.refresh_mixture_at_eval": (
        "leave out false; for true write --model.algorithm OfficialFedEM --model.algorithm.shuffle_per_component false"
    ),
    "model.algorithm.start Annealing": "write --model.algorithm.start Clustering, or leave it out",
    "model.algorithm.start FarthestClients": "write --model.algorithm.start Clustering, or leave it out",
    "model.algorithm.start Restarts": "write --model.algorithm.start Clustering, or leave it out",
    "model.algorithm.start SplitAndMerge": "write --model.algorithm.start Clustering, or leave it out",
    "model.secure_aggregation.masks": "leave it out; masks of one process hid nothing and changed no number",
    "model.privacy.second_clip_norm": "leave it out; clip_norm bounds all that a client sends",
    "model.privacy.noise_scale": "leave it out; all of the noise is added, and ε is that of the run",
    "trainer.callbacks.uplink": "leave it out; clients send one after the other",
    "trainer.callbacks.compute": "leave it out; the time of the slowest client is the expected one",
    "trainer.callbacks.every_n_evaluations": "leave it out; unseen clients are measured in every evaluation",
    "data.public": "leave it out; no algorithm trains on samples of the server any more",
    "model.algorithm.alpha_lr": "leave it out; α of APFL takes the learning rate of the models",
    "model.algorithm.alpha_decay": "leave it out; APFL has no penalty on α",
    "model.algorithm.gradient_factor": "leave it out; APFL multiplies the gradient for v_i by α_i, as in its paper",
    "model.algorithm.start_rounds": "leave it out; FedALA begins in round 1",
    "model.algorithm.scaled": "leave it out; for true give FedNTD beta times the square of its temperature",
    "model.algorithm.square": "leave it out; the squares are those of the round's change, as in the paper",
    "model.algorithm.personal_l2": "leave it out; --model.solver.weight_decay is on all leaves",
    "model.algorithm.most_models": "leave it out; a client of FedeRiCo predicts with all models, as in the paper",
    "model.algorithm.refresh_at_eval": "leave it out; the local variable of a seen client is that of its last round",
    "model.algorithm.min_variance": "leave it out; UCFL takes 1e-12",
    "model.algorithm.copy_weight": "leave it out; form copies of MixtureADMM is gone, jacobi is the other parallel one",
    "model.algorithm.redrawn_duals": "leave it out; GADMM keeps the multipliers after a new draw",
    **dict.fromkeys(
        ["model.algorithm.unseen_epochs", "model.personal_unseen_epochs"],
        "leave it out, an unseen client trains as in a round; --model.serving.fine_tune_epochs adds passes for every "
        "client",
    ),
    **dict.fromkeys(
        [f"model.solver.optimizer {name}" for name in ("rmsprop", "adagrad", "adadelta", "adamax", "radam")],
        "write --model.solver.optimizer adam, or the path of a function such as my_file.lion",
    ),
}
"""Options that were removed after version 0.2, some with a value → what to write instead."""

TRAINED_AS_IN_A_ROUND = [
    "Ditto", "FML", "FedAMP", "FedAS", "FedCP", "FedDBE", "FedPAC", "FedPer", "FedProto", "FedRoD", "FedSALoRA",
    "FedU", "GPFL", "HeurFedAMP", "L2GD", "L2SGDPlus", "LGFedAvg", "Local", "MixtureDCA", "PFedHN",
    "PFedHNPC", "PFedMe", "PersonalParts", "ProxAvg",
]  # fmt: skip
"""What had `unseen_epochs`, 1 by default, beside those of `UNSET`."""

UNSET: dict[str, dict[str, Any]] = {
    **{name: {"unseen_epochs": 1} for name in TRAINED_AS_IN_A_ROUND},
    **{name: {"unseen_epochs": 10} for name in ("FedRep", "MOCHA")},
    "APFL": {"alpha_lr": None, "alpha_decay": 0.0, "gradient_factor": True, "unseen_epochs": 0},
    "FedALA": {"start_rounds": 1, "unseen_epochs": 1},
    "FedNTD": {"scaled": False},
    **{name: {"square": "raw"} for name in ("FedAdagrad", "FedAdam", "FedYogi")},
    **{name: {"personal_l2": 0.0, "unseen_epochs": 1} for name in ("FedSim", "FedAlt")},
    "FedeRiCo": {"most_models": None},
    "GADMM": {"redrawn_duals": "warm", "unseen_epochs": 1},
    "MixtureADMM": {"copy_weight": None, "unseen_epochs": 1},
    "SurrogateOptimization": {"refresh_at_eval": False},
    "UCFL": {"min_variance": 1e-12},
    "SimulatedTime": {"uplink": "serial", "compute": "expected"},
    "UnseenClientEvaluation": {"every_n_evaluations": 1},
    "ClientPrivacy": {"second_clip_norm": None, "noise_scale": 1.0},
}
"""Classes with options that are gone, and what these had to be for today's class to be the same."""

HABITS = ("shuffle_per_component", "refresh_mixture_at_eval")
"""Options that are those of OfficialFedEM now."""

AVERAGE = "model.algorithm.average"

BESIDE = [f"model.algorithm.{name}" for name in ("min_weight", "most_components", *HABITS)]
"""Options that every config.yaml of FedEM of version 0.2 holds beside `AVERAGE`."""


def instead_of(option: str) -> list[str]:
    """Lines about an option that is gone: what to write instead; none if it is not known.

    Args:
        option: its name without dashes, with a space and the class if that is gone.

    Example:
        >>> instead_of("model.algorithm.min_weight")[0]
        '--model.algorithm.min_weight was removed after version 0.2: leave it out, clients send all components'
    """
    if option not in GONE:
        return []
    more = [f"--{AVERAGE}: {GONE[AVERAGE]}"] if option in BESIDE else []
    others = ", ".join(one.rpartition(".")[2] for one in BESIDE if one != option)
    if option in (AVERAGE, *BESIDE):
        others += ", data.public and model.personal_unseen_epochs"
        more.append(f"a config.yaml of version 0.2 also holds {others}; leave these out")
    return [f"--{option} was removed after version 0.2: {GONE[option]}", *more, PAGE]


def upgraded(entry: dict[str, Any], place: str) -> dict[str, Any]:
    """The entry of lit_fed in a checkpoint, with the settings of version 0.2 in today's names.

    Args:
        entry: identity and arguments of the run, and more.
        place: the option and its file, for messages.

    Raises:
        ConfigError: if the run used what is gone.
    """
    averages = _averages(entry["identity"])  # where `auto` is decided
    today = {name: _today(entry[name], averages, place) for name in ("identity", "arguments")}
    for option in ("data.public", "model.personal_unseen_epochs"):  # null, or what the identity says
        today["arguments"] = _without(today["arguments"], option)
    return entry | today


OF_CLIENTS = {"lr_factors": "client_lr", "work_shares": "client_work", "batch_sizes": "client_batch_size"}
"""Facts of version 0.2 → the option whose values they hold."""


def facts_of_today(facts: Any) -> Any:
    """The facts of a training in a checkpoint, with those of version 0.2 in today's names; unchecked."""
    if not isinstance(facts, dict) or not OF_CLIENTS.keys() & facts.keys():
        return facts
    given = {option: facts[name] for name, option in OF_CLIENTS.items() if facts.get(name) is not None}
    return {name: one for name, one in facts.items() if name not in OF_CLIENTS} | {"of_clients": given}


def _without(settings: dict[str, Any], option: str) -> dict[str, Any]:
    """Nested settings without an option that is gone."""
    section, name = option.split(".")
    kept = {key: value for key, value in settings.get(section, {}).items() if key != name}
    return settings | {section: kept} if section in settings else settings


def _averages(settings: Any) -> set[str]:
    """The values of `average` in all mixtures of version 0.2 among these settings."""
    if not isinstance(settings, dict):
        return set()
    found = set().union(*map(_averages, settings.values()))
    return found | ({str(settings["average"])} if _mixture_of(settings) and "average" in settings else set())


def _mixture_of(settings: dict[str, Any]) -> str:
    """FedEM or DFedEM if a dict of settings is of one of these, else ""."""
    package, _, name = str(settings.get("class_path")).rpartition(".")
    return name if name in ("FedEM", "DFedEM") and package.partition(".")[0] in ("", "lit_fed") else ""


def _today(settings: Any, averages: set[str], place: str, *, inside: str = "") -> Any:
    """Settings in today's names; `inside` is the name of the setting that they belong to."""
    if not isinstance(settings, dict):
        return settings
    settings = {name: _today(value, averages, place, inside=name) for name, value in settings.items()}
    if str(settings.get("class_path")).endswith("MaskedAverage"):
        settings["class_path"] = "SecureAverage"
    if str(settings.get("class_path")).endswith("SecureSum"):  # masks changed no number
        settings.pop("masks", None)
        (settings.get("init_args") or {}).pop("masks", None)
    if "norm" in settings.get("parts", ()) and len(settings["parts"]) == 1:  # an unseen client never trained these
        settings.pop("unseen_epochs", None)
    _drop_unset(settings, place)
    name, is_argument = _mixture_of(settings), "init_args" in settings
    options = settings["init_args"] if is_argument else {key: v for key, v in settings.items() if key != "class_path"}
    if not name or not isinstance(options, dict) or not {"average", "min_weight"} & options.keys():
        return settings
    average = options.get("average", "samples")
    average = next(iter(averages), "samples") if average == "auto" else average
    habits = [key for key in HABITS if options.get(key)]
    _refuse_gone(name, average, habits, options, place)
    if average == "responsibility":
        name = f"Responsibility{name}"
    elif habits:
        name, options = "OfficialFedEM", dict.fromkeys(HABITS, False) | options
    gone = {"average", "min_weight", "most_components", *(() if habits else HABITS)}
    options = {key: value for key, value in options.items() if key not in gone}
    if is_argument:
        return settings | {"class_path": f"lit_fed.{name}", "init_args": options}
    today = {"class_path": name} | options
    wrapped = options.get("start") and inside != "base"  # KNNPer puts the start around its base itself
    return {"class_path": "StartByClustering", "inner": today} if wrapped else today


def _drop_unset(settings: dict[str, Any], place: str) -> None:
    """Leave out what a class of lit_fed lost since, if it was not used."""
    package, _, name = str(settings.get("class_path")).rpartition(".")
    inside = package.partition(".")[0] in ("", "lit_fed")
    places = [one for one in (settings, settings.get("init_args")) if inside and isinstance(one, dict)]
    for options in places:
        for option, unset in UNSET.get(name, {}).items():
            if options.pop(option, unset) != unset:
                raise ConfigError(f"{place} is of version 0.2, of a run of {name} with {option}, which is gone; {PAGE}")


def _refuse_gone(name: str, average: str, habits: list[str], options: dict[str, Any], place: str) -> None:
    start = options.get("start")
    start = start.get("class_path") if isinstance(start, dict) else start
    gone = [f"{key} {options[key]}" for key in ("min_weight", "most_components") if options.get(key)]
    gone += ["average rescaled"] if average == "rescaled" else []
    gone += [f"{', '.join(habits)} with average responsibility"] if habits and average == "responsibility" else []
    gone += [f"start {start}"] if start and not str(start).endswith("Clustering") else []
    if gone:
        raise ConfigError(
            f"{place} is of version 0.2, of a run of {name} with {', '.join(gone)}, which is gone; {PAGE}"
        )
