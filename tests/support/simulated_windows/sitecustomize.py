"""A process on Linux that refuses what Windows refuses: Python imports this where the folder is on PYTHONPATH.

For the package under test, modules and functions of POSIX are absent, and `tests/support/windows.py` lists the rules of
files, which hold for all of the process. Audit hooks enforce most of them: code can neither bypass nor remove a
hook. `ELMO_FAST_SIMULATED` names a folder in which every such process leaves its number; a file that any of them has
open or mapped is in use.
"""

import asyncio.unix_events
import concurrent.futures.process
import contextlib
import fcntl
import getpass
import multiprocessing.popen_spawn_posix
import multiprocessing.resource_tracker
import os
import pty  # noqa: F401
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile

import filelock

PRELOADED = (asyncio, concurrent, getpass, multiprocessing, socketserver, subprocess)  # they use what is absent below
ABSENT = ("crypt", "fcntl", "grp", "nis", "posix", "pty", "pwd", "resource", "spwd", "syslog", "termios", "tty")
FUNCTIONS = """
    chown chroot confstr eventfd fchmod fchown fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid
    getgroups getloadavg getpgid getpgrp getpriority getsid getuid getxattr initgroups killpg lchown lockf memfd_create
    mkfifo mknod nice openpty
    pathconf pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite
    pwritev readv register_at_fork sched_getaffinity sched_getparam sched_getscheduler sched_setaffinity sched_yield
    sendfile setegid seteuid setgid setgroups setpgid setpriority setsid setuid setxattr splice statvfs sync sysconf
    sysconf_names tcgetpgrp ttyname uname wait wait3 wait4 waitid writev O_CLOEXEC O_DIRECTORY O_DSYNC O_NOFOLLOW
    O_NONBLOCK O_PATH O_SYNC O_TMPFILE WNOHANG""".split()
SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}  # that Windows has
SIGNAL_FUNCTIONS = """
    alarm getitimer pause pthread_kill pthread_sigmask setitimer sigpending siginterrupt sigtimedwait sigwait
    sigwaitinfo""".split()
FORBIDDEN = set('<>:"|?*\\')  # in names of files
UNDER_TEST = {"__main__", "elmo_fast", "tests"}


def hide(module, names):
    """Take names from a module, for the package under test alone: the library's own code on Linux needs them."""
    hidden = {name: vars(module).pop(name) for name in names if hasattr(module, name)}

    def get(name):
        if name in hidden and not is_under_test(sys._getframe(1)):
            return hidden[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)

    module.__getattr__ = get


def is_under_test(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0] in UNDER_TEST


def processes():
    """Numbers of the processes that simulate Windows and live."""
    folder = os.environ["ELMO_FAST_SIMULATED"]
    return [number for number in os.listdir(folder) if os.path.isdir(f"/proc/{number}/fd")]


def opened():
    """Paths, by the system's numbers too, of everything that the processes have open."""
    for number in processes():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{number}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{number}/fd/{name}")
                    yield os.readlink(f"/proc/{number}/fd/{name}"), (status.st_dev, status.st_ino)


def mapped():
    """Paths of everything that the processes have mapped."""
    for number in processes():
        with contextlib.suppress(OSError), open(f"/proc/{number}/maps", encoding="utf-8", errors="replace") as lines:
            yield from (line.rstrip("\n").split(maxsplit=5)[5] for line in lines if "/" in line)


def check_unused(path, number=13):
    """PermissionError for a file that is open or mapped, by whatever name, and for a directory with such a file."""
    if not os.path.lexists(path) or os.path.islink(path):
        return
    real, status = os.path.realpath(path), os.stat(path)
    for used_path, identity in opened():
        if identity == (status.st_dev, status.st_ino) or used_path.startswith(f"{real}/"):
            raise PermissionError(number, f"[WinError 32] another process or this one has it open: {used_path}", path)
    for used_path in mapped():
        if used_path == real or used_path.startswith(f"{real}/"):
            raise PermissionError(number, "[WinError 5] it is mapped", path)


def check_name(path):
    name = os.path.basename(path)
    if FORBIDDEN & set(name) or (name.endswith((" ", ".")) and name.strip(".")):
        raise OSError(22, "[WinError 123] the file name is not correct", path)


def on_open(path, mode, flags):
    if isinstance(path, int):
        return
    path = os.fsdecode(path)
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    if flags & (os.O_WRONLY | os.O_RDWR):
        check_name(path)
    if flags & os.O_TRUNC and os.path.realpath(path) in mapped():
        raise OSError(22, "Invalid argument: it is mapped", path)


def on_rename(source, target, *_):
    source, target = os.fsdecode(source), os.fsdecode(target)
    check_name(target)
    if os.path.isdir(target):
        raise PermissionError(13, "[WinError 5] Access is denied", target)
    for path in (source, target):
        check_unused(path)


def on_remove(path, *_):
    check_unused(os.fsdecode(path))


HOOKS = {"open": on_open, "os.rename": on_rename, "os.remove": on_remove, "os.rmdir": on_remove,
         "os.mkdir": lambda path, *_: check_name(os.fsdecode(path))}


def rename(source, target, **options):
    """`os.rename`, which does not replace on Windows; `os.replace` does, and has the same event for hooks."""
    if os.path.lexists(target):
        raise FileExistsError(17, "[WinError 183] Cannot create a file when that file already exists", target)
    return real_rename(source, target, **options)


def fsync(file):
    number = file if isinstance(file, int) else file.fileno()
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(9, "Bad file descriptor: it is open to read alone")
    return real_fsync(number)


def set_handler(number, handler):
    """`signal.signal`; SIGTERM is accepted and never delivered: it ends the process."""
    if signal.Signals(number).name not in SIGNALS and is_under_test(sys._getframe(1)):
        raise ValueError("invalid signal value")
    if number != signal.SIGTERM:
        return real_signal(number, handler)
    before, sigterm[:] = sigterm[0], [handler]
    return before


class ReleasedLock(filelock.FileLock):
    """A lock whose file is removed when it is released, as on Windows."""

    def _release(self):
        super()._release()
        with contextlib.suppress(OSError):
            os.unlink(self.lock_file)


real_rename, real_fsync, real_signal, real_getsignal = os.rename, os.fsync, signal.signal, signal.getsignal
sigterm, parent, busy = [signal.SIG_DFL], os.getppid(), []


def hook(event, arguments):
    if event in HOOKS and not busy:
        busy.append(event)  # the checks open files themselves
        try:
            HOOKS[event](*arguments)
        finally:
            busy.pop()


def simulate():
    """Simulate Windows in this process from now on."""
    open(os.path.join(os.environ["ELMO_FAST_SIMULATED"], str(os.getpid())), "w").close()
    os.rename, os.fsync, os.getppid = rename, fsync, lambda: parent  # the number of the parent stays when it has ended
    signal.signal = set_handler
    signal.getsignal = lambda number: sigterm[0] if number == signal.SIGTERM else real_getsignal(number)
    filelock.FileLock = ReleasedLock
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # as on Windows
    shutil._use_fd_functions = False
    multiprocessing.set_start_method("spawn", force=True)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="cp1252")  # as for a pipe
    hide(os, FUNCTIONS)
    hide(signal, [*SIGNAL_FUNCTIONS, *(name.name for name in signal.Signals if name.name not in SIGNALS)])
    sys.modules.update(dict.fromkeys(ABSENT))
    sys.addaudithook(hook)


if "ELMO_FAST_SIMULATED" in os.environ:
    simulate()
