"""Two processes that draw the clients they train give the numbers of one."""

from running import folder, history, numbers, run

ARGUMENTS = [
    "--data.dataset", "Synthetic", "--data.dataset.num_clients", "30", "--data.dataset.dimension", "6",
    "--data.dataset.test_size", "20", "--data.dataset.variant", "corrected", "--data.dataset.on_demand", "true",
    "--data.unseen_fraction", "0.2", "--data.clients_per_round", "7", "--data.clients_per_block", "2",
    "--data.eval_clients", "3", "--trainer.max_epochs", "3", "--trainer.accelerator", "cpu",
    "--model.algorithm", "FedEM", "--model.client_trainer", "sequential",
]  # fmt: skip


def test_two_ranks_equal_one_bit_for_bit_on_drawn_clients(tmp_path):
    for ranks in (1, 2):
        extra = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp"] if ranks == 2 else []
        place = ["--trainer.default_root_dir", str(tmp_path / str(ranks))]
        finished = run(["fit", *ARGUMENTS, *extra, *place], ranks=ranks)
        assert finished.returncode == 0, finished.stderr
    one, two = (folder(tmp_path / ranks, "FedEM") for ranks in ("1", "2"))
    assert numbers(one) == numbers(two)
    assert history(one) == history(two)
    assert (one / "clients.csv").read_text() == (two / "clients.csv").read_text()
    assert len((one / "clients.csv").read_text().splitlines()) == 1 + 3 + 3
