import csv

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
