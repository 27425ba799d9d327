"""Programs that close, replace and exhaust descriptors, fork, and become others, while they are recorded.

Each has `call(times)`, and what `known_calls.SERVER` has: `flush()`, by which the recorder writes. What reaches its
files has to be `mine` and nothing else. The number is how many calls it makes.
"""

from textwrap import dedent, indent

FULL = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True: held.append(os.open("log", os.O_WRONLY | os.O_CREAT))
except OSError as error:
    assert error.errno == errno.EMFILE
"""


def lines(*texts):
    return "\n".join(dedent(text).strip() for text in texts)


def inside(head, *texts):
    return f"{head}\n{indent(lines(*texts), '    ')}"


def forked(*texts):
    return lines(inside("if (pid := os.fork()) == 0:", *texts, "os._exit(0)"), "os.waitpid(pid, 0)")


PROGRAMS = {
    "daemon": (
        lines("call(3); flush(); os.setsid(); os.umask(0o777); os.closerange(0, 512)",
              'made = [os.open(f"log-{nth}", os.O_WRONLY | os.O_CREAT, 0o600) for nth in range(40)]',
              "call(4); flush(); [os.write(one, b'mine') for one in made]; call(2)"), 9),
    "exhausted_for_a_while": (lines(FULL, "call(2); flush(); [os.close(one) for one in held]; call(3)"), 5),
    "full_for_a_while": (
        lines("_, most = resource.getrlimit(resource.RLIMIT_FSIZE)",
              "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, most)); call(200, each=True); flush(); flush()",
              "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)); call(3)"), 203),
    "fork_of_a_fork": (lines("call(1)", forked("call(2)", forked("call(4)"))), 7),
    "fork_that_is_killed": (lines("call(1)", forked("call(2); flush(); os.kill(os.getpid(), 9)")), 3),
    "pool": (
        lines("call(1)", inside("with multiprocessing.get_context('fork').Pool(2) as pool:",
                                "pool.map(call, [1, 1]); pool.close(); pool.join()")), 3),
    "exec": (lines("call(3); os.execv('/bin/true', ['true'])"), 3),
    "exec_that_fails": (
        lines("call(3)", "try: os.execv('/no/such/program', ['x'])", "except OSError: call(1)"), 4),
    "long": (
        lines('writer = sys.modules["pytest_flashinfer_perf.extensions.traffic.hooks"].recorders[0].writer',
              "call(2); flush(); writer.longest = 100; call(3); flush(); call(1)"), 6),
    "threads_that_close": (
        lines("""
            stop = threading.Event()
            def work(nth):
                while not stop.is_set():
                    os.closerange(3, 64)
                    # A traceback would read its source by a descriptor that by then is another thread's socket.
                    with contextlib.suppress(OSError):
                        one, pair = os.open(f"log-{nth}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), socket.socketpair()
                        os.write(one, b"mine")
            others = [threading.Thread(target=work, args=(nth,)) for nth in range(3)]
            [one.start() for one in others]
            for _ in range(20):
                call(10, each=True)
                flush()
            stop.set()
            [one.join() for one in others]
        """), 200),
    "full_to_the_end": (lines("call(2); flush()", FULL, "call(5)"), 7),
}  # fmt: skip
LOSING = {"full_to_the_end": 2}  # what cannot have all calls in its recording, and how many it has
