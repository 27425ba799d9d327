"""A repository of commits with files."""

import subprocess

from pytest_flashinfer_perf.extensions.bisect.histories import git


def repository(folder, files):
    """Commits with these files each, by one process of git's; their ids, the oldest first."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    stream = "".join(_commit(number, of_commit) for number, of_commit in enumerate(files))
    words = ["git", "-C", str(folder), "fast-import", "--quiet"]
    subprocess.run(words, input=stream, text=True, check=True)
    git(folder, "checkout", "--quiet", "main")
    return git(folder, "rev-list", "--reverse", "main").split()


def _commit(number, files):
    subject = f"Commit {number}"
    made = [f"commit refs/heads/main\ncommitter A <a@example.org> {1_700_000_000 + number} +0000\n"]
    made.append(f"data {len(subject)}\n{subject}\n")
    made += [f"M 100644 inline {name}\ndata {len(text)}\n{text}\n" for name, text in files.items()]
    return "".join(made)
