import csv
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from lightning.pytorch.utilities import rank_zero_only

from lit_fed.training.round_logger import RoundLogger, newest_version


def rows(logger):
    with logger.experiment.open() as file:
        return list(csv.DictReader(file))


def test_a_row_per_round_and_new_columns_later(tmp_path):
    logger = RoundLogger(str(tmp_path), "run")
    logger.log_metrics({"a": 1.0, "epoch": 0}, step=0)
    logger.log_metrics({"a": 2.0}, step=1)
    logger.log_metrics({"b": 5.0}, step=1)
    logger.log_metrics({"a": 3.0}, step=2)
    assert rows(logger) == [
        {"step": "0", "a": "1.0", "b": ""},
        {"step": "1", "a": "2.0", "b": "5.0"},
        {"step": "2", "a": "3.0", "b": ""},
    ]


def test_versions_count_up(tmp_path):
    assert newest_version(tmp_path / "run") == -1
    for version in (0, 1):
        logger = RoundLogger(str(tmp_path), "run")
        assert logger.version == f"version_{version}"
        logger.log_metrics({"a": 0.0}, step=0)
    (tmp_path / "run/version_x").mkdir()
    assert newest_version(tmp_path / "run") == 1


def test_a_continued_run_keeps_the_rows_before_its_checkpoint(tmp_path):
    logger = RoundLogger(str(tmp_path), "run")
    for step in range(4):
        logger.log_metrics({"a": float(step), "b": 0.5}, step=step)
    text = logger.experiment.read_text()
    logger.experiment.write_text(text + "1")  # cut off by a kill
    again = RoundLogger(str(tmp_path), "run", version=0, keep_rounds=2)
    again.log_metrics({"a": 20.0}, step=2)
    assert [(row["step"], row["a"], row["b"]) for row in rows(again)] == [
        ("0", "0.0", "0.5"), ("1", "1.0", "0.5"), ("2", "20.0", ""),
    ]  # fmt: skip


def test_nothing_is_made_before_the_first_row(tmp_path):
    RoundLogger(str(tmp_path), "run").log_hyperparams({"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_runs_that_begin_at_once_share_no_folder(tmp_path):
    """Threads, let go together as often as it takes to meet; before the claim, nearly all of them met."""
    together = Barrier(8)

    def begin(_):
        logger = RoundLogger(str(tmp_path), "run")
        together.wait()
        logger.begin("run")
        return logger.version

    with ThreadPoolExecutor(8) as threads:
        versions = [version for _ in range(10) for version in threads.map(begin, range(8))]
    assert sorted(versions) == sorted(f"version_{number}" for number in range(80))


def test_a_run_that_is_refused_gives_its_folder_back(tmp_path):
    first, second = (RoundLogger(str(tmp_path / "out"), "run") for _ in range(2))
    first.begin("run")
    second.begin("run")
    first.release()
    assert [path.name for path in (tmp_path / "out/run").iterdir()] == ["version_1"]
    second.log_metrics({"a": 0.0}, step=0)
    second.release()
    assert second.experiment.is_file()
    third = RoundLogger(str(tmp_path / "other"), "run")
    third.begin("run")
    third.release()
    assert not (tmp_path / "other").exists()


def test_other_ranks_learn_the_folder_from_rank_zero(tmp_path, monkeypatch):
    zero, one = (RoundLogger(str(tmp_path), "run") for _ in range(2))
    zero.begin("run")
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    one.begin("run")
    one.agree(lambda _: zero._version)
    assert one.log_dir == zero.log_dir == str(tmp_path / "run/version_0")
    assert len(list((tmp_path / "run").iterdir())) == 1
