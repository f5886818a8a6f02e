import pytest
import torch

from lit_fed.core.types import Chosen, ModelState
from lit_fed.errors import ConfigError
from lit_fed.system.discovery import subclasses
from lit_fed.wrappers.robust.attacks import ALIE, IPM, Attack, Gaussian, Invalid, Mimic, ModelReplacement, SignFlip
from lit_fed.wrappers.robust.attacks.base import Intercepted

HONEST = [[1, 2, 0], [1.2, 1.8, 0.1], [0.8, 2.2, -0.1], [1.1, 2.1, 0.2], [0.9, 1.9, -0.2]]
ROWS = torch.tensor([*HONEST, [10, -10, 5], [9, -9, 6]], dtype=torch.float64)
LAST_TWO = torch.tensor([False] * 5 + [True] * 2)
ALL = [SignFlip(3.0), Gaussian(), ALIE(), IPM(), Invalid(), Mimic(), ModelReplacement()]


def sent(rows=ROWS, attacked=LAST_TWO, old=None, client_ids=None, round_idx=0):
    old = torch.zeros(rows.shape[1:], dtype=rows.dtype) if old is None else old
    ids = torch.arange(len(rows)) if client_ids is None else torch.tensor(client_ids)
    return Intercepted({"w": rows}, {"w": old}, attacked, ids, 0, round_idx, "attack/train")


def told(attack, **changed):
    return attack.strike(sent(**changed))["w"]


def close(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("attack", "row", "mean"),
    [
        (IPM(0.1), [-0.1, -0.2, 0], [0.6857142857, 1.3714285714, 0]),
        (IPM(10.0), [-10, -20, 0], [-2.1428571429, -4.2857142857, 0]),
        (ALIE(), [0.9599423058, 1.9599423058, -0.0400576942], None),
        (ALIE(1.5), [0.7628291755, 1.7628291755, -0.2371708245], None),
        (ALIE(-1.5), [1.2371708245, 2.2371708245, 0.2371708245], None),
        (Mimic(), [1, 2, 0], None),
        (Mimic(3), [1.1, 2.1, 0.2], None),
    ],
    ids=str,
)
def test_attackers_that_send_the_same(attack, row, mean):
    found = told(attack)
    close(found[:5], HONEST)
    close(found[5:], [row, row])
    if mean is not None:
        close(found.mean(0), mean)


def test_sign_flip_is_of_the_attackers_own_change():
    third = torch.tensor([False, False, False, True, False, False, False])
    close(told(SignFlip(), attacked=third)[3], [-1.1, -2.1, -0.2])
    close(told(SignFlip(10.0), attacked=third)[3], [-11, -21, -2])


@pytest.mark.parametrize(
    ("clients", "attackers", "deviations"),
    [
        (7, 2, 0.2533471031),
        (25, 5, 0.2533471031),
        (50, 10, 0.2533471031),
        (20, 4, 0.1573106846),
        (50, 24, 1.4260768723),
        (25, 11, 1.0675705239),
        (100, 20, 0.2858408749),
        (10, 2, 0.0),
    ],
)
def test_alie_takes_as_many_deviations_as_go_unnoticed(clients, attackers, deviations):
    ALIE().check(clients, attackers)
    assert ALIE.deviations(clients, attackers) == pytest.approx(deviations, abs=1e-9)


@pytest.mark.parametrize(("clients", "attackers"), [(10, 6), (2, 1), (4, 3)])
def test_alie_is_refused_with_numbers_that_leave_it_no_z(clients, attackers):
    with pytest.raises(ConfigError, match=f"ALIE with {attackers} attackers among {clients} clients"):
        ALIE().check(clients, attackers)
    ALIE(1.5).check(clients, attackers)


def test_rounds_with_other_numbers_than_expected_have_a_finite_z():
    for clients in range(1, 9):
        for attackers in range(1, clients + 1):
            assert abs(ALIE.deviations(clients, attackers)) < 3


def test_a_replaced_model_takes_the_place_of_the_mean_of_unmoved_ones():
    rows = torch.zeros(10, 3, dtype=torch.float64)
    rows[4] = torch.tensor([1.0, -2.0, 3.0])
    attacked = torch.arange(10) == 4
    assert torch.equal(told(ModelReplacement(10.0), rows=rows, attacked=attacked).mean(0), rows[4])
    assert torch.equal(told(ModelReplacement(), rows=rows, attacked=attacked).mean(0), rows[4])
    two = attacked | (torch.arange(10) == 7)
    assert torch.equal(told(ModelReplacement(), rows=rows, attacked=two)[4], 5 * rows[4])


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_invalid_sends_no_numbers(value):
    found = told(Invalid(value))
    wanted = torch.full((2, 3), float(value), dtype=torch.float64)
    assert torch.equal(found[5:].nan_to_num(7, 8), wanted.nan_to_num(7, 8))
    close(found[:5], HONEST)


def test_noise_belongs_to_client_and_round():
    rows = torch.zeros(4, 2000)
    two = torch.tensor([False, True, True, False])
    found = told(Gaussian(2.0), rows=rows, attacked=two)
    assert found.dtype == torch.float32
    assert abs(float(found[1:3].std()) - 2) < 0.1
    assert not torch.equal(found[1], found[2])
    alone = told(Gaussian(2.0), rows=rows[:1], attacked=two[1:2], client_ids=[2])
    assert torch.equal(alone[0], found[2])
    assert not torch.equal(told(Gaussian(2.0), rows=rows, attacked=two, round_idx=1)[1], found[1])


def test_mimic_copies_the_next_honest_client_where_its_client_attacks_or_is_absent():
    attacked = torch.tensor([True, False, True, False])
    rows = ROWS[:4]
    for client, place in [(0, 1), (2, 1), (3, 1), (5, 3), (8, 3), (9, 1)]:  # ids 1, 3, 5, 8; honest: 3 and 8
        close(told(Mimic(client), rows=rows, attacked=attacked, client_ids=[1, 3, 5, 8])[0], HONEST[place])


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: type(attack).__name__)
class TestEveryAttack:
    def test_acts_on_changes_to_what_the_server_knows(self, attack):
        old = torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
        moved, plain = told(attack, rows=ROWS + old, old=old), told(attack)
        torch.testing.assert_close(moved - old, plain, rtol=0, atol=1e-12, equal_nan=True)

    def test_without_attackers_changes_no_bit(self, attack):
        message = sent(attacked=torch.zeros(7, dtype=torch.bool))
        assert attack.strike(message)["w"] is message.values["w"]

    def test_changes_neither_its_input_nor_honest_rows_nor_whole_numbers(self, attack):
        rows, batches = ROWS.clone(), torch.arange(7)
        message = sent(rows)._replace(
            values={"w": rows, "batches": batches}, reference={"w": torch.zeros(3).double(), "batches": torch.tensor(4)}
        )
        found = attack.strike(message)
        assert torch.equal(rows, ROWS)
        assert torch.equal(found["w"][:5], ROWS[:5])
        assert torch.equal(found["batches"], torch.arange(7))
        assert found["w"].dtype == torch.float64

    @pytest.mark.parametrize("clients", [1, 2])
    def test_has_a_meaning_without_honest_clients(self, attack, clients):
        found = told(attack, rows=ROWS[:clients], attacked=torch.ones(clients, dtype=torch.bool))
        assert found.shape == (clients, 3)
        assert found.isfinite().all() != isinstance(attack, Invalid)

    def test_acts_on_each_model_among_those_who_chose_it(self, attack):
        taken = torch.zeros(7, 2, dtype=torch.float64)
        taken[[0, 1, 5], 0] = 1  # one attacker for each model
        taken[[2, 3, 4, 6], 1] = 1
        old = torch.tensor([[1.0, 1.0, 1.0], [-2.0, 0.0, 2.0]], dtype=torch.float64)
        models = (ROWS[:, None] + old) * taken[..., None]
        reference = Chosen(ModelState({"w": old}, {}), torch.zeros(2))
        message = sent()._replace(values=Chosen(ModelState({"w": models}, {}), taken), reference=reference)
        found = attack.strike(message)
        assert torch.equal(found.taken, taken)
        assert not found.models[0]["w"][taken == 0].any()
        assert torch.equal(found.models[0]["w"][:5], models[:5])
        for place, (takers, attacker) in enumerate([([0, 1, 5], 5), ([2, 3, 4, 6], 6)]):
            alone = told(attack, rows=ROWS[takers], attacked=LAST_TWO[takers], client_ids=takers)[-1] + old[place]
            if not isinstance(attack, Gaussian):  # each model has noise of its own
                torch.testing.assert_close(
                    found.models[0]["w"][attacker, place], alone, rtol=0, atol=1e-12, equal_nan=True
                )


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Gaussian, {"std": 0.0}, "--model.attack.std is 0.0"),
        (Gaussian, {"std": float("inf")}, "--model.attack.std is inf"),
        (ALIE, {"z": 0.0}, "--model.attack.z is 0.0"),
        (IPM, {"epsilon": 0.0}, "--model.attack.epsilon is 0.0"),
        (Mimic, {"client": -1}, "--model.attack.client is -1"),
        (Invalid, {"value": "zero"}, "--model.attack.value is zero"),
        (ModelReplacement, {"boost": 0.0}, "--model.attack.boost is 0.0"),
        (SignFlip, {"scale": -1.0}, "--model.attack.scale is -1.0"),
    ],
)
def test_settings_outside_their_range_are_refused(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**settings)


def test_every_attack_is_found_and_tested():
    assert {type(attack) for attack in ALL} == {
        one for one in subclasses(Attack) if one.__module__.startswith("lit_fed.")
    }
