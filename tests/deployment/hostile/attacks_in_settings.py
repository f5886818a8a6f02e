"""Attacks by settings and options, in tables: a further one is a line."""

import json

SMALL_VIT = {"name": "test_vit", "options": {"embed_dim": 8, "depth": 1, "num_heads": 2, "patch_size": 4}}
SMALL_BERT = {
    "model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "vocab_size": 11, "max_position_embeddings": 9,
}  # fmt: skip


# ---------------------------------------------------------------------- names that settings may hold anywhere
OUTSIDE = [
    "canary.K", "canary.make", "canary.inner.K", "antigravity.K", "this.s", "turtledemo.K", "idlelib.idle.main",
    "lib2to3.main.main", "ensurepip.bootstrap", "wsgiref.simple_server.demo_app", "xmlrpc.server.K",
    "torch.utils.tensorboard.SummaryWriter", "torch.utils.cpp_extension.load", "torch.utils.bottleneck.K",
    "torch.distributed.run.main", "torch.distributed.launch.main", "torch.package.PackageImporter",
    "torchvision.io.video_reader.K", "torchmetrics.text.BERTScore", "torchmetrics.image.fid.FrechetInceptionDistance",
    "lit_fed.__main__.main", "lit_fed.cli.main", "lit_fed.deployment.flower_apps.client_app",
]  # fmt: skip
"""Paths of modules that are not loaded yet, and that nothing here may import."""

ODD = [
    ".x.K", "x..K", "x.", ".", "..", "canary.", ".canary.K", "canary..K", "canary.K.", "canary .K", "canary\n.K",
    "lit_fed", "lit_fed.", "lit_fed.x.K", "lit_fed.core", "lit_fed.FedEM.sent", "lit_fed.models", "lit_fed..MLP",
    "lit_fed.models.base.__builtins__", "lit_fed.FedEM.__init__.__globals__", "lit_fed.errors.ConfigError",
    "lit_fed.core.algorithm.importlib.import_module", "lit_fed.system.discovery.import_all", "torchmetrics.Metric",
    "torchmetrics.AUROC.update", "torchmetrics.classification.auroc.torch", "torch.nn.Module", "torch.load",
    "torch.hub.load", "os.system", "os.path.join", "builtins.eval", "posix.system", "__main__.K", "None", "K",
    "{class_path: canary.K}", '{"class_path": "canary.K"}', "[canary.K]", "!!python/object:canary.K {}", "a\x00b.K",
    "\u00fcber.K", "\U0001d428\U0001d42c.system", "\ud800.K", "canary.K,AUROC", "AUROC,canary.K", "x" * 5000,
    "x." * 2000 + "K", "hf-hub:some/one", "local-dir:/tmp", "https://example.org/x.pt", "file:///etc/passwd",
    "/etc/passwd", "../../canary.py", "canary.py", "~root", "C:\\canary", "%s%n", "\x1b[2J",
]  # fmt: skip
"""Texts that are no path of a class, or lead to something else."""

DOTTED = [*OUTSIDE, *(one for one in ODD if "." in one)]

HOSTILE = [
    *OUTSIDE, *ODD, "", 0, -1, 2**63, 10**400, 1e300, float("nan"), float("inf"), True, None, [], {}, [[]], {"": {}},
    {"class_path": None}, {"class_path": []}, {"class_path": "canary.K"}, {"class_path": ".x.K"}, {"class_path": ""},
    {"class_path": "lit_fed.MLP", "init_args": []}, {"class_path": "lit_fed.MLP", "init_args": {"x.y": 1}},
    {"class_path": "lit_fed.FedEM", "init_args": {"num_components": {"class_path": "canary.K"}}},
    {"class_path": "lit_fed.Timm", "init_args": {"options": {"checkpoint_path": "canary.py"}}},
    {"class_path": "canary.K", "more": 1}, {"_target_": "canary.K"}, {"canary.K": {}}, {"canary.K": None},
    {"init_args": {"class_path": "canary.K"}}, [{"class_path": "canary.K"}], [["canary.K"]],
]  # fmt: skip
"""Values that the fuzzer puts in every place."""

FORBIDDEN = sorted({path.rpartition(".")[0] for path in OUTSIDE} | {"canary", "tensorboard", "flwr", "ninja"})


# ---------------------------------------------------------------------- settings of a model
CLASS_ANYWHERE = {"class_path": "canary.K"}
WRITE = "lit_fed.system.files.write_atomically"

SETTINGS = {
    "metric": {"metrics": "canary.K"},
    "metric in a list": {"metrics": ["canary.K"]},
    "metric in a list of lists": {"metrics": [["canary.K"]]},
    "key of metrics": {"metrics": {"canary.K": {}}},
    "key of metrics without arguments": {"metrics": {"canary.K": None}},
    "named metric": {"metrics": {"mine": "canary.K"}},
    "named metric with arguments": {"metrics": {"mine": {"class_path": "canary.K", "init_args": {}}}},
    "class among metrics": {"metrics": [{"class_path": "canary.K"}]},
    "argument of a metric": {"metrics": {"AUROC": {"average": "canary.K"}}},
    "class as argument of a metric": {"metrics": {"AUROC": {"average": CLASS_ANYWHERE}}},
    "network": {"network": "canary.K"},
    "network as a class": {"network": CLASS_ANYWHERE},
    "layer in a network": {"network": {"class_path": "lit_fed.MLP", "init_args": {"hidden_sizes": CLASS_ANYWHERE}}},
    "algorithm": {"algorithm": CLASS_ANYWHERE},
    "algorithm as a text": {"algorithm": "canary.K"},
    "further options": {"algorithm": {"class_path": "lit_fed.FedEM", "dict_kwargs": {"x": "canary.K"}}},
    "solver": {"solver": CLASS_ANYWHERE},
    "option of the solver": {"solver": {"lr": CLASS_ANYWHERE}},
    "update rule": {"solver": {"optimizer": "canary.K"}},
    "wrapper": {"privacy": CLASS_ANYWHERE},
    "codec": {"compression": {"class_path": "lit_fed.QSGD", "init_args": {"bits": CLASS_ANYWHERE}}},
    "faults": {"faults": {"dropout": CLASS_ANYWHERE}},
    "target": {"loss": {"_target_": "canary.K"}},
    "unknown setting": {"callbacks": [CLASS_ANYWHERE]},
    "logger": {"logger": CLASS_ANYWHERE},
}

OPTIONS_OF_TIMM = {
    "checkpoint_path": "canary.pt", "pretrained_cfg": {"url": "https://example.org/x.pt"}, "cache_dir": "/tmp",
    "pretrained_cfg_overlay": {"url": "https://example.org/x.pt"}, "pretrained_strict": False, "features_only": True,
    "pretrained_cfg_file": "canary.pt", "model_cfg": {}, "feature_cfg": {}, "pretrained_filter_fn": "canary.make",
    "pretrained_model_args": {"checkpoint_path": "canary.pt"}, "scriptable": True, "pruned": True,
    "_target_": "canary.K", "block_fn": "canary.K", "norm_layer": "canary.K", "act_layer": "torch.nn.ReLU",
    "global_pool": "/etc/passwd", "img_size": ["https://example.org"], "depth": {"url": "https://example.org/x"},
    "trust_remote_code": True, "url": "https://example.org/x.pt", "hf_hub_id": "some/one", "state_dict": {},
    "device": "cuda", "stem_backbone": "x",
}  # fmt: skip

NAMES_OF_TIMM = [
    "hf-hub:some/one",
    "hf_hub:some/one",
    "local-dir:/tmp",
    "timm:resnet18",
    "resnet18/../x",
    "resnet18.a/b",
]

CONFIGS_OF_TRANSFORMERS = [
    {"trust_remote_code": True}, {"auto_map": {"AutoModelForSequenceClassification": "x--canary.K"}},
    {"_name_or_path": "some/one"}, {"name_or_path": "some/one"}, {"quantization_config": {"quant_method": "awq"}},
    {"attn_implementation": "kernels-community/flash-attn"}, {"attn_implementation": "flash_attention_2"},
    {"attn_implementation": {"": "some/one"}}, {"_attn_implementation": "some/one"}, {"experts_implementation": "x/y"},
    {"hidden_act": "canary.K"}, {"hidden_act": "../x"}, {"torch_dtype": "canary.K"}, {"dtype": "canary.K"},
    {"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "canary.pt"}},
    {"model_type": "timm_wrapper", "architecture": "hf-hub:some/one"}, {"backbone": "some/one"},
    {"use_timm_backbone": True}, {"use_pretrained_backbone": True}, {"backbone_config": {"model_type": "bert"}},
    {"architectures": ["canary.K"]}, {"tokenizer_class": "canary.K"}, {"_target_": "canary.K"},
    {"id2label": {"0": "/etc/passwd"}}, {"rope_parameters": {"file": "/etc/passwd"}}, {"per_layer_config": {}},
]  # fmt: skip

AUGMENTATIONS = [
    "canary.K", "canary.K()", "Lambda(canary.make)", "Compose([canary.K()])", "JPEG(canary.K)",
    "__import__('canary')", "ToDtype(__import__('canary'))", "io.read_file('/etc/passwd')", "v2.functional.x()",
    "RandomCrop(open('/etc/passwd'))", "[x for x in ()]", "lambda: 1", "RandomCrop(*(1,))", "Transform()",
    "-" * 20000 + "1", "[" * 5000 + "]" * 5000, "RandomCrop(" * 150 + ")" * 150, "", "\x00", "K" * 5000,
    "x." * 2000 + "K",
]  # fmt: skip

ARGUMENTS_OF_METRICS = [
    {"process_group": "canary.K"}, {"dist_sync_fn": "canary.make"}, {"distributed_available_fn": "canary.make"},
    {"average": "canary.K"}, {"compute_on_cpu": True}, {"model_name_or_path": "some/one"}, {"_target_": "canary.K"},
]  # fmt: skip


# ---------------------------------------------------------------------- a stranger's checkpoint
def source(path, **options):
    inner = {"class_path": path, "init_args": options}
    return {"data": {"dataset": {"class_path": "lit_fed.TorchDataset", "init_args": {"source": inner}}}}


def network(path, **options):
    return {"model": {"network": {"class_path": path, "init_args": options}}}


COMPOSED = {"class_path": "torchvision.transforms.Compose", "init_args": {"transforms": ["canary.K"]}}

ARGUMENTS = {
    **{f"model: {name}": {"model": one} for name, one in SETTINGS.items()},
    "relative metric": {"model": {"metrics": ".x.K"}},
    "metric with dots": {"model": {"metrics": {"x..K": {}}}},
    "metric of texts": {"model": {"metrics": "torchmetrics.text.BERTScore"}},
    "metric of images": {"model": {"metrics": {"torchmetrics.image.fid.FrechetInceptionDistance": {}}}},
    "data set that unpickles": source("torchvision.datasets.LSUN", root="."),
    "downloads": source("torchvision.datasets.utils.download_url", url="https://example.org", root="."),
    "loader": source("torchvision.datasets.DatasetFolder", root=".", loader="pickle.load"),
    "loader as a class": source("torchvision.datasets.DatasetFolder", root=".", loader=CLASS_ANYWHERE),
    "weights": network("torchvision.models.resnet18", weights={"class_path": "torchvision.models.Weights"}),
    "layer with code": network("torchvision.models.resnet18", norm_layer="canary.K"),
    "writer of TensorBoard": network("torch.utils.tensorboard.SummaryWriter"),
    "builder of extensions": network("torch.utils.cpp_extension.load"),
    "loggers": {"trainer": {"logger": {"class_path": "lightning.pytorch.loggers.WandbLogger"}}},
    "profiler": {"trainer": {"profiler": "canary.K"}},
    "plugins": {"trainer": {"plugins": [CLASS_ANYWHERE]}},
    "optimizer": {"optimizer": CLASS_ANYWHERE},
    "nested deep": {"model": {"metrics": json.loads("[" * 500 + "]" * 500)}},
    "nested deeper": {"model": {"metrics": json.loads("[" * 900 + "]" * 900)}},
    "a class in a class": source("torchvision.datasets.FakeData", transform=COMPOSED),
    "a partition": {"data": {"partition": "canary.K"}},
    "a poison": {"data": {"poison": CLASS_ANYWHERE}},
    "augmentation": {"data": {"augment": CLASS_ANYWHERE}},
}  # fmt: skip

COMMAND_LINE = {
    "relative metric": {"metrics": ".x.K"},
    "metric in a list": {"metrics": [".x.K", "x..K"]},
    "metric that is none": {"metrics": "torchmetrics.Nothing"},
    "metric with an argument": {"metrics": {"AUROC": {"dist_sync_fn": "x"}}},
    "timm's file": {"network": {"class_path": "lit_fed.Timm", "init_args": {"options": {"checkpoint_path": "x"}}}},
    "an odd class": {"network": {"class_path": "lit_fed..MLP"}},
    "an odd text": {"network": "lit_fed.x.K"},
    "a class without a module": {"network": {"class_path": "K"}},
    "an empty class": {"algorithm": {"class_path": ""}},
    "a module": {"algorithm": {"class_path": "lit_fed.algorithms"}},
    "a base": {"algorithm": {"class_path": "lit_fed.core.algorithm.Algorithm"}},
    "a number": {"algorithm": 7},
    "layers": {"trainable": [".x.K"]},
    "null for a number": {"solver": {"momentum": None}},
    "a list for an object": {"solver": []},
    "a number for an object": {"solver": -1},
}  # fmt: skip
