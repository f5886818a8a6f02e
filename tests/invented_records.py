"""Records of the benchmark with invented results, which keep to the protocol."""

import json

import numpy as np

from lit_fed.benchmark.cut import samples_digest
from lit_fed.benchmark.measures import FEW
from lit_fed.benchmark.method import method_of
from lit_fed.benchmark.protocol import PROTOCOL
from lit_fed.benchmark.records import POPULATIONS


def invented(task, level=0.7, seed=0, algorithm="FedAvg"):
    """A record with normal scores around a level; the first trial is the best."""
    rng, known = np.random.default_rng(seed), task.known_clients()
    points = json.loads(json.dumps(method_of(algorithm).points))
    costs = {"cpu_seconds": 1.0, "bytes_up": level * 1e5, "bytes_down": 1e5, "peak_bytes": 1e8, "test_reads": 1}
    made = []
    for cut in task.cuts:
        test = {}
        for population in POPULATIONS:
            names = known[cut].of(population)
            scores = rng.normal(level, 0.05, len(names)).round(4).tolist()
            test[population] = {"score": scores, "ece": None, "pooled": level}
            if task.score == "pooled":
                few = len(names) < FEW
                units = sum(known[cut].test_persons[name] for name in names) if few else len(names)
                test[population]["influence"] = rng.normal(size=units).round(4).tolist()
        curve = [[task.rounds, level, 1e5]]
        run = {"cut": cut, "samples": samples_digest(known[cut].digests), "round": task.rounds, "score": level}
        made.append(run | costs | {"curve": curve, "test": test})
    tuning = {
        "cut": 0, "split": "val", "points": points, "scores": [level, *[level - 0.1] * (len(points) - 1)],
        "cpu_seconds": 1.0,
    }  # fmt: skip
    return {
        "algorithm": algorithm, "task": task.name, "metric": task.metric, "score": task.score, "protocol": PROTOCOL,
        "source": "", "versions": {}, "tuning": tuning, "chosen": points[0], "runs": made,
        "arguments": task.arguments(algorithm, points[0], 0),
    }  # fmt: skip
