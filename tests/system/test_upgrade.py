"""Settings of version 0.2 in today's names."""

import pytest

from lit_fed.errors import ConfigError
from lit_fed.system.upgrade import UNSET, upgraded


def entry(name, **options):
    identity = {"algorithm": {"class_path": name, **options}}
    arguments = {"model": {"algorithm": {"class_path": f"lit_fed.{name}", "init_args": options}}}
    return {"identity": identity, "arguments": arguments}


@pytest.mark.parametrize(("name", "options"), UNSET.items(), ids=UNSET)
def test_options_that_are_gone_and_were_not_used_are_left_out(name, options):
    assert upgraded(entry(name, kept=1, **options), "--ckpt_path x") == entry(name, kept=1)


@pytest.mark.parametrize(("name", "options"), UNSET.items(), ids=UNSET)
def test_a_run_that_used_one_is_refused(name, options):
    option = next(iter(options))
    with pytest.raises(ConfigError, match=f"of a run of {name} with {option}, which is gone"):
        upgraded(entry(name, **{option: "used"}), "--ckpt_path x")


def test_classes_of_others_stay_as_they_are():
    theirs = {"identity": {}, "arguments": {"model": {"class_path": "theirs.APFL", "init_args": {"alpha_lr": 1.0}}}}
    assert upgraded(theirs, "--ckpt_path x") == theirs
