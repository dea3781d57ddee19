"""What a process can still do after dropping its privileges: torchrlopt/sandbox.py.

Each case runs in a separate process, which reports what happened.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "torchrlopt"

CODE = """
import ctypes, errno, fcntl, os, pty, resource, signal, socket, subprocess, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[5])  # without the package around it, which loads torch
import sandbox
how, what, folder, parent = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
if "torch" in what:
    import torch
if "files" in how and not sandbox.confine_files():
    sys.exit("kernel without Landlock")
if "calls" in how and not sandbox.confine_calls():
    sys.exit("kernel without seccomp")
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
        raise OSError(ctypes.get_errno(), name)
try:
    print("done", eval(what))
except OSError as error:
    print("refused", error.errno)
except (MemoryError, ValueError) as error:  # RLIMIT_FSIZE, and how `setrlimit` says it
    print("refused", error)
"""

WRITES = {
    "new file": "open(folder / 'new', 'w').write('x')",
    "existing file": "open(folder / 'old', 'r+').write('x')",
    "append": "open(folder / 'old', 'a').write('x')",
    "cut": "os.truncate(folder / 'old', 0)",
    "directory": "os.mkdir(folder / 'd')",
    "remove": "os.unlink(folder / 'old')",
    "move": "os.rename(folder / 'old', folder / 'other')",
    "hard link": "os.link(folder / 'old', folder / 'other')",
    "symbolic link": "os.symlink('old', folder / 'other')",
    "fifo": "os.mkfifo(folder / 'fifo')",
    "nameless file": "os.open(folder, os.O_TMPFILE | os.O_WRONLY)",
}
PROCESSES = {
    "fork": "os.fork()",
    "program": "subprocess.run(['/bin/true'])",
    "exec": "os.execv('/bin/true', ['true'])",
    "shell": "os.posix_spawn('/bin/sh', ['sh', '-c', 'true'], {})",
}
CALLS = PROCESSES | {
    "network": "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "datagrams": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "local": "socket.socket(socket.AF_UNIX)",
    "signal to the parent": "os.kill(parent, 0)",
    "signal to all": "os.kill(-1, 0)",
    "messages": "call('msgget', 0, 0o1600)",
    "removing what others share": "call('shmctl', 1 << 20, 0, None)",
    "signal by a pipe": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, parent)",
    "priority of the parent": "os.setpriority(os.PRIO_PROCESS, parent, 1)",
    "processors of the parent": "os.sched_setaffinity(parent, os.sched_getaffinity(0))",
    "no end with the parent": "call('prctl', 1, 0, 0, 0, 0)",
    "no end after its time": "signal.setitimer(signal.ITIMER_REAL, 0)",
    "own limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "own limits, by the other call": "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))",
    "limits of the parent": "resource.prlimit(parent, resource.RLIMIT_CORE)",
}
MODES = {"mode": "os.chmod(folder / 'old', 0o777)", "time": "os.utime(folder / 'old')"}

ALLOWED = {
    "read": "(folder / 'old').read_text()",
    "list": "os.listdir(folder)",
    "thread": "threading.Thread(target=len, args=('x',)).start()",
    "computing in threads": "torch.set_num_threads(3), (torch.ones(600, 600) @ torch.ones(600, 9)).max()",
    "import": "__import__('sympy')",
    "limits": "resource.getrlimit(resource.RLIMIT_CORE)",
    "signal to itself": "os.kill(os.getpid(), 0)",
}


def outcome(how: str, what: str, folder: Path) -> str:
    (folder / "old").write_text("content")
    done = subprocess.run(
        [sys.executable, "-c", CODE, how, what, str(folder), str(os.getpid()), str(PACKAGE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (folder / "old").read_text() == "content"
    if done.stderr.startswith("kernel without"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


@pytest.mark.parametrize("what", [*WRITES, *(each for each in PROCESSES if each != "fork")])
def test_landlock_refuses(what: str, tmp_path: Path) -> None:
    assert outcome("files", (WRITES | PROCESSES)[what], tmp_path) == "refused"
    assert set(os.listdir(tmp_path)) == {"old"}


@pytest.mark.parametrize("file", ["environ", "mem", "maps"])
def test_the_parent_cannot_be_read(file: str, tmp_path: Path) -> None:
    """Root's capabilities would allow it whatever Landlock says."""
    assert outcome("files calls", f"open(f'/proc/{{parent}}/{file}', 'rb').read(1)", tmp_path) == "refused"


@pytest.mark.parametrize("what", [*WRITES, *CALLS, *MODES])
def test_seccomp_refuses(what: str, tmp_path: Path) -> None:
    assert outcome("calls", (WRITES | CALLS | MODES)[what], tmp_path) == "refused"
    assert set(os.listdir(tmp_path)) == {"old"}


@pytest.mark.parametrize("what", ALLOWED)
def test_computing_goes_on(what: str, tmp_path: Path) -> None:
    assert outcome("files calls", ALLOWED[what], tmp_path) == "done"


def test_what_runs_already_loses_its_rights_too(tmp_path: Path) -> None:
    """Of threads that libraries started when they were imported."""
    code = """(
        go := threading.Event(), found := [],
        t := threading.Thread(target=lambda: (go.wait(), found.append(sandbox._libc.syscall(41, 2, 1, 0)))),
        t.start(), sandbox.confine_calls(), go.set(), t.join(),
        1 / 0 if found[0] >= 0 else None)"""
    if os.uname().machine != "x86_64":
        pytest.skip("the number of the call is that of x86-64")
    assert outcome("", code, tmp_path) == "done"


def test_nothing_can_be_typed_into_a_terminal(tmp_path: Path) -> None:
    """TIOCSTI: the next command of the shell that the program was started from."""
    type_a_letter = "fcntl.ioctl(pty.openpty()[1] if terminal is None else terminal, 0x5412, b'x')"
    if outcome("", f"(terminal := None, {type_a_letter})", tmp_path) == "refused":
        pytest.skip("the kernel does not let this user do it")
    confined = f"(terminal := pty.openpty()[1], sandbox.confine_calls() or sys.exit(1), {type_a_letter})"
    assert outcome("", confined, tmp_path) == "refused"


def test_abort_is_a_death_by_abort() -> None:
    """Assertions in native code have to end the process by the signal that says so."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import sandbox; sandbox.confine_calls(); os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(PACKAGE)], check=False, timeout=100)
    assert done.returncode == -6


def test_without_seccomp_nothing_gets_into_files(tmp_path: Path) -> None:
    code = """(
        setattr(sandbox.platform, "machine", lambda: "another"),
        None if sandbox.confine_calls() is False else 1 / 0,
        os.write(os.open(folder / "old", os.O_RDWR), b"x"))"""
    assert outcome("", code, tmp_path) == "refused"
