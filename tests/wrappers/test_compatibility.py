"""The table of what is refused: every row can be reached, and its message can be written."""

import re
from dataclasses import dataclass
from string import Formatter
from typing import ClassVar

import pytest

from lit_fed.algorithms import AFL, IFCA, MOCHA, FedAvg, FedEM, FedNova, FedProto, FedSGD, ResponsibilityFedEM
from lit_fed.core.algorithm import MessageSpec
from lit_fed.errors import ConfigError
from lit_fed.wrappers import ClientPrivacy, ExamplePrivacy, SecureSum
from lit_fed.wrappers.compatibility import FEATURES, REFUSED, Compatibility
from lit_fed.wrappers.compression.codecs import QSGD
from lit_fed.wrappers.compression.wrapper import Compression
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.mixture_start import Clustering, with_start
from lit_fed.wrappers.robust.attacks import SignFlip
from lit_fed.wrappers.robust.wrapper import Robustness


def known_facts():
    """Names of all facts: those of kinds of messages and divisions stand for themselves."""
    chosen = Compatibility(
        FedAvg(), privacy=ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3), secure=SecureSum(), faults=Faults(),
        compression=Compression(QSGD()), robustness=Robustness(attack=SignFlip()),
    )  # fmt: skip
    kinds = [one.message.kind for one in (MOCHA(), AFL(), FedProto(), FedSGD())] + ["nothing"]
    divisions = [f"{what}_{of}" for what in ("has", "needs") for of in ("samples", "features")]
    return {*chosen.facts, *kinds, *divisions, *(f"refuses_{feature}" for feature in FEATURES)}


@pytest.mark.parametrize("row", REFUSED)
def test_rows_name_facts_and_quote_facts(row):
    known = known_facts()
    assert {name.removeprefix("!") for name in row.split()} <= known
    assert set(re.findall(r"\{(.*?)\}", REFUSED[row])) <= known


def test_every_feature_is_in_the_table():
    assert {f"refuses_{feature}" for feature in FEATURES} <= set(" ".join(REFUSED).split())


@dataclass(frozen=True)
class Own(FedAvg):
    """A user's algorithm, whose settings decide."""

    strict: bool = True

    @property
    def message(self):
        return MessageSpec("rows" if self.strict else "models")

    @property
    def incompatible(self):
        return {"loss": "does not like it"} if self.strict else {}


def test_settings_of_a_users_class_decide():
    with pytest.raises(ConfigError, match=r"--model.loss is object, and Own does not like it; leave it out"):
        Compatibility(Own(), loss=object()).check()
    with pytest.raises(ConfigError, match=r"--model.compression encodes changes of models, and Own keeps rows"):
        Compatibility(Own(), compression=Compression(QSGD())).check()
    Compatibility(Own(strict=False), loss=object(), compression=Compression(QSGD())).check()


def test_the_fix_of_a_reason_replaces_that_of_the_row():
    class Fixed(FedAvg):
        incompatible: ClassVar = {"loss": "needs {the} log-loss; give null"}

    with pytest.raises(ConfigError) as refused:
        Compatibility(Fixed(), loss=object()).check()
    assert str(refused.value) == "--model.loss is object, and Fixed needs {the} log-loss; give null"


def test_an_average_that_robust_rules_refuse_has_one_fix():
    with pytest.raises(ConfigError, match=r"each client sends; give --model\.algorithm FedEM$"):
        Compatibility(ResponsibilityFedEM(), robustness=Robustness(attack=SignFlip())).check()


def test_a_start_that_privacy_refuses_is_named():
    said = r"FedEM lets each client .* by --model\.algorithm\.start Clustering; give --model\.algorithm\.start null$"
    with pytest.raises(ConfigError, match=said):
        Compatibility(
            with_start(FedEM(start=Clustering())), privacy=ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3)
        ).check()


def test_unknown_features_are_refused_by_name():
    class Misspelt(FedAvg):
        incompatible: ClassVar = {"losses": "has none"}

    with pytest.raises(ConfigError, match=r"Misspelt.incompatible has 'losses'; give some of size_sampling, loss"):
        Compatibility(Misspelt()).check()


def test_the_first_row_is_raised():
    both = Compatibility(IFCA(), privacy=ExamplePrivacy(1.0, clip_norm=1.0, delta=1e-3, sample_rate=0.1))
    with pytest.raises(ConfigError, match=r"its shared steps depend on the choice of a cluster, fitted without noise"):
        both.check()
    with pytest.raises(ConfigError, match=r"charges one average of models a round, and FedNova divides by"):
        Compatibility(FedNova(), privacy=ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3)).check()


@pytest.mark.parametrize("row", [names for names in REFUSED if "!" in names])
def test_a_fact_that_must_not_hold_lifts_the_refusal(row):
    names = row.split()
    quoted = {name for _, name, _, _ in Formatter().parse(REFUSED[row]) if name}
    held = dict.fromkeys(quoted | {name for name in names if not name.startswith("!")}, "x")
    lifted = held | {name[1:]: "x" for name in names if name.startswith("!")}
    assert refusal_of(held) == REFUSED[row].format_map(held)
    assert refusal_of(lifted) != REFUSED[row].format_map(lifted)


def refusal_of(facts):
    """What is said where these facts hold and no others; "" if nothing is refused."""
    given = type("Given", (Compatibility,), {"facts": facts})(None)
    try:
        given.check()
    except ConfigError as error:
        return str(error)
    return ""
