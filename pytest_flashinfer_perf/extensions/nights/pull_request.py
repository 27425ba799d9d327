"""Put the verdicts of a folder of `ab` into one comment of a pull request, updated in place, from GitHub Actions.

    python3 -m pytest_flashinfer_perf.extensions.nights.pull_request DIR

It is the one program that holds a token, so it runs on Python's standard library alone and believes nobody else. Of
the folder, which the pull request's own code may have written, it reads one file, within bounds, and makes the text
itself. The event says which pull request it is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pytest_flashinfer_perf.api import FlashinferPerfError, fields, file_io, printing
from pytest_flashinfer_perf.extensions.compare import document, markdown

MIB = 2**20
LARGEST_FILE, LARGEST_ANSWER = 32 * MIB, 64 * MIB
LONGEST, LONGEST_LINE = 65_000, 2_000  # GitHub takes comments of 65,536 characters
PER_PAGE, MOST_PAGES = 100, 30
TIMEOUT_S = 30.0
MAY_NOT = (
    "it needs `permissions: pull-requests: write`, which pull requests from forks never get: "
    "for these comment from `workflow_run`"
)
REMEDIES = {401: "the token is not valid, or no longer", 403: MAY_NOT, 404: MAY_NOT}


class CommentError(FlashinferPerfError):
    """There is no comment, and the sentence says why."""


class NothingToCommentError(CommentError):
    """This run belongs to no pull request, or to none any more."""

    exit_code = 0


# What is read of the event and of the server's answers.


@dataclass(frozen=True)
class HeadCommit:
    sha: str


@dataclass(frozen=True)
class Pull:
    number: int
    head: HeadCommit


@dataclass(frozen=True)
class Account:
    login: str
    type: str = ""


@dataclass(frozen=True)
class HeadRepository:
    owner: Account


@dataclass(frozen=True)
class WorkflowRun:
    id: int
    event: str
    head_sha: str
    head_branch: str | None
    head_repository: HeadRepository | None


@dataclass(frozen=True)
class GitHubEvent:
    pull_request: Pull | None = None
    workflow_run: WorkflowRun | None = None


@dataclass(frozen=True)
class Comment:
    id: int
    body: str | None
    user: Account | None


class NoRedirect(HTTPRedirectHandler):
    """The token goes to no other server than it was meant for."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Repository:
    """A repository on GitHub's server, with the token to ask it."""

    url: str
    token: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to one request; errors never show the token."""
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json"}
        headers |= {"X-GitHub-Api-Version": "2022-11-28", "User-Agent": "flashinfer-perf"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}/{path}", data, headers, method=method)  # noqa: S310 - the runner's server
        asked = f"{method} {self.url}/{path.partition('?')[0]}"
        try:
            with build_opener(NoRedirect).open(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read(LARGEST_ANSWER))
        except HTTPError as error:
            remedy = f": {REMEDIES[error.code]}" if error.code in REMEDIES else ""
            raise CommentError(f"{asked}: {error.code} {_message(error)}{remedy}") from None
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise CommentError(f"{asked}: no answer: {error}") from None

    def comments(self, path: str) -> Iterator[Comment]:
        for page in range(1, MOST_PAGES + 1):
            answer = self.ask("GET", f"{path}?{urlencode({'per_page': PER_PAGE, 'page': page})}")
            found = fields.value(tuple[Comment, ...], answer, "the comments")
            yield from found
            if len(found) < PER_PAGE:
                return


def _message(error: HTTPError) -> str:
    """GitHub's own reason, as that a conversation is locked; else HTTP's."""
    try:
        return printing.safe(json.loads(error.read(LONGEST))["message"])
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return error.reason


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("pull_request", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="Output of flashinfer-perf ab.")
    parser.add_argument("--name", default="flashinfer-perf", help="Tells several comments of one pull request apart.")
    args = parser.parse_args(arguments)
    try:
        printing.say(commented(args.folder, args.name))
    except (FlashinferPerfError, OSError) as error:
        code = error.exit_code if isinstance(error, FlashinferPerfError) else FlashinferPerfError.exit_code
        level = "warning" if code else "notice"
        printing.print_raw(f"{markdown.annotation(level, 'no comment on the pull request', str(error))}\n")
        return code
    return 0


def commented(folder: Path, name: str) -> str:
    if re.fullmatch(r"\w+([ .-]\w+)*", name) is None:
        raise CommentError(f"--name={name}: only letters, digits, and single blanks, points and hyphens between them")
    marker = f"<!-- flashinfer-perf: {name} -->"
    event = fields.read(GitHubEvent, file_io.read_json(Path(variable("GITHUB_EVENT_PATH"))), "the event")
    repository = Repository(f"{variable('GITHUB_API_URL')}/repos/{variable('GITHUB_REPOSITORY')}", token())
    pull = pull_of(event, repository)
    said = {"body": f"{marker}\n{text(folder, event, pull)}"}
    path = f"issues/{pull.number}/comments"
    for comment in repository.comments(path):
        if (comment.body or "").startswith(marker) and comment.user and comment.user.type == "Bot":
            repository.ask("PATCH", f"issues/comments/{comment.id}", said)
            return f"updated the comment on pull request {pull.number}"
    repository.ask("POST", path, said)
    return f"commented on pull request {pull.number}"


def variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise CommentError(f"{name} is not set: this runs in a workflow of GitHub Actions, with its token")
    return value


def token() -> str:
    """As a header's value: an error about another one would show it."""
    value = variable("GITHUB_TOKEN").strip()
    if re.fullmatch(r"[\x21-\x7e]+", value) is None:
        raise CommentError("GITHUB_TOKEN is no token")
    return value


def pull_of(event: GitHubEvent, repository: Repository) -> Pull:
    """The pull request of the event. That of a run of another workflow is the open one whose head was measured.

    GitHub names it in the event for branches of the repository itself, and never for those of forks.
    """
    if event.pull_request:
        return event.pull_request
    run = event.workflow_run
    if run is None or run.event != "pull_request":
        raise NothingToCommentError("this run was not started by a pull request")
    if run.head_repository is None:
        raise NothingToCommentError("the fork of the pull request is gone")
    head = f"{run.head_repository.owner.login}:{run.head_branch}"
    answer = repository.ask("GET", f"pulls?{urlencode({'state': 'open', 'head': head, 'per_page': PER_PAGE})}")
    pulls: tuple[Pull, ...] = fields.value(tuple[Pull, ...], answer, "the pull requests")
    found = [pull for pull in pulls if pull.head.sha == run.head_sha]
    if len(found) != 1:
        raise NothingToCommentError(f"{len(found)} open pull requests have {run.head_sha[:10]}, which was measured")
    return found[0]


# The text of the comment.

NOTHING = "### flashinfer-perf: no verdicts\n\nThe comparison ended before it had any; its log says why."
UNREADABLE = "### flashinfer-perf: no verdicts\n\nThe file of the verdicts cannot be read."
CLAIMED = "The figures are what the pull request's own code has measured and written."
# What GitHub makes a link or a notice of, wherever it stands: a person, an issue, an address.
ACTIVE = re.compile(r"@|://|\bwww(?=\.)|#(?=\d)|\bGH(?=-\d)", re.IGNORECASE)


def text(folder: Path, event: GitHubEvent, pull: Pull) -> str:
    run = event.workflow_run
    number = str(run.id) if run else os.environ.get("GITHUB_RUN_ID", "")
    log = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{variable('GITHUB_REPOSITORY')}/actions/runs"
    end = f"\nCommit {pull.head.sha[:10]}, [log and files]({log}/{number}). {CLAIMED if run else ''}".rstrip()
    lines = (line[:LONGEST_LINE] for line in verdicts(folder).splitlines())
    return markdown.cut("\n".join(lines), LONGEST - len(end)).rstrip("\n") + "\n" + end


def verdicts(folder: Path) -> str:
    """The Markdown of the folder's verdicts, in which names and sentences, whoever wrote them, are text alone."""
    path = folder / "verdicts.json"
    if path.is_symlink() or not path.is_file():
        return NOTHING
    if path.stat().st_size > LARGEST_FILE:
        printing.say(f"{path}: larger than {LARGEST_FILE // MIB} MiB")
        return UNREADABLE
    try:
        written = markdown.of(document.read(file_io.read_json(path)))
    except (file_io.FileError, fields.FieldError) as error:
        printing.say(printing.safe(str(error)))
        return UNREADABLE
    return ACTIVE.sub(lambda found: f"{found[0][0]}&#8203;{found[0][1:]}", written)


if __name__ == "__main__":
    sys.exit(main())
