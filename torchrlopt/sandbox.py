"""Takes rights from this process: no new processes, no network, no changes to files.

For processes that work on files from outside: whatever such a file makes of them, it can compute and answer,
and read what the user can read. By Landlock (since Linux 5.13) and seccomp (since 3.17), each where the
kernel has it. Written against the kernel's interface: the bindings on PyPI have no stable release (landlock
1.0.0.dev5) or none since 2021 (pyseccomp, which needs libseccomp as well). Importable without the package.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable, Sequence

LANDLOCK, SECCOMP = "Landlock", "seccomp"

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h; without it only root may do what follows


def confine_files() -> bool:
    """Forbid this thread, and those it starts, to change files and to execute any.

    Reading stays as it is. At the beginning of a process: threads that run already keep their rights.

    Returns:
        Whether the kernel does it.
    """
    return _forbid_privileges() and _landlock()


def confine_calls() -> bool:
    """Forbid all threads of this process to change files, to start processes, and to reach others.

    No file can be opened for writing, created, moved, removed or changed, and no socket opened. Terminals
    cannot be typed into.

    Returns:
        Whether the kernel does it. It does not on other machines than x86-64 and 64-bit ARM.
    """
    # Where there is no seccomp, at least nothing can be put into a file. Pipes are none.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return _forbid_privileges() and _seccomp()


def _forbid_privileges() -> bool:
    return bool(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


# ---- Landlock, linux/landlock.h

# Their numbers are the same on all machines.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446

_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION: asks which version of the interface there is

_READ = (1 << 2) | (1 << 3)  # READ_FILE, READ_DIR
_OF_VERSION_1 = (1 << 13) - 1  # EXECUTE, WRITE_FILE, REMOVE_*, MAKE_*, and those of reading
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # since versions 2, 3 and 5
_NETWORK = 0b11  # BIND_TCP, CONNECT_TCP, since version 4
_SCOPES = 0b11  # abstract UNIX sockets and signals reach nobody outside, since version 6


def _landlock() -> bool:
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    files = _OF_VERSION_1 & ~_READ
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        files |= right if version >= since else 0
    network = _NETWORK if version >= 4 else 0
    scopes = _SCOPES if version >= 6 else 0
    attributes = struct.pack("=QQQ", files, network, scopes)
    # An older kernel takes a longer structure as long as what it does not know is 0.
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        return bool(_libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


# ---- seccomp, linux/seccomp.h, linux/filter.h, linux/audit.h

_SET_MODE_FILTER, _ALL_THREADS = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000  # SECCOMP_RET_...
_EPERM, _ENOSYS = 1, 38

# Where struct seccomp_data has the call's number, the machine, and the low half of an argument.
_NUMBER, _MACHINE = 0, 4
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = (
    0x20,
    0x15,
    0x45,
    0x35,
    0x06,
)  # BPF_LD|W|ABS, JEQ, JSET, JGE, RET

_CLONE_THREAD = 0x00010000  # linux/sched.h: a thread of this process, no process of its own
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | (os.O_TMPFILE & ~os.O_DIRECTORY)
_X32 = 0x40000000  # of numbers of the second interface of x86-64, which would go past the list

# Calls by name: their numbers on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl) and on 64-bit ARM
# (include/uapi/asm-generic/unistd.h); None where a machine has no such call.
_Call = tuple[str, int | None, int | None]

_PROCESSES: tuple[_Call, ...] = (
    ("fork", 57, None), ("vfork", 58, None), ("execve", 59, 221), ("execveat", 322, 281),
    ("unshare", 272, 97), ("setns", 308, 268),
)  # fmt: skip
_OTHERS: tuple[_Call, ...] = (  # what reaches into other processes, signals to them, memory in common
    ("ptrace", 101, 117), ("process_vm_readv", 310, 270), ("process_vm_writev", 311, 271),
    ("pidfd_getfd", 438, 438), ("pidfd_send_signal", 424, 424), ("kcmp", 312, 272), ("tkill", 200, 130),
    ("rt_sigqueueinfo", 129, 138), ("rt_tgsigqueueinfo", 297, 240), ("process_madvise", 440, 440),
    ("setrlimit", 160, 164),
    ("shmget", 29, 194), ("shmat", 30, 196), ("msgget", 68, 186), ("semget", 64, 190), ("mq_open", 240, 180),
)  # fmt: skip
_NETWORKS: tuple[_Call, ...] = (("socket", 41, 198), ("socketpair", 53, 199))
_IOCTLS = (  # what is asked of a terminal, and of any file: TCGETS, TCGETS2, TIOCGWINSZ, FION*, FIO*CLEX
    0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451,
)  # fmt: skip
_KERNEL: tuple[_Call, ...] = (  # large or privileged parts of the kernel that nothing here needs
    ("io_uring_setup", 425, 425), ("io_uring_enter", 426, 426), ("io_uring_register", 427, 427),
    ("bpf", 321, 280), ("perf_event_open", 298, 241), ("userfaultfd", 323, 282), ("add_key", 248, 217),
    ("request_key", 249, 218), ("keyctl", 250, 219), ("mount", 165, 40), ("umount2", 166, 39),
    ("pivot_root", 155, 41), ("chroot", 161, 51), ("open_tree", 428, 428), ("move_mount", 429, 429),
    ("fsopen", 430, 430), ("fsmount", 432, 432), ("mount_setattr", 442, 442), ("open_by_handle_at", 304, 265),
    ("kexec_load", 246, 104), ("kexec_file_load", 320, 294), ("init_module", 175, 105),
    ("finit_module", 313, 273), ("delete_module", 176, 106), ("swapon", 167, 224), ("reboot", 169, 142),
    ("settimeofday", 164, 170), ("clock_settime", 227, 112), ("sethostname", 170, 161), ("acct", 163, 89),
)  # fmt: skip
_CHANGES: tuple[_Call, ...] = (  # of files, by their paths or handles
    ("creat", 85, None), ("mkdir", 83, None), ("mkdirat", 258, 34), ("mknod", 133, None),
    ("mknodat", 259, 33), ("rename", 82, None), ("renameat", 264, 38), ("renameat2", 316, 276),
    ("link", 86, None), ("linkat", 265, 37), ("symlink", 88, None), ("symlinkat", 266, 36),
    ("unlink", 87, None), ("unlinkat", 263, 35), ("rmdir", 84, None), ("truncate", 76, 45),
    ("ftruncate", 77, 46), ("fallocate", 285, 47), ("chmod", 90, None), ("fchmod", 91, 52),
    ("fchmodat", 268, 53), ("fchmodat2", 452, 452), ("chown", 92, None), ("lchown", 94, None),
    ("fchown", 93, 55),
    ("fchownat", 260, 54), ("utime", 132, None), ("utimes", 235, None), ("futimesat", 261, None),
    ("utimensat", 280, 88), ("setxattr", 188, 5), ("lsetxattr", 189, 6), ("fsetxattr", 190, 7),
    ("removexattr", 197, 14), ("lremovexattr", 198, 15), ("fremovexattr", 199, 16), ("setxattrat", 463, 463),
    ("removexattrat", 466, 466),
)  # fmt: skip

# The machine in struct seccomp_data (AUDIT_ARCH_...), and the column of the tables.
_MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _seccomp() -> bool:
    machine = platform.machine()
    if machine not in _MACHINES or sys.maxsize < 1 << 32:
        return False
    code = _filter(machine, os.getpid())
    number = 317 if machine == "x86_64" else 277  # of seccomp itself
    program = _SockFprog(len(code) // 8, code)
    return bool(_libc.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program)) == 0)


def _filter(machine: str, own: int) -> bytes:
    """The program that the kernel runs before each call.

    Args:
        machine: one of `_MACHINES`.
        own: id of this process, which may send signals to itself: abort does.
    """
    audit, column = _MACHINES[machine]

    def numbers(calls: Iterable[_Call]) -> list[int]:
        return [number for call in calls if isinstance(number := call[column], int)]

    def one(x86: int, arm: int) -> int:
        return x86 if column == 1 else arm

    refused = _ERRNO | _EPERM
    lines = [_line(_LOAD, _MACHINE), _line(_EQUAL, audit, 1, 0), _line(_RETURN, _KILL), _line(_LOAD, _NUMBER)]
    if column == 1:
        lines += [_line(_AT_LEAST, _X32, 0, 1), _line(_RETURN, refused)]
    # clone3 has its flags in memory, where no filter sees them: glibc falls back to clone.
    lines += _where(435, [_line(_RETURN, _ERRNO | _ENOSYS)])
    lines += _where(one(56, 220), _only(0, _ANY_BIT, [_CLONE_THREAD], refused))
    for number in (one(62, 129), one(234, 131)):  # kill, tgkill
        lines += _where(number, _only(0, _EQUAL, [own], refused))
    lines += _where(one(302, 261), _reading_own_limits(refused))
    lines += _where(one(16, 29), _only(1, _EQUAL, _IOCTLS, refused))
    # openat2 has its flags in memory, too.
    lines += _where(437, [_line(_RETURN, _ERRNO | _ENOSYS)])
    for number, argument in ((2, 1), (257, 2)) if column == 1 else ((56, 2),):  # open, openat
        lines += _where(number, _if(argument, _ANY_BIT, _WRITING, refused))
    calls = [*_PROCESSES, *_OTHERS, *_NETWORKS, *_KERNEL, *_CHANGES]
    for number in numbers(calls):
        lines += _where(number, [_line(_RETURN, refused)])
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _reading_own_limits(verdict: int) -> list[bytes]:
    """`verdict` for prlimit64, unless it reads (new limits: a null pointer) those of this process (0)."""
    lines = []
    for argument, half in ((0, 0), (2, 0), (2, 1)):
        lines += [_load(argument, half), _line(_EQUAL, 0, 1, 0), _line(_RETURN, verdict)]
    return [*lines, _line(_RETURN, _ALLOW)]


def _line(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One struct sock_filter; jumps are counted in lines from the next one."""
    return struct.pack("=HBBI", code, if_true, if_false, k)


def _where(number: int, then: list[bytes]) -> list[bytes]:
    """Lines for one call, which all return; the number of the call is loaded before and after."""
    return [_line(_EQUAL, number, 0, len(then)), *then]


def _if(argument: int, test: int, value: int, verdict: int) -> list[bytes]:
    """`verdict` where the low half of an argument passes the test; else the call is allowed."""
    return [_load(argument), _line(test, value, 0, 1), _line(_RETURN, verdict), _line(_RETURN, _ALLOW)]


def _only(argument: int, test: int, values: Sequence[int], verdict: int) -> list[bytes]:
    """`verdict` unless the low half of an argument passes the test with one of the values."""
    lines = [_load(argument)]
    for value in values:
        lines += [_line(test, value, 0, 1), _line(_RETURN, _ALLOW)]
    return [*lines, _line(_RETURN, verdict)]


def _load(argument: int, half: int = 0) -> bytes:
    return _line(_LOAD, 16 + 8 * argument + 4 * half)  # both machines are little-endian
