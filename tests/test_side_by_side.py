"""Tests in several processes: as in one, and nothing that goes wrong is lost."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = {
    "test_a.py": """
        import os, pytest, warnings

        @pytest.fixture(scope="module")
        def once(shared_folder, tmp_path_factory):
            with (shared_folder / "once").open("a") as file:
                file.write("set up ")
            yield
            with (shared_folder / "once").open("a") as file:
                file.write("torn down ")

        def test_1(once):
            print("said by 1")

        def test_2(once, shared_folder):
            assert (shared_folder / "once").read_text() == "set up "
            warnings.warn("warned by 2")

        @pytest.mark.parametrize("number", range(3))
        def test_3(once, number):
            assert number != 1, print("said by 3")
    """,
    "test_b.py": """
        import os, pytest
        COLLECTED_BY = os.getpid()

        def test_elsewhere():
            assert os.getpid() != COLLECTED_BY

        def test_skipped():
            pytest.skip("a reason")

        @pytest.fixture
        def broken():
            yield
            raise RuntimeError("broken when it is torn down")

        def test_torn_down(broken):
            pass
    """,
    "test_c.py": """
        import time

        def test_last_of_its_file():
            time.sleep(0.1)
    """,
}


@pytest.fixture
def tests(tmp_path):
    """A folder with tests, and pytest started there."""

    def write(**texts):
        for name, text in ({f"{name}.py": text for name, text in texts.items()} or FILES).items():
            (tmp_path / name).write_text("\n".join(line[8:] for line in text.splitlines()))

    def start(*arguments, **files):
        write(**files)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "side_by_side",
             "--basetemp", tmp_path / "kept", *arguments],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(HERE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "100"},
        )  # fmt: skip

    return start


def ended(process, status):
    said, _ = process.communicate(timeout=60)
    assert process.returncode == status, said
    return said


def test_several_processes_say_what_one_says(tests, tmp_path):
    summary = r"(\d.*) in [\d.]+s"
    one, two = (ended(tests("-n", number, "-rs"), 1) for number in ("1", "2"))
    assert re.findall(summary, one) == ["2 failed, 6 passed, 1 skipped, 1 warning, 1 error"]
    assert re.findall(summary, two) == ["1 failed, 7 passed, 1 skipped, 1 warning, 1 error"]
    assert "test_elsewhere" in one
    for said in one, two:
        assert "said by 3" in said
        assert "said by 1" not in said
        assert "warned by 2" in said
        assert "broken when it is torn down" in said
        assert "SKIPPED [1] test_b.py" in said
    assert (tmp_path / "kept/once").read_text() == "set up torn down "


def test_those_chosen_are_run_and_the_first_failure_is_the_last(tests):
    assert "3 passed, 6 deselected" in ended(tests("-n", "2", "-k", "elsewhere or last or test_1"), 0)
    said = ended(tests("-n", "2", "-x", "-k", "test_3 or elsewhere"), 1)
    assert "stopping after 1 failures" in said
    assert "1 failed" in said


def test_the_longest_files_come_first(tests, tmp_path):
    notes = """
        import time
        def test_notes_its_file(shared_folder):
            with (shared_folder / "order").open("a") as file:
                file.write(__name__[-1])
            time.sleep(0.5)
    """
    files = dict.fromkeys(["test_x", "test_y", "test_z"], notes)
    ended(tests("-n", "2", "-o", "long_files=test_z.py", **files), 0)
    assert (tmp_path / "kept/order").read_text() in ("zxy", "xzy")
    assert "names what is not there: test_gone.py" in ended(tests("-n", "2", "-o", "long_files=test_gone.py"), 4)


def test_a_process_that_dies_fails_its_test_and_no_other_is_lost(tests):
    dies = """
        import os, signal
        def test_1(): pass
        def test_2(): os.kill(os.getpid(), signal.SIGKILL)
        def test_3(): pass
        def test_4(): os._exit(0)
    """
    passes = """
        def test_5(): pass
    """
    said = ended(tests("-n", "2", test_x=dies, test_y=passes), 1)
    assert "2 failed, 3 passed" in said
    assert "the process that ran this test ended with status -9" in said
    assert "the process that ran this test ended with status 0" in said
    assert re.findall(r"FAILED test_x.py::(test_\d)", said) == ["test_2", "test_4"]


def test_an_interruption_ends_all_processes(tests, tmp_path):
    sleeps = """
        import os, pathlib, time
        def test_sleeps(shared_folder):
            (shared_folder / f"{os.getpid()}.pid").touch()
            time.sleep(50)
    """
    process = tests("-n", "2", test_x=sleeps, test_y=sleeps)
    until = time.monotonic() + 50
    while len(running := list(tmp_path.glob("kept/*.pid"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    begun = time.monotonic()
    assert "KeyboardInterrupt" in ended(process, 2)
    assert time.monotonic() - begun < 20
    for path in running:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.stem), 0)


def test_what_fails_outside_a_test_is_an_error_of_pytest(tests, tmp_path):
    (tmp_path / "conftest.py").write_text("def pytest_runtest_logfinish(nodeid):\n    1 / 0\n")
    said = ended(tests("-n", "2"), 3)
    assert "a process that runs tests failed" in said
    assert "ZeroDivisionError" in said
