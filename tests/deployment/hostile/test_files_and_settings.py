"""Attacks by a stranger's checkpoint: each is refused in words, and nothing else happens.

A further attack is one line in a table. `FUZZ_SECONDS=3600 python -m pytest -n 0 THIS_FILE -k fuzz` goes on
for an hour, with other seeds.
"""

import copy
import importlib.util
import json
import os
import random
import time
from contextlib import suppress
from pathlib import Path

import attacks_in_settings as attacks
import pytest
import torch
import wandb  # noqa: F401 - which makes folders of its own when it is first imported
from PIL import Image
from watched import watch

import lit_fed
from lit_fed.cli import ArgumentsCLI, main
from lit_fed.command_line.classes import trusted_arguments
from lit_fed.core.targets import Binary
from lit_fed.data.augmentation import make_augmentation
from lit_fed.data.data_sets.hugging_face import HuggingFace
from lit_fed.data.data_sets.texts import word_tokens
from lit_fed.errors import ConfigError
from lit_fed.metrics.selection import choose_metrics
from lit_fed.models import HuggingFaceClassifier, Timm
from lit_fed.training.checkpoint import load_checkpoint

CANARY = (
    "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\nclass K:\n    pass\ndef make():\n    pass\n"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder, with a module that leaves a trace when it is imported."""
    (tmp_path / "canary.py").write_text(CANARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    assert not (tmp_path / "canary.ran").exists()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Libraries of Hugging Face that may reach the hub, with caches of their own."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def section():
    """The settings of a model as the command line writes them, with everything that can be set."""
    cli = ArgumentsCLI(
        [
            "fit", "--model.network", "MLP", "--model.metrics", "AUROC,F1Score", "--model.compression", "QSGD",
            "--model.privacy", "ClientPrivacy", "--model.privacy.noise_multiplier", "1",
            "--model.privacy.delta", "1e-3",
            "--model.robust_aggregation", "Median", "--model.attack", "SignFlip", "--model.faults.dropout", "0.1",
            "--model.secure_aggregation", "SecureSum", "--model.loss", "CrossEntropy",
        ]
    )  # fmt: skip
    parser = cli._parser("fit")
    return json.loads(parser.dump(cli.config["fit"], skip_unset=False, format="json"))["model"]


def plain(section):
    """Settings that go together: the wrappers of `section` exclude each other."""
    wrappers = ("compression", "privacy", "secure_aggregation", "robust_aggregation", "attack", "loss")
    return section | dict.fromkeys(wrappers)


# ---------------------------------------------------------------------- options
@pytest.mark.parametrize("name", attacks.OPTIONS_OF_TIMM)
def test_timm_gets_no_file_address_or_code(name, place):
    pytest.importorskip("timm")
    given = attacks.SMALL_VIT | {"options": attacks.SMALL_VIT["options"] | {name: attacks.OPTIONS_OF_TIMM[name]}}
    with (
        watch(attacks.FORBIDDEN) as seen,
        pytest.raises(ConfigError, match=rf"--model\.network\.options(\.| has '){name}"),
    ):
        Timm((3, 8, 8), 3, **given)
    assert not seen


@pytest.mark.parametrize("name", attacks.NAMES_OF_TIMM)
def test_a_name_of_timm_leads_to_no_hub_and_no_folder(name, place):
    pytest.importorskip("timm")
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"--model\.network\.name is "):
        Timm((3, 8, 8), 3, name=name)
    assert not seen


@pytest.mark.parametrize("fields", attacks.CONFIGS_OF_TRANSFORMERS, ids=json.dumps)
def test_transformers_get_no_file_address_or_code(fields, place):
    pytest.importorskip("transformers")
    shape = (3, 8, 8) if fields.get("model_type") == "timm_wrapper" else (6,)
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"--model\.network\.config"):
        HuggingFaceClassifier(shape, 3, config=attacks.SMALL_BERT | fields)
    assert not seen


@pytest.mark.parametrize(
    "fields",
    [
        {"quantization_config": {"quant_method": "awq"}}, {"attn_implementation": "some/one"},
        {"_attn_implementation": "some/one"}, {"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "x"}},
    ],
    ids=json.dumps,
)  # fmt: skip
@pytest.mark.parametrize("as_weights", [False, True], ids=["config", "weights"])
def test_a_folder_s_configuration_fetches_no_code(fields, as_weights, place):
    pytest.importorskip("transformers")
    (place / "folder").mkdir()
    (place / "folder" / "config.json").write_text(json.dumps(attacks.SMALL_BERT | fields))
    shape = (3, 8, 8) if "model_args" in fields else (6,)
    given = {"weights" if as_weights else "config": str(place / "folder")}
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"--model\.network\.(config|weights)"):
        HuggingFaceClassifier(shape, 3, **given)
    assert [one for one in seen if str(place) not in one] == []


def test_adapters_in_a_folder_lead_nowhere(place):
    pytest.importorskip("transformers")
    HuggingFaceClassifier((6,), 3, config=attacks.SMALL_BERT).model.save_pretrained(place / "folder")
    adapters = {"peft_type": "LORA", "base_model_name_or_path": "some/one", "megatron_core": "canary"}
    (place / "folder" / "adapter_config.json").write_text(json.dumps(adapters | {"megatron_config": {"x": 1}}))
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match="holds peft adapters"):
        HuggingFaceClassifier((6,), 3, weights=str(place / "folder"))
    assert [one for one in seen if str(place) not in one] == []


@pytest.mark.parametrize("arguments", attacks.ARGUMENTS_OF_METRICS, ids=json.dumps)
def test_torchmetrics_get_words_and_numbers(arguments, place):
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"--model\.metrics AUROC"):
        choose_metrics({"AUROC": arguments}, Binary())
    assert not seen


@pytest.mark.parametrize("number", range(len(attacks.AUGMENTATIONS)))
def test_an_augmentation_is_made_of_torchvision_s_transforms_alone(number, place):
    from torchvision.transforms import v2  # noqa: F401 - before it is watched

    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"--data\.augment"):
        make_augmentation(attacks.AUGMENTATIONS[number])
    assert not seen


@pytest.mark.parametrize("path", [*attacks.OUTSIDE, *attacks.ODD])
def test_no_text_makes_the_metrics_import_a_module(path, place):
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"--model\.metrics"):
        choose_metrics({path: {}}, Binary())
    assert not seen


@pytest.mark.parametrize("path", ["pandas", "csv", "https://example.org/x", "s3://some/one", "a/b/c", "some/one.py/x"])
def test_a_data_set_is_a_folder_or_a_name_of_the_hub(path, place):
    with pytest.raises(ConfigError, match="no such folder; correct it, or give a hub name OWNER/NAME"):
        HuggingFace(path=path).load()


# ---------------------------------------------------------------------- a stranger's folder of data, or of a tokenizer
ELSEWHERE = [
    "http://127.0.0.1:9/x.csv",
    "../secret.csv",
    "hf://datasets/some/one/x.csv",
    "zip://x::http://127.0.0.1:9/x",
]


def folder_of_data(place, way, text):
    """A folder that names something elsewhere: in its card, as an image, or as the file of a saved data set."""
    datasets, arrow = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    folder, kind = place / "data", arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
    datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": [0, 1]}).save_to_disk(folder if way == "saved" else place)
    folder.mkdir(exist_ok=True)
    if way == "saved":
        (place / "secret.csv").write_bytes(next(folder.glob("*.arrow")).read_bytes())
        state = json.loads((folder / "state.json").read_text()) | {"_data_files": [{"filename": text}]}
        (folder / "state.json").write_text(json.dumps(state))
    elif way == "image":
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
        table = arrow.table({"image": arrow.array([{"bytes": None, "path": text}] * 2, kind), "label": [0, 1]})
        about = {"huggingface": json.dumps({"info": {"features": features.to_dict()}})}
        parquet.write_table(table.replace_schema_metadata(about), folder / "train.parquet")
    else:
        card = f"configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: [{json.dumps(text)}]\n"
        (folder / way).write_text(f"---\n{card}---\n" if way == "README.md" else card)
        (folder / "train.csv").write_text("x,label\n1,0\n2,1\n")
    return str(folder)


@pytest.mark.parametrize("way", ["README.md", ".huggingface.yaml", "image", "saved"])
@pytest.mark.parametrize("text", ELSEWHERE)
def test_a_folder_of_data_leads_nowhere_else(way, text, place, hub):
    folder = folder_of_data(place, way, text)
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"names|No such file"):
        HuggingFace(folder).load()
    assert [one for one in seen if one.startswith("socket") or "secret" in one] == []


def test_a_folder_of_data_reads_its_own_files(place, hub):
    folder = Path(folder_of_data(place, "README.md", "./train.*"))
    assert HuggingFace(str(folder)).load().y.tolist() == [0, 1]
    picture = Image.new("L", (4, 4))
    picture.save(place / "own.png")
    (place / "pictures").mkdir()
    for name in ("a.png", "b.png"):
        picture.save(place / "pictures" / name)
    rows = [{"file_name": "a.png", "label": 0}, {"file_name": "b.png", "label": 1}]
    (place / "pictures/metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert HuggingFace(str(place / "pictures")).load().x.shape == (2, 1, 4, 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "timm_wrapper", "architecture": "hf-hub:some/one", "initializer_range": 0.02, "num_classes": 3},
        {"model_type": "timm_wrapper", "architecture": "local-dir:canary", "initializer_range": 0.02, "num_classes": 3},
        {"model_type": "dpt", "backbone": "some/one", "use_timm_backbone": False},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_folder_s_configuration_reaches_no_hub(fields, place, hub):
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    (place / "config.json").write_text(json.dumps(fields))
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"--model\.network\.config"):
        HuggingFaceClassifier((3, 8, 8), 3, config=str(place))
    assert [one for one in seen if one.startswith("socket")] == []


@pytest.mark.parametrize("way", ["RagTokenizer", "panic"])
def test_a_tokenizer_that_fails_is_named(way, place, hub, capfd):
    """By a class that is none, and by a pattern that takes too long, which panics in Rust."""
    tokenizers, transformers = map(pytest.importorskip, ("tokenizers", "transformers"))
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(a+)+$"), "removed")
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]").save_pretrained(place)
    if way != "panic":
        (place / "tokenizer.json").unlink()
        (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": way}))
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"--x .*: cannot be loaded"):
        word_tokens(["a" * 40 + "b"], str(place), 4, "--x")
    assert [one for one in seen if one.startswith("socket")] == []


# ---------------------------------------------------------------------- a stranger's checkpoint
@pytest.mark.parametrize("way", attacks.ARGUMENTS)
def test_a_checkpoint_s_arguments_are_refused_before_anything_is_imported(way, place):
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"^--ckpt_path its\.ckpt"):
        trusted_arguments(attacks.ARGUMENTS[way], Path("its.ckpt"), set(), [])
    assert not seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The checkpoint of a small run."""
    out = tmp_path_factory.mktemp("hostile")
    main(
        [
            "fit", "--data.dataset", "Digits", "--data.num_clients", "4", "--trainer.accelerator", "cpu",
            "--trainer.max_epochs", "1", "--model.algorithm", "FedAvg", "--trainer.enable_progress_bar", "false",
            "--trainer.default_root_dir", str(out),
        ]
    )  # fmt: skip
    return next(out.rglob("last.ckpt"))


@pytest.mark.parametrize("way", attacks.COMMAND_LINE)
def test_the_command_line_ends_with_a_message(way, whole, place, capsys):
    content = load_checkpoint(whole)
    stored = content["lit_fed"]["arguments"] = copy.deepcopy(content["lit_fed"]["arguments"])
    stored["model"] |= attacks.COMMAND_LINE[way]
    torch.save(content, place / "theirs.ckpt")
    with watch(attacks.FORBIDDEN) as seen, pytest.raises(SystemExit) as stopped:
        main(["test", "--ckpt_path", str(place / "theirs.ckpt")])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("lit_fed: ")
    assert not [one for one in seen if one.startswith("import ")]


# ---------------------------------------------------------------------- the fuzzer


def places(value, path=()):
    """Every place in settings: the path of each value, and of each key."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*path, key))


def replaced(value, path, hostile, *, key=False):
    """A copy of settings with another value, or another key, in one place."""
    if not path:
        return hostile
    changed = copy.copy(value)
    if len(path) == 1 and key:
        return {hostile if one == path[0] else one: inner for one, inner in value.items()}
    changed[path[0]] = replaced(value[path[0]], path[1:], hostile, key=key)
    return changed


def examine(arguments):
    """What arguments are refused for, if they are."""
    with suppress(ConfigError):
        trusted_arguments(arguments, Path("its.ckpt"), set(), [])


def attempts(section, arguments, seed):
    """Arguments of a checkpoint with something hostile in each place in turn."""
    draw = random.Random(seed)
    wide = {"model": section, **{name: arguments[name] for name in ("data", "trainer", "seed_everything")}}
    for path in [one for one in places(wide) if one]:
        keys = draw.sample(attacks.DOTTED, 1) if isinstance(path[-1], str) else []
        values = [*draw.sample(attacks.DOTTED, 2), draw.choice(attacks.HOSTILE)]
        for hostile, key in [*((one, False) for one in values), *((one, True) for one in keys)]:
            changed = replaced(wide, path, hostile, key=key)
            if draw.random() < 0.2 and isinstance(changed.get("model"), dict):
                changed["model"] = changed["model"] | {"metrics": {"mine": draw.choice(attacks.HOSTILE)}}
            yield changed


def bases(section):
    rich = plain(section)
    timm = {"class_path": "lit_fed.Timm", "init_args": attacks.SMALL_VIT}
    metrics = {"F1Score": {"average": "macro"}, "mine": {"class_path": "AUROC", "init_args": {"max_fpr": 0.5}}}
    yield section
    yield rich | {"metrics": metrics}
    if importlib.util.find_spec("timm"):
        yield rich | {"network": timm, "metrics": ["AUROC"]}


def test_fuzz_nothing_in_settings_imports_opens_or_breaks_anything(section, whole, place):
    arguments = load_checkpoint(whole, values=False)["lit_fed"]["arguments"]
    dir(lit_fed)  # its rooms, with what they need
    for base in bases(section):
        examine(arguments | {"model": base})
    until, seed, count = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "0")), 0, 0
    while not count or time.monotonic() < until:
        for base in bases(section):
            for changed in attempts(base, arguments, seed):
                with watch(attacks.FORBIDDEN) as seen:
                    examine(changed)
                assert not seen, changed
                count += 1
        seed += 1
    assert count > 1000
