"""ε of published settings by both accountants, and by an independent reference of the older conversion."""

import logging
import math
import sys

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy import accountant
from lit_fed.wrappers.privacy.accountant import (
    accountant_name,
    epsilon_of_local_messages,
    epsilon_of_releases,
    epsilon_of_truncated_batches,
    noise_for_local_messages,
    noise_for_releases,
)

SETTINGS = [  # sampling probability, noise multiplier, releases, δ; classic, RDP, PLD
    (0.01, 1.0, 1000, 1e-5, 2.5383475455, 2.101367, 1.828244),
    (0.01, 1.1, 1000, 1e-5, 2.0867961136, 1.711770, 1.515370),
    (0.01, 1.0, 10000, 1e-5, 7.4691823108, 6.712757, 6.187745),
    (0.01, 1.1, 10000, 1e-5, 6.2798110296, 5.632011, 5.192620),
    (0.01, 4.0, 10000, 1e-5, 1.2585747413, 1.035490, 0.946999),
    (0.04, 1.5, 2250, 1e-5, 8.0796569667, 7.329335, 6.768787),
    (256 / 60000, 1.3, 3515, 1e-5, 1.1921299645, 0.954430, 0.864459),
    (256 / 60000, 1.1, 14062, 1e-5, 3.0090995257, 2.596556, 2.381686),
    (256 / 60000, 0.7, 10546, 1e-5, 7.1226216755, 6.319464, 5.639447),
    (240 / 60000, 1.3, 3600, 1e-5, None, 0.904441, 0.815751),
    (120 / 3383, 1.2, 100, 1e-5, None, 1.986115, 1.707471),
    (0.1, 1.0, 200, 1e-3, 9.7963377002, 8.254141, 7.096154),
    (0.05, 1.0, 200, 1e-3, 4.5858388675, 3.751395, 3.162054),
    (1.0, 5.0, 200, 1e-3, 14.9077552790, 13.293279, 12.069668),
    (0.1, 1.0, 100, 1e-5, None, 7.903850, 7.046603),
    (0.01, 1.0, 1, 1e-5, None, 0.955549, 0.199450),
]


def classic(q, z, releases, delta):
    """Mironov's conversion at whole orders, as papers and tutorials have it up to 2021."""
    best = math.inf
    for order in range(2, 257):
        k = np.arange(order + 1)
        chances = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        if q < 1:
            chances = chances + k * math.log(q) + (order - k) * math.log1p(-q)
        else:
            chances = np.where(k == order, 0.0, -np.inf)
        moment = logsumexp(chances + (k * k - k) / (2 * z * z))
        best = min(best, (releases * moment - math.log(delta)) / (order - 1))
    return best


@pytest.mark.parametrize(("q", "z", "releases", "delta", "by_classic", "by_rdp", "by_pld"), SETTINGS)
def test_published_settings(q, z, releases, delta, by_classic, by_rdp, by_pld):
    assert epsilon_of_releases(q, z, releases, delta, "rdp") == pytest.approx(by_rdp, abs=1e-6)
    assert epsilon_of_releases(q, z, releases, delta) == pytest.approx(by_pld, abs=1e-4)
    old = classic(q, z, releases, delta)
    assert by_pld < by_rdp < old
    if by_classic is not None:
        assert old == pytest.approx(by_classic, abs=1e-9)


def test_samples_in_poisson_batches():
    assert epsilon_of_releases(32 / 500, 1.1, 1000, 1e-3) == pytest.approx(9.1685, abs=1e-4)
    assert epsilon_of_releases(32 / 500, 1.1, 1000, 1e-3, "rdp") == pytest.approx(10.3763, abs=1e-4)


@pytest.mark.parametrize(("width", "expected"), [(80, 7.0602), (500, 7.0466), (60, 13.70)])
def test_batches_cut_at_a_width(width, expected):
    assert epsilon_of_truncated_batches([(500, 100)], 0.1, width, 1.0, 1e-5) == pytest.approx(expected, abs=5e-3)


def test_cut_batches_cost_most_at_a_size_in_between():
    """ε of every size alone, by steps of all clients and by sizes: the largest of any client counts."""
    alone = {130: 10.168, 140: 10.424, 250: 8.516, 400: 6.376, 8: 2.878}

    def epsilon(clients, exact=True):
        return epsilon_of_truncated_batches(clients, 0.1, 12, 1.0, 1e-4, exact=exact)

    for size, expected in alone.items():
        assert epsilon([(size, 20)]) == pytest.approx(expected, abs=1e-3)
    together = [(size, 20) for size in alone]
    assert epsilon(together) == epsilon([(140, 20)])
    assert epsilon(together) <= epsilon(together, exact=False) < epsilon(together) + 5e-3
    assert epsilon([(400, 20), (130, 20), (140, 5)]) == epsilon([(130, 20)]), "a client that took few steps"
    assert epsilon([(8, 20)]) == epsilon_of_releases(0.1, 1.0, 20, 1e-4), "nothing is cut"


def test_the_search_of_the_tutorial():
    """The smallest cohort of 3383 clients at noise of 1/100 of a client that keeps to ε = 2 over 100 rounds is 120."""
    assert epsilon_of_releases(120 / 3383, 1.20, 100, 1e-5, "rdp") <= 2
    assert epsilon_of_releases(119 / 3383, 1.19, 100, 1e-5, "rdp") > 2


TARGETS = [  # sampling probability, releases, ε, δ; noise by RDP, by PLD
    (0.01, 1000, 1.0, 1e-5, 1.5131, 1.4146),
    (0.04, 2250, 8.0, 1e-5, 1.4159, 1.3460),
    (0.04, 2000, 8.0, 1e-5, 1.3562, 1.2901),
    (0.1, 200, 8.0, 1e-3, 1.0160, 0.9405),
    (0.1, 100, 8.0, 1e-5, 0.9937, 0.9360),
    (0.2, 200, 8.0, 1e-3, 1.6699, 1.5276),
]


@pytest.mark.parametrize(("q", "releases", "target", "delta", "by_rdp", "by_pld"), TARGETS)
def test_noise_that_published_searches_found(q, releases, target, delta, by_rdp, by_pld):
    for noise, teller in ((by_rdp, "rdp"), (by_pld, "pld")):
        more, less = (epsilon_of_releases(q, noise + step, releases, delta, teller) for step in (2e-3, -2e-3))
        assert more <= target < less


@pytest.mark.parametrize(("q", "releases", "target", "delta", "by_rdp", "by_pld"), TARGETS[4:5])
def test_the_search_finds_it(q, releases, target, delta, by_rdp, by_pld):
    for noise, teller in ((by_rdp, "rdp"), (by_pld, "pld")):
        found = noise_for_releases(target, q, releases, delta, teller)
        assert found == pytest.approx(noise, abs=2e-3)
        assert 0.995 * target < epsilon_of_releases(q, found, releases, delta, teller) <= target


def test_noise_of_one_release_lies_far_below_what_rdp_says():
    found = noise_for_releases(1.0, 0.01, 1, 1e-5)
    assert found < 0.7 * noise_for_releases(1.0, 0.01, 1, 1e-5, "rdp")
    assert 0.99 < epsilon_of_releases(0.01, found, 1, 1e-5) <= 1


def test_targets_beyond_the_search():
    with pytest.raises(ConfigError, match="target_epsilon 1e-09; ask for a larger one, for fewer rounds"):
        noise_for_releases(1e-9, 1.0, 1000, 1e-5, "rdp")
    with pytest.raises(ConfigError, match=r"target_epsilon 1e\+12 is kept with hardly any noise"):
        noise_for_releases(1e12, 1.0, 1, 1e-5)


@pytest.mark.parametrize(
    ("noise", "messages", "expected"), [(5, 1, 1.5550), (5, 10, 5.7595), (5, 100, 24.3816), (20, 100, 4.3772)]
)
def test_local_messages(noise, messages, expected):
    epsilon = epsilon_of_local_messages(noise, messages, 1e-5)
    assert epsilon == pytest.approx(expected, abs=1e-4)
    assert noise_for_local_messages(epsilon, messages, 1e-5) == pytest.approx(noise, rel=1e-9)


def test_the_textbook_noise_is_no_source():
    """At ε = 1 it is too much, at ε = 10 it is too little."""
    for epsilon, exact, textbook in ((1.0, 3.7306, 4.8448), (10.0, 0.49989, 0.48448)):
        assert noise_for_local_messages(epsilon, 1, 1e-5) / 2 == pytest.approx(exact, abs=1e-4)
        assert math.sqrt(2 * math.log(1.25e5)) / epsilon == pytest.approx(textbook, abs=1e-4)
    assert epsilon_of_local_messages(2 * 0.48448, 1, 1e-5) == pytest.approx(10.39, abs=5e-3)


@pytest.mark.parametrize("z", [1.0, 5.0])
def test_small_populations(z):
    """20 clients of whom all take part in 50 rounds, δ = 0.01."""
    assert epsilon_of_releases(1.0, z, 50, 0.01) == pytest.approx({1.0: 40.588, 5.0: 3.7075}[z], abs=1e-3)


@pytest.mark.parametrize("teller", ["pld", "rdp"])
def test_edges(teller):
    assert epsilon_of_releases(0.1, 0.0, 3, 1e-5, teller) == math.inf
    assert epsilon_of_releases(0.1, 1.0, 0, 1e-5, teller) == 0.0
    assert 0 < epsilon_of_releases(0.1, 1.0, 1, 1e-5, teller) < epsilon_of_releases(0.1, 1.0, 2, 1e-5, teller)
    assert epsilon_of_releases(0.1, 1.1, 2, 1e-5, teller) < epsilon_of_releases(0.1, 1.0, 2, 1e-5, teller)
    assert 100 < epsilon_of_releases(0.1, 0.1, 10, 1e-5, teller) < 1000  # little noise: no minutes


def test_edges_of_messages_and_batches():
    assert (
        epsilon_of_local_messages(0.0, 1, 1e-5) == epsilon_of_truncated_batches([(9, 1)], 0.1, 3, 0.0, 1e-5) == math.inf
    )
    assert epsilon_of_local_messages(1.0, 0, 1e-5) == epsilon_of_truncated_batches([(9, 0)], 0.1, 3, 1.0, 1e-5) == 0.0


def test_orders_left_out_are_not_spoken_of(caplog, capfd):
    accountant._divergences.cache_clear()
    with caplog.at_level(logging.WARNING):
        epsilon_of_releases(0.1, 1.0, 1, 1e-5, "rdp")
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_reports_name_package_and_version():
    assert accountant_name("pld").startswith("PLD, dp-accounting 0.6")


def test_without_the_package(monkeypatch):
    accountant._divergences.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r'^--model\.privacy needs the package dp_accounting.*"lit-fed\[privacy\]"'):
        epsilon_of_releases(0.1, 1.0, 1, 1e-5, "rdp")
