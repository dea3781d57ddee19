"""Sandboxes this process: no new processes, no network, no changes to files.

For subprocesses that parse untrusted files: even a compromised one can only compute, answer its parent and
read what the user can read. It uses Landlock (since Linux 5.13) and seccomp (since 3.17), each if the kernel
supports it. It calls the kernel directly, because the bindings on PyPI have no stable release (landlock
1.0.0.dev5) or none since 2021 (pyseccomp, which also needs libseccomp). Importable without the package.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Sequence

LANDLOCK, SECCOMP = "Landlock", "seccomp"

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h; required unless the process is root
_CAPABILITY_VERSION_3, _DAC_READ_SEARCH = 0x20080522, 1 << 2  # linux/capability.h


def confine_files() -> bool:
    """Forbid this thread, and threads that it starts, to modify or execute files.

    Reading remains allowed. Call it at start-up: threads that are already running keep their rights.

    Returns:
        Whether the kernel enforces it.
    """
    return _forbid_privileges() and _landlock()


def confine_calls() -> bool:
    """Forbid all threads of this process to change files, start processes or contact other processes.

    No file can be opened for writing, created, moved, removed or changed, no socket can be opened, and no
    input can be injected into a terminal.

    Returns:
        Whether the kernel enforces it; only on x86-64 and 64-bit ARM.
    """
    # Without seccomp, this at least prevents writing to files. Pipes are not affected.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return _forbid_privileges() and _seccomp()


def _forbid_privileges() -> bool:
    _drop_capabilities()
    return bool(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


def _drop_capabilities() -> None:
    """Keep of the capabilities of root only that to read files: others open the memory of other processes."""
    numbers = {"x86_64": (125, 126), "aarch64": (90, 91)}.get(platform.machine())
    if numbers is None:
        return
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)  # effective, permitted, inheritable, each of two halves
    if _libc.syscall(numbers[0], header, data) == 0:
        held = struct.unpack("=6I", data.raw)
        kept = struct.pack("=6I", held[0] & _DAC_READ_SEARCH, held[1] & _DAC_READ_SEARCH, 0, 0, 0, 0)
        _libc.syscall(numbers[1], header, kept)


# ---- Landlock, linux/landlock.h

# These system call numbers are the same on all architectures.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446

_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION: queries the ABI version

_READ = (1 << 2) | (1 << 3)  # READ_FILE, READ_DIR
_OF_VERSION_1 = (1 << 13) - 1  # EXECUTE, WRITE_FILE, REMOVE_*, MAKE_*, READ_*
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # since versions 2, 3 and 5
_NETWORK = 0b11  # BIND_TCP, CONNECT_TCP, since version 4
_SCOPES = 0b11  # abstract UNIX sockets and signals, since version 6


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
    # An older kernel accepts a longer structure if the fields that it does not know are 0.
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

# Offsets in struct seccomp_data of the system call number and the architecture.
_NUMBER, _MACHINE = 0, 4
# BPF_LD|W|ABS, JEQ, JSET, JGE, RET
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06

_CLONE_THREAD = 0x00010000  # linux/sched.h: a thread, not a new process
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | (os.O_TMPFILE & ~os.O_DIRECTORY)
_X32 = 0x40000000  # flag of the x32 ABI of x86-64, whose numbers would bypass the list

# System calls for computing and reading, with their numbers on x86-64
# (arch/x86/entry/syscalls/syscall_64.tbl) and on 64-bit ARM (include/uapi/asm-generic/unistd.h); None if the
# architecture lacks the call. All others are refused, including future ones.
_ALLOWED: tuple[tuple[str, int | None, int | None], ...] = (
    # memory
    ("mmap", 9, 222), ("mprotect", 10, 226), ("munmap", 11, 215), ("mremap", 25, 216), ("brk", 12, 214),
    ("madvise", 28, 233), ("mincore", 27, 232), ("mlock", 149, 228), ("mlock2", 325, 284),
    ("munlock", 150, 229), ("membarrier", 324, 283), ("get_mempolicy", 239, 236), ("set_mempolicy", 238, 237),
    ("mbind", 237, 235),
    # open descriptors, and files by name, read-only
    ("read", 0, 63), ("write", 1, 64), ("readv", 19, 65), ("writev", 20, 66), ("pread64", 17, 67),
    ("pwrite64", 18, 68), ("preadv", 295, 69), ("preadv2", 327, 286), ("lseek", 8, 62), ("close", 3, 57),
    ("close_range", 436, 436), ("dup", 32, 23), ("dup2", 33, None), ("dup3", 292, 24), ("pipe", 22, None),
    ("pipe2", 293, 59), ("poll", 7, None), ("ppoll", 271, 73), ("select", 23, None), ("pselect6", 270, 72),
    ("epoll_create", 213, None), ("epoll_create1", 291, 20), ("epoll_ctl", 233, 21),
    ("epoll_wait", 232, None), ("epoll_pwait", 281, 22), ("eventfd", 284, None), ("eventfd2", 290, 19),
    ("fstat", 5, 80), ("stat", 4, None), ("lstat", 6, None), ("newfstatat", 262, 79), ("statx", 332, 291),
    ("access", 21, None), ("faccessat", 269, 48), ("faccessat2", 439, 439), ("readlink", 89, None),
    ("readlinkat", 267, 78), ("getcwd", 79, 17), ("getdents", 78, None), ("getdents64", 217, 61),
    ("statfs", 137, 43), ("fstatfs", 138, 44), ("fadvise64", 221, 223),
    # threads and signals of this process
    ("futex", 202, 98), ("futex_waitv", 449, 449), ("set_robust_list", 273, 99), ("set_tid_address", 218, 96),
    ("rseq", 334, 293), ("sched_yield", 24, 124), ("exit", 60, 93), ("exit_group", 231, 94),
    ("sched_getaffinity", 204, 123), ("sched_getparam", 143, 121), ("sched_getscheduler", 145, 120),
    ("sched_get_priority_max", 146, 125), ("sched_get_priority_min", 147, 126), ("rt_sigaction", 13, 134),
    ("rt_sigprocmask", 14, 135), ("rt_sigreturn", 15, 139), ("rt_sigpending", 127, 136),
    ("rt_sigsuspend", 130, 133), ("rt_sigtimedwait", 128, 137), ("sigaltstack", 131, 132),
    ("restart_syscall", 219, 128), ("arch_prctl", 158, None),
    # queries
    ("getpid", 39, 172), ("gettid", 186, 178), ("getppid", 110, 173), ("getuid", 102, 174),
    ("geteuid", 107, 175), ("getgid", 104, 176), ("getegid", 108, 177), ("getpgrp", 111, None),
    ("getpgid", 121, 155), ("getsid", 124, 156), ("getgroups", 115, 158), ("getresuid", 118, 148),
    ("getresgid", 120, 150), ("clock_gettime", 228, 113), ("clock_getres", 229, 114),
    ("clock_nanosleep", 230, 115), ("nanosleep", 35, 101), ("gettimeofday", 96, 169), ("time", 201, None),
    ("times", 100, 153), ("getrusage", 98, 165), ("getrlimit", 97, 163), ("sysinfo", 99, 179),
    ("uname", 63, 160), ("getcpu", 309, 168), ("getrandom", 318, 278),
)  # fmt: skip
# System calls that are allowed for some values of an argument only.
_IOCTLS = (  # terminal and file queries: TCGETS, TCGETS2, TIOCGWINSZ, FION*, FIO*CLEX
    0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451,
)  # fmt: skip
_FCNTLS = (0, 1, 2, 3, 4, 5, 1030, 1034)  # F_DUPFD*, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_GET_SEALS
_PRCTLS = (3, 15, 16, 0x53564D41)  # PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA; others lift limits

# The architecture in struct seccomp_data (AUDIT_ARCH_...) and the column of the table.
_MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _seccomp() -> bool:
    machine = platform.machine()
    if machine not in _MACHINES or sys.maxsize < 1 << 32:
        return False
    code = _filter(machine, os.getpid())
    number = 317 if machine == "x86_64" else 277  # number of seccomp itself
    program = _SockFprog(len(code) // 8, code)
    return bool(_libc.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program)) == 0)


def _filter(machine: str, own: int) -> bytes:
    """Build the BPF program that the kernel runs before each system call.

    Args:
        machine: one of `_MACHINES`.
        own: id of this process, which may send signals to itself, as abort does.
    """
    audit, column = _MACHINES[machine]

    def one(x86: int, arm: int) -> int:
        return x86 if column == 1 else arm

    refused = _ERRNO | _EPERM
    lines = [_line(_LOAD, _MACHINE), _line(_EQUAL, audit, 1, 0), _line(_RETURN, _KILL), _line(_LOAD, _NUMBER)]
    if column == 1:
        lines += [_line(_AT_LEAST, _X32, 0, 1), _line(_RETURN, refused)]
    for _, x86, arm in _ALLOWED:
        known = x86 if column == 1 else arm
        lines += [] if known is None else _where(known, [_line(_RETURN, _ALLOW)])
    for number, argument in ((2, 1), (257, 2)) if column == 1 else ((56, 2),):  # open, openat
        lines += _where(number, _unless(argument, _WRITING, refused))
    lines += _where(one(56, 220), _only(0, _ANY_BIT, [_CLONE_THREAD], refused))  # clone
    for number in (one(62, 129), one(234, 131)):  # kill, tgkill
        lines += _where(number, _only(0, _EQUAL, [own], refused))
    lines += _where(one(302, 261), _reading_own_limits(refused))  # prlimit64
    lines += _where(one(203, 122), _only(0, _EQUAL, [0], refused))  # sched_setaffinity of this thread
    for number, argument, values in (
        (one(16, 29), 1, _IOCTLS),
        (one(72, 25), 1, _FCNTLS),
        (one(157, 167), 0, _PRCTLS),
    ):
        lines += _where(number, _only(argument, _EQUAL, values, refused))
    # Return ENOSYS, as an older kernel would: glibc then does without clone3 and openat2, whose flags are in
    # memory, where a filter cannot read them.
    return b"".join([*lines, _line(_RETURN, _ERRNO | _ENOSYS)])


def _reading_own_limits(verdict: int) -> list[bytes]:
    """Return `verdict` for prlimit64 unless it only reads (null new_limit) limits of this process (pid 0)."""
    lines = []
    for argument, half in ((0, 0), (2, 0), (2, 1)):
        lines += [_load(argument, half), _line(_EQUAL, 0, 1, 0), _line(_RETURN, verdict)]
    return [*lines, _line(_RETURN, _ALLOW)]


def _line(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode one struct sock_filter; jump offsets count instructions from the next one."""
    return struct.pack("=HBBI", code, if_true, if_false, k)


def _where(number: int, then: list[bytes]) -> list[bytes]:
    """Run `then`, which always returns, for one system call; its number is loaded before and after."""
    return [_line(_EQUAL, number, 0, len(then)), *then]


def _unless(argument: int, bits: int, verdict: int) -> list[bytes]:
    """Return `verdict` if the low half of an argument has one of the bits set, else allow."""
    return [_load(argument), _line(_ANY_BIT, bits, 0, 1), _line(_RETURN, verdict), _line(_RETURN, _ALLOW)]


def _only(argument: int, test: int, values: Sequence[int], verdict: int) -> list[bytes]:
    """Allow if the low half of an argument passes the test with one of the values, else return `verdict`."""
    lines = [_load(argument)]
    for value in values:
        lines += [_line(test, value, 0, 1), _line(_RETURN, _ALLOW)]
    return [*lines, _line(_RETURN, verdict)]


def _load(argument: int, half: int = 0) -> bytes:
    return _line(_LOAD, 16 + 8 * argument + 4 * half)  # both machines are little-endian
