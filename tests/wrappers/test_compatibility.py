"""The table of what is refused: every row can be reached, and its message can be written."""

import re
from dataclasses import dataclass
from string import Formatter
from typing import ClassVar

import pytest
from combination import refuse

from lit_fed import algorithms
from lit_fed.algorithms import IFCA, FedAvg, FedEM, FedNova, ResponsibilityFedEM
from lit_fed.core.algorithm import MessageSpec
from lit_fed.core.fine_tuning import FineTuning
from lit_fed.core.targets import CrossEntropy
from lit_fed.errors import ConfigError
from lit_fed.settings import model_settings
from lit_fed.wrappers import ClientPrivacy, ExamplePrivacy, SecureSum
from lit_fed.wrappers.compatibility import _of_algorithm, reasons, refuse_incompatible, table
from lit_fed.wrappers.compression.codecs import QSGD
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.feature import KINDS, features
from lit_fed.wrappers.mixture_start import Clustering
from lit_fed.wrappers.robust.attacks import SignFlip
from lit_fed.wrappers.selection.rules import PowerOfChoice


def known_facts():
    """Names of all facts: those of kinds of messages and divisions stand for themselves."""
    found, algorithm = {}, FedAvg()
    given = model_settings(
        algorithm=algorithm, privacy=ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3), secure_aggregation=SecureSum(),
        faults=Faults(0.1), compression=QSGD(), attack=SignFlip(), selection=PowerOfChoice(), personal="head",
        serving=FineTuning(1),
    )  # fmt: skip
    assert len(given.features) == len(features())

    def held(algorithm, chosen, facts):
        found.update(_of_algorithm(algorithm) | facts)
        for one in chosen:
            found.update(one.facts(algorithm))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_fed.settings.refuse_incompatible", held)
        given.check_combination()
    divisions = [f"{what}_{of}" for what in ("has", "needs") for of in ("samples", "features")]
    return {*found, *KINDS, *divisions, *(f"refuses_{key}" for key in reasons())}


@pytest.mark.parametrize("row", table())
def test_rows_name_facts_and_quote_facts(row):
    known = known_facts()
    assert {name.removeprefix("!") for name in row.split()} <= known
    assert set(re.findall(r"\{(.*?)\}", table()[row])) <= known


def test_every_key_is_in_the_table():
    assert {f"refuses_{key}" for key in reasons()} <= set(" ".join(table()).split())


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
    with pytest.raises(ConfigError, match=r"--model.loss is CrossEntropy, and Own does not like it; leave it out"):
        refuse(Own(), loss=CrossEntropy())
    with pytest.raises(ConfigError, match=r"--model.compression encodes changes of models, and Own keeps rows"):
        refuse(Own(), compression=QSGD())
    refuse(Own(strict=False), loss=CrossEntropy(), compression=QSGD())


def test_the_fix_of_a_reason_replaces_that_of_the_row():
    class Fixed(FedAvg):
        incompatible: ClassVar = {"loss": "needs {the} log-loss; give null"}

    with pytest.raises(ConfigError) as refused:
        refuse(Fixed(), loss=CrossEntropy())
    assert str(refused.value) == "--model.loss is CrossEntropy, and Fixed needs {the} log-loss; give null"


def test_an_average_that_robust_rules_refuse_has_one_fix():
    with pytest.raises(ConfigError, match=r"each client sends; give --model\.algorithm FedEM$"):
        refuse(ResponsibilityFedEM(), attack=SignFlip())


def test_a_start_that_privacy_refuses_is_named():
    said = r"FedEM lets each client .* by --model\.algorithm\.start Clustering; give --model\.algorithm\.start null$"
    with pytest.raises(ConfigError, match=said):
        refuse(FedEM(start=Clustering()), privacy=ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3))


def test_unknown_features_are_refused_by_name():
    class Misspelt(FedAvg):
        incompatible: ClassVar = {"losses": "has none"}

    with pytest.raises(ConfigError, match=r"Misspelt.incompatible has 'losses'; give some of size_sampling, loss"):
        refuse(Misspelt())


@pytest.mark.parametrize("name", algorithms.__all__)
def test_algorithms_refuse_keys_that_exist(name):
    """Of lit_fed's own algorithms a key may be that of an absent room, so a misspelt one is found here."""
    refused = getattr(getattr(algorithms, name), "incompatible", {})
    assert isinstance(refused, property) or set(refused) <= set(reasons())


def test_the_first_row_is_raised():
    with pytest.raises(ConfigError, match=r"its shared steps depend on the choice of a cluster, fitted without noise"):
        refuse(IFCA(), privacy=ExamplePrivacy(1.0, clip_norm=1.0, delta=1e-3, sample_rate=0.1))
    with pytest.raises(ConfigError, match=r"charges one average of models a round, and FedNova divides by"):
        refuse(FedNova(), privacy=ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3))


@pytest.mark.parametrize("row", [names for names in table() if "!" in names])
def test_a_fact_that_must_not_hold_lifts_the_refusal(row):
    names = row.split()
    quoted = {name for _, name, _, _ in Formatter().parse(table()[row]) if name}
    held = dict.fromkeys(quoted | {name for name in names if not name.startswith("!")}, "x")
    lifted = held | {name[1:]: "x" for name in names if name.startswith("!")}
    assert refusal_of(held) == table()[row].format_map(held)
    assert refusal_of(lifted) != table()[row].format_map(lifted)


def refusal_of(facts):
    """What is said where these facts hold and no others; "" if nothing is refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_fed.wrappers.compatibility._of_algorithm", lambda algorithm: {})
        try:
            refuse_incompatible(None, (), facts)
        except ConfigError as error:
            return str(error)
    return ""
