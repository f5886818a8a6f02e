"""What version 0.2 left is read or gets the line to write, and its runs come out as they did."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from earlier import HERE, RECORD, RUNS, SMALL, digest, fit, machine, options
from running import folder, history, run

from lit_fed.system.upgrade import GONE, instead_of

ROOT = Path(__file__).parents[2]
BEFORE = json.loads(RECORD.read_text())
MOVED = {"clustering first": {"comm/total_bytes_up"}}  # a client says which component it sends by ⌈log2 M⌉ bits
ROUNDED = {"controlled"}  # clients one after another: their steps are rounded like those of clients at once now


@pytest.mark.parametrize("name", RUNS)
def test_a_run_comes_out_as_it_did(name, tmp_path):
    """Bit for bit on the machine of the record, to five digits elsewhere."""
    before, now = BEFORE["runs"][name], digest(fit(name, RUNS[name], tmp_path))
    exact = BEFORE["machine"] == machine() and name not in ROUNDED
    assert now["metrics"].keys() == before["metrics"].keys()
    for key, value in before["metrics"].items():
        if key not in MOVED.get(name, ()):
            as_it_was = exact and key != "privacy/epsilon"  # a sum in another order
            wanted = value if as_it_was or not isinstance(value, float) else pytest.approx(value, rel=1e-5, abs=1e-6)
            assert now["metrics"][key] == wanted, key
    assert now["tensors"].keys() == before["tensors"].keys()
    for leaf, (total, norm, bits) in before["tensors"].items():
        assert now["tensors"][leaf][:2] == pytest.approx([total, norm], rel=1e-5, abs=1e-5), leaf
        assert not exact or now["tensors"][leaf][2] == bits, leaf


def metrics(text):
    """The numbers of the table that a command prints."""
    return [float(one) for one in re.findall(r"\d+\.\d{4}", text)]


@pytest.mark.parametrize("name", ["by_responsibility", "private_clients"])
def test_a_checkpoint_is_served(name):
    done = run(["test", "--ckpt_path", str(HERE / name / "checkpoints/last.ckpt"), "--trainer.accelerator", "cpu"])
    summary = json.loads((HERE / name / "summary.json").read_text())
    keys = ("accuracy", "accuracy_decile", "accuracy_worst", "loss")
    wanted = [summary[f"test/{population}/{key}"] for population in ("seen", "unseen") for key in keys]
    assert done.returncode == 0, done.stderr
    assert metrics(done.stdout)[:8] == pytest.approx(wanted, abs=1e-3)
    assert "is of version 0.2" in done.stderr


@pytest.mark.parametrize(
    ("name", "place"), [("by responsibility", "by_responsibility"), ("private clients", "private_clients")]
)
def test_a_run_goes_on(name, place, tmp_path):
    """Its first rounds stay, and two more follow, as in a run that was not interrupted."""
    shutil.copytree(HERE / place, folder(tmp_path / "resumed", "run"))
    more = ["--trainer.max_epochs", "5", "--trainer.check_val_every_n_epoch", "5"]
    given = ["fit", *SMALL, "--model.algorithm", *RUNS[name], *more]
    for out, last in (("resumed", ["--ckpt_path", "last"]), ("whole", [])):
        done = run([*given, *last, "--trainer.default_root_dir", str(tmp_path / out), "--name", "run"])
        assert done.returncode == 0, done.stderr
    resumed, whole = (history(folder(tmp_path / out, "run")) for out in ("resumed", "whole"))
    assert resumed[-1] == whole[-1]


def test_a_configuration_gets_the_lines_to_write_and_is_taken_with_them(tmp_path):
    config = yaml.safe_load((HERE / "by_responsibility/config.yaml").read_text())
    short = ["--trainer.max_epochs", "1", "--trainer.default_root_dir", str(tmp_path)]
    refused = run(["fit", "--config", str(HERE / "by_responsibility/config.yaml"), *short])
    assert refused.returncode == 2
    assert f"--model.algorithm.average: {GONE['model.algorithm.average']}" in refused.stderr
    for option in ("average", "min_weight", "most_components", "shuffle_per_component", "refresh_mixture_at_eval"):
        assert option in refused.stderr
        del config["model"]["algorithm"]["init_args"][option]
    assert "data.public and model.personal_unseen_epochs; leave these out" in refused.stderr
    del config["data"]["public"], config["model"]["personal_unseen_epochs"]
    config["model"]["algorithm"]["class_path"] = "lit_fed.ResponsibilityFedEM"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    done = run(["fit", "--config", str(tmp_path / "config.yaml"), *short])
    assert done.returncode == 0, done.stderr


def recorded(text):
    """Setting and class → its options."""
    lines = (line.partition(":") for line in text.splitlines())
    return {tuple(head.split()): set(names.split()) for head, _, names in lines}


def missing(version):
    """The options of a release that are not there today, each behind its setting; and the classes that are not."""
    today = recorded("\n".join(options()))
    of_release = recorded((HERE.parent / f"version_{version}/options.txt").read_text())
    pairs = [(place, name) for place, names in of_release.items() for name in names]
    gone = {f"{setting}.{name}" for (setting, one), name in pairs if name not in today.get((setting, one), {name})}
    return gone, of_release.keys() - today.keys()


def test_every_option_of_0_2_is_there_or_has_the_line_to_write():
    gone, classes = missing("0_2")
    assert "model.algorithm.min_weight" in gone
    assert {option for option in gone if not instead_of(option)} == set()
    for setting, name in classes:
        refused = run(["fit", f"--{setting}", name])
        assert refused.returncode == 2
        assert re.search(rf"{name}\b.*nearest relative here is \w+", refused.stderr), refused.stderr


def test_nothing_of_0_3_is_missing_before_it_was_deprecated_for_a_version():
    """What 0.4 deprecates goes with 0.5, and this record with it."""
    assert missing("0_3") == (set(), set())


ROWS = re.findall(r"^\| (`--.*?`.*?) \| (.*) \|$", (ROOT / "docs/upgrade.md").read_text(), re.M)


def test_the_page_has_a_row_for_each_option_that_is_gone():
    def option(fragment):
        name, value = fragment.split()[-2:]
        return f"{name[2:]} {value}" if name.endswith((".start", ".optimizer")) else name[2:]

    assert {option(re.search("`(.*?)`", row[0])[1]) for row in ROWS} == GONE.keys()


@pytest.mark.parametrize(("then", "now"), ROWS)
def test_a_row_is_refused_as_it_was_and_taken_as_it_is(then, now, tmp_path):
    short = ["--trainer.max_epochs", "1", "--trainer.default_root_dir", str(tmp_path), "--name", "run"]
    refused = run(["fit", *SMALL, *short, *re.search("`(.*?)`", then)[1].split()])
    assert refused.returncode == 2
    assert "docs/upgrade.md" in refused.stderr
    for fragment in re.findall("`(--.*?)`", now):
        done = run(["fit", *SMALL, *short, *fragment.split()])
        assert done.returncode == 0, done.stderr
