"""Watch by an audit hook what a process imports, opens, connects to and starts while it reads something hostile."""

import os
import site
import sys
import sysconfig
import threading
from contextlib import contextmanager
from pathlib import Path

__all__ = ["touched", "watch", "watched"]

READ_FROM = (
    Path(__file__).parents[3] / "lit_fed", sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"),
    *site.getsitepackages(),
)  # fmt: skip

OWN = (*(f"{os.path.realpath(one)}/" for one in READ_FROM), "/proc/", "/sys/", "/dev/")
"""Folders whose files Python and the installed packages read themselves."""

STARTS = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"}
CONNECTS = {"socket.connect", "socket.getaddrinfo"}
CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.symlink", "os.link", "shutil.rmtree"}
UNPICKLES = {"pickle.find_class"}
WRITES = CHANGES - {"shutil.rmtree"} | {"os.truncate"}

watched_by = []
"""Who is told of events; a hook cannot be taken back."""


def _hook(event, arguments):
    for note, others in tuple(watched_by):
        if threading.get_ident() not in others:
            note(event, arguments)


@contextmanager
def _told(note):
    """Tell of events, but for those of threads that ran before, such as nodes of other tests that look for a server."""
    one = note, {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    watched_by.append(one)
    try:
        yield
    finally:
        watched_by.remove(one)


sys.addaudithook(_hook)


def _is_compiled(arguments):
    """Whether Python keeps what it compiled of an installed module."""
    path = arguments[0] if arguments and isinstance(arguments[0], str) else ""
    return "__pycache__" in path and os.path.realpath(path).startswith(OWN)


@contextmanager
def watch(forbidden=()):
    """Collect what must not happen; the list is empty where nothing did.

    Args:
        forbidden: modules that must not be imported, nor anything below them.
    """
    found = []
    modules = tuple(f"{one}." for one in forbidden)

    def note(event, arguments):
        if event == "import" and f"{arguments[0]}.".startswith(modules):
            found.append(f"import {arguments[0]}")
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(OWN):
                found.append(f"open {path}")
        elif event in STARTS | CONNECTS | CHANGES | UNPICKLES and not _is_compiled(arguments):
            found.append(f"{event} {arguments}")

    with _told(note):
        yield found


@contextmanager
def watched(*places):
    """Files outside some folders that are opened, made, moved or deleted; installed libraries may be read."""
    inside, found = [os.path.realpath(one) for one in places], []

    def note(event, arguments):
        if event != "open" and event not in WRITES:
            return
        writes = event != "open" or bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        several = event not in ("open", "os.mkdir", "os.remove", "os.rmdir")
        for one in arguments[: 2 if several else 1]:
            if isinstance(one, str | bytes | os.PathLike) and not _is_compiled((os.fsdecode(one),)):
                path = os.path.realpath(os.fsdecode(one))
                allowed = any(path == place or path.startswith(f"{place}/") for place in inside)
                if not allowed and (writes or not path.startswith((*OWN, "/usr/", "/lib/", "/etc/localtime"))):
                    found.append((event, path))

    with _told(note):
        yield found


@contextmanager
def touched(text):
    """Events that write, move, delete, connect or start something with a text in their arguments."""
    found = []

    def note(event, arguments):
        opened = event == "open" and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if (opened or event in STARTS | CONNECTS | CHANGES | WRITES | {"socket.bind"}) and text in str(arguments):
            found.append((event, arguments))

    with _told(note):
        yield found
