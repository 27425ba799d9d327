"""Programs that close, replace, copy and exhaust descriptors, fork, exec, and change root, user and limits.

Each has `call(times)`, and what `known_calls.SERVER` has: `flush()`, by which the recorder writes, and `note()`. What
reaches its files and peers has to be `mine` and nothing else. The number is how many calls it makes.
"""

from textwrap import dedent, indent

CLOSING = {
    "closerange": "os.closerange(3, 512)",
    "each": "for one in range(3, 256):\n    try: os.close(one)\n    except OSError: pass",
    "listed": "for one in os.listdir('/proc/self/fd'):\n    try: int(one) < 3 or os.close(int(one))\n"
    "    except OSError: pass",
    "by_the_kernel": "ctypes.CDLL(None).syscall(436, 3, 2**31, 0)",
    "streams_too": "os.closerange(0, 512)",
    "twice": "os.closerange(3, 512); flush(); os.closerange(3, 512)",
    "daemon": "os.setsid(); os.umask(0); os.closerange(0, 512)",
}
RECEIVING = {
    "files": """
        made = [os.open(f"log-{nth}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for nth in range(40)]
        again()
        [os.write(one, b"mine") for one in made]
    """,
    "sockets": """
        pairs = [socket.socketpair() for _ in range(20)]
        again()
        for nth, (one, other) in enumerate([*pairs, *(pair[::-1] for pair in pairs)]):
            one.send(b"mine")
            note(f"peer-{nth}", other.recv(1 << 20))
    """,
    "pipes": """
        pairs = [os.pipe() for _ in range(20)]
        again()
        for nth, (output, input) in enumerate(pairs):
            os.write(input, b"mine")
            note(f"pipe-{nth}", os.read(output, 1 << 20))
    """,
    "copies": """
        log = os.open("log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        [os.dup2(log, nth) for nth in range(log + 1, 128)]
        again()
        os.write(log, b"mine")
    """,
}
LOG = 'log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND); os.write(log, b"mine")'
FULL = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True: held.append(os.open("log", os.O_WRONLY | os.O_CREAT))
except OSError as error:
    assert error.errno == errno.EMFILE
"""
CHROOT = "os.chroot('.'); os.chdir('/')"
NOBODY = "os.setgid(65534); os.setuid(65534)"


def lines(*texts):
    return "\n".join(dedent(text).strip() for text in texts)


def inside(head, *texts):
    return f"{head}\n{indent(lines(*texts), '    ')}"


def forked(*texts):
    return lines(inside("if (pid := os.fork()) == 0:", *texts, "os._exit(0)"), "os.waitpid(pid, 0)")


PROGRAMS = {
    "copies_of_all": (
        lines("call(2); flush(); [os.dup2(2, one) for one in range(3, 100)]; call(3); flush(); call(1)"), 6),
    "copy_of_a_file": (lines("call(2)", LOG, "fcntl.fcntl(log, fcntl.F_DUPFD, 40); os.close(log); call(3)"), 5),
    "copy_of_a_pipe": (
        lines("call(1); a, b = os.pipe(); os.dup2(b, 90); os.write(90, b'mine'); os.close(b); flush(); call(1)",
              "os.close(90); note('pipe', os.read(a, 99))"), 2),
    "exhausted_before": (lines(FULL, "call(5)"), 5),
    "exhausted_behind": (lines("call(2); flush()", FULL, "call(5); flush()"), 7),
    "exhausted_for_a_while": (lines(FULL, "call(2); flush(); [os.close(one) for one in held]; call(3)"), 5),
    "none_at_all": (
        lines("call(1); os.closerange(0, 512); resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); call(4)"), 5),
    "little_to_write": (lines("resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))", LOG, "call(4)"), 4),
    "full_for_a_while": (
        lines("_, most = resource.getrlimit(resource.RLIMIT_FSIZE)",
              "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, most)); call(200, each=True); flush(); flush()",
              "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)); call(3)"), 203),
    "a_signal_for_much": (
        lines("signal.signal(signal.SIGXFSZ, signal.SIG_DFL); resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))",
              "call(4); flush(); call(200, each=True)"), 204),
    "chroot_behind": (lines("call(2); flush(); os.chroot('.'); call(3); flush(); call(1)"), 6),
    "chroot_before": (lines(CHROOT, "call(3)"), 3),
    "chroot_and_closed": (lines("call(2); os.closerange(3, 512)", CHROOT, "call(3)", LOG), 5),
    "chroot_and_nobody": (lines(CHROOT, NOBODY, "call(3)"), 3),
    "chroot_and_forked": (lines("call(1)", CHROOT, forked("call(2)")), 3),
    "chroot_and_much": (lines("call(1)", CHROOT, "call(200, each=True)"), 201),
    "nobody": (lines("call(1)", NOBODY, "call(3); flush()"), 4),
    "nobody_forks": (lines("call(1)", NOBODY, forked("call(2)")), 3),
    "without_a_folder": (lines("os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); call(3)"), 3),
    "strange_mask": (lines("os.umask(0o777); call(2)", forked("call(2)")), 4),
    "fork": (lines("call(1)", forked("call(2)"), "call(3)"), 6),
    "fork_and_close": (lines("call(1)", forked("os.closerange(3, 512)", LOG, "flush(); call(2)")), 3),
    "fork_of_a_fork": (lines("call(1)", forked("call(2)", forked("call(4)"))), 7),
    "fork_in_a_thread": (
        lines(inside("def work():", "call(1)", forked("call(2)")),
              "other = threading.Thread(target=work); other.start(); other.join()"), 3),
    "fork_that_is_killed": (lines("call(1)", forked("call(2); flush(); os.kill(os.getpid(), 9)")), 3),
    "fork_beside_python": (
        lines("call(1); flush(); libc = ctypes.PyDLL(None); pid = libc.fork()",
              "if pid == 0: call(1); flush(); libc._exit(0)", "os.waitpid(pid, 0); call(2)"), 4),
    "orphan": (
        lines("call(1); a, b = os.pipe()", forked("os.setsid()", forked("call(2)").partition("os.waitpid")[0]),
              "os.close(b); note('pipe', os.read(a, 99))"), 3),
    "pre_fork": (
        lines("server = socket.socket(); server.listen()", inside("for _ in range(3):", forked(
            "os.closerange(server.fileno() + 1, 512); call(2)", LOG, "flush(); call(1)")), "call(1)"), 10),
    "spawned": (lines("call(1); os.posix_spawn('/bin/true', ['true'], {}); os.wait(); call(1)"), 2),
    "subprocess": (
        lines("call(1); subprocess.run(['true'], check=True, preexec_fn=lambda: os.closerange(3, 99)); call(1)"), 2),
    "pool": (
        lines("call(1)", inside("with multiprocessing.get_context('fork').Pool(2) as pool:",
                              "pool.map(call, [1, 1]); pool.close(); pool.join()")), 3),
    "exec": (lines("call(3); os.execv('/bin/true', ['true'])"), 3),
    "exec_by_path": (lines("call(3); os.closerange(3, 512); os.execvpe('true', ['true'], os.environ)"), 3),
    "exec_that_fails": (
        lines("call(3)", "try: os.execv('/no/such/program', ['x'])", "except OSError: call(1)"), 4),
    "threads_that_close": (
        lines("""
            stop = threading.Event()
            def work(nth):
                while not stop.is_set():
                    os.closerange(3, 64)
                    one, pair = os.open(f"log-{nth}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), socket.socketpair()
                    try: os.write(one, b"mine")
                    except OSError: pass  # another thread has closed it
            others = [threading.Thread(target=work, args=(nth,)) for nth in range(3)]
            [one.start() for one in others]
            for _ in range(20):
                call(10, each=True)
                flush()
            stop.set()
            [one.join() for one in others]
        """), 200),
    **{f"{closing}_then_{receiving}": (
            lines("call(3); flush()", way, "def again(): call(4); flush()", what, "call(2)"), 9)
       for closing, way in CLOSING.items() for receiving, what in RECEIVING.items()},
}  # fmt: skip
# What cannot have all calls in its recording, and how many it has at least. The others are counted.
LOSING = {
    "a_signal_for_much": 20,
    "chroot_and_much": 10,
    "chroot_and_forked": 1,
    "nobody_forks": 1,
    "fork_beside_python": 3,
}
