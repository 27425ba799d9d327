"""GitHub without GitHub: a runner of workflows and composite actions, and the part of its API that comments need.

The runner starts each step as GitHub does, with its shell, files and environment, but in no container. Of expressions
and of GitHub's own actions it knows what the workflows of this repository use, and fails at everything else.
"""

import json
import os
import re
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

ROOT = Path(__file__).parents[3]
OURS = "OWNER/REPO"
KEPT = ("PATH", "HOME", "TMPDIR", "PYTHONPATH", "XDG_CACHE_HOME", "OMP_NUM_THREADS")
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[\w-]+(?:\.[\w-]+)*|&&|\|\||[!=]=|[!(),])")
EXPRESSION = re.compile(r"\$\{\{((?:(?!\}\}).)+)\}\}")
PYTHONS = {"&&": "and", "||": "or", "!": "not", "null": "None", "true": "True", "false": "False"}


def value(expression, contexts):
    """Of one expression of GitHub's; a name that leads nowhere is null."""
    words, at = [], 0
    while at < len(expression.rstrip()):
        found = TOKEN.match(expression, at)
        assert found, f"no expression that is known here: {expression}"
        word, at = found[1], found.end()
        called = expression[at:].startswith("(")
        named = word[0].isalpha() and word not in PYTHONS and not called
        words.append(f"look({word!r})" if named else PYTHONS.get(word, word))
    functions = {"always": lambda: True, "cancelled": lambda: False, "fromJSON": json.loads, "format": str.format}
    return eval(" ".join(words), {**functions, "look": lambda name: _look(name, contexts)})


def _look(name, contexts):
    found = contexts
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def filled(text, contexts):
    """A text with its expressions, as text; one expression alone keeps its type."""
    if not isinstance(text, str):
        return text
    alone = EXPRESSION.fullmatch(text)
    if alone:
        return value(alone[1], contexts)
    return EXPRESSION.sub(lambda found: _text(value(found[1], contexts)), text)


def _text(found):
    return (
        {None: "", True: "true", False: "false"}.get(found, str(found)) if not isinstance(found, list) else str(found)
    )


def runs(condition, contexts, *, failed):
    """Whether a job or a step does: after a failure only if its condition asks how it went."""
    asks = "always()" in condition or "cancelled()" in condition
    found = EXPRESSION.fullmatch(condition)
    return (asks or not failed) and (not condition or value(found[1] if found else condition, contexts))


@dataclass
class Step:
    """A script that ran: where, with what environment, how it ended and what it printed."""

    job: str
    name: str
    env: dict
    code: int
    output: str


@dataclass
class Ran:
    steps: list = field(default_factory=list)
    conclusions: dict = field(default_factory=dict)
    runs_on: dict = field(default_factory=dict)
    summary: str = ""

    def step(self, name):
        [found] = [step for step in self.steps if step.name == name]
        return found


@dataclass
class Runner:
    """Runs workflows for events of a repository, which is checked out from the folder `source`."""

    folder: Path
    server: str
    repository: str
    source: Path
    path: str
    artifacts: dict = field(default_factory=dict)

    def run(self, workflow, event, payload, *, run_id, sha, inputs=None, fork=False):
        described = yaml.load(Path(workflow).read_text(), yaml.BaseLoader)
        call = described["on"].get("workflow_call") if isinstance(described["on"], dict) else None
        given = {name: one.get("default") for name, one in call["inputs"].items()} if call else {}
        ran, here = Ran(), self.folder / f"run-{run_id}"
        here.mkdir(parents=True)
        (here / "event.json").write_text(json.dumps(payload))
        for name, job in described["jobs"].items():
            rights = job.get("permissions", described.get("permissions", {}))
            writes = rights.get("pull-requests") == "write" and not fork
            github = {
                "event": payload,
                "event_name": event,
                "token": f"{'write' if writes else 'read'}-{run_id}-{name}",
            }
            contexts = {"github": github, "inputs": {**given, **(inputs or {})}}
            needed = [ran.conclusions[job["needs"]]] if "needs" in job else []
            condition = job.get("if", "")
            if not runs(condition, contexts, failed="failure" in needed):
                ran.conclusions[name] = "skipped"
                continue
            ran.runs_on[name] = filled(job["runs-on"], contexts)
            started = Job(self, ran, name, here=here / name, contexts=contexts, run_id=str(run_id), sha=sha)
            ran.conclusions[name] = started.run(job["steps"])
        return ran


class Job:
    def __init__(self, runner, ran, name, *, here, contexts, run_id, sha):
        self.runner, self.ran, self.name, self.run_id, self.sha = runner, ran, name, run_id, sha
        self.workspace, self.temp = here / "workspace", here / "temp"
        for one in (self.workspace, self.temp):
            one.mkdir(parents=True)
        self.contexts = {**contexts, "runner": {"temp": str(self.temp)}}
        self.added = {}  # by GITHUB_ENV

    def run(self, steps):
        return self.steps(steps, self.contexts)

    def steps(self, steps, contexts):
        """Run them in order; after a failure only those that run always."""
        contexts, conclusion = {**contexts, "steps": {}}, "success"
        for step in steps:
            if not runs(step.get("if", ""), contexts, failed=conclusion == "failure"):
                continue
            begin = self.script if "run" in step else self.action
            succeeded, outputs = begin(step, contexts)
            contexts["steps"][step.get("id", "")] = {"outputs": outputs}
            if not succeeded and step.get("continue-on-error") != "true":
                conclusion = "failure"
        self.last = contexts
        return conclusion

    def script(self, step, contexts):
        assert step["shell"] == "bash"
        files = {f"GITHUB_{name}": self.temp / f"{name}-{len(self.ran.steps)}" for name in ("OUTPUT", "ENV")}
        files["GITHUB_STEP_SUMMARY"] = self.temp / f"summary-{len(self.ran.steps)}"
        for one in files.values():
            one.touch()
        env = {name: os.environ[name] for name in KEPT if name in os.environ} | self.added
        env |= {name: str(path) for name, path in files.items()}
        env |= {
            "PATH": f"{self.runner.path}:{env['PATH']}",
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": self.runner.server,
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_REPOSITORY": self.runner.repository,
            "GITHUB_EVENT_PATH": str(self.temp.parents[1] / "event.json"),
            "GITHUB_EVENT_NAME": contexts["github"]["event_name"],
            "GITHUB_RUN_ID": self.run_id,
            "GITHUB_SHA": self.sha,
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_ACTION_PATH": contexts["github"].get("action_path", ""),
        }
        env |= {name: _text(filled(text, contexts)) for name, text in step.get("env", {}).items()}
        where = self.workspace / filled(step.get("working-directory", ""), contexts)
        done = subprocess.run(
            [*BASH, step["run"]], cwd=where, env=env, capture_output=True, text=True, check=False, timeout=280
        )
        said = Step(self.name, step.get("name", ""), env, done.returncode, done.stdout + done.stderr)
        self.ran.steps.append(said)
        self.ran.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        self.added |= _assignments(files["GITHUB_ENV"])
        return done.returncode == 0, _assignments(files["GITHUB_OUTPUT"])

    def action(self, step, contexts):
        uses, given = step["uses"], {name: filled(text, contexts) for name, text in step.get("with", {}).items()}
        known = re.fullmatch(r"actions/(checkout|upload-artifact|download-artifact)@v\d+", uses)
        if known:
            return getattr(self, known[1].replace("-", "_"))(
                contexts, **{k.replace("-", "_"): v for k, v in given.items()}
            )
        ours = re.fullmatch(rf"{OURS}((?:/\w+)*)@v1", uses)
        there = ROOT / ours[1].strip("/") if ours else (self.workspace / uses.removeprefix("./"))
        assert ours or uses.startswith("./"), f"no action that is known here: {uses}"
        described = yaml.load((there / "action.yml").read_text(), yaml.BaseLoader)
        assert set(given) <= set(described["inputs"]), f"{uses}: {given}"
        github = {**contexts["github"], "action_path": str(there)}
        inputs = {name: filled(one.get("default", ""), contexts) for name, one in described["inputs"].items()} | given
        assert all(inputs[name] for name, one in described["inputs"].items() if one.get("required") == "true")
        conclusion = self.steps(described["runs"]["steps"], {**contexts, "github": github, "inputs": inputs})
        outputs = {name: filled(one["value"], self.last) for name, one in described.get("outputs", {}).items()}
        return conclusion == "success", outputs

    def checkout(self, contexts, *, repository=None, path="", ref=None, fetch_depth="1", persist_credentials="true"):
        """With its token in the configuration, where a checkout that is not told otherwise leaves it."""
        to = self.workspace / path
        if repository == OURS:  # as it lies here, whatever is committed
            to.symlink_to(ROOT)
            return True, {}
        source = self.runner.source
        assert repository in (None, self.runner.repository), f"{repository} cannot be checked out here"
        assert fetch_depth == "0", "a comparison needs the base's commit"
        for words in (["clone", "-q", str(source), str(to)], ["-C", str(to), "checkout", "-q", ref or self.sha]):
            subprocess.run(["git", *words], check=True)
        if persist_credentials != "false":
            header = f"AUTHORIZATION: basic {contexts['github']['token']}"
            subprocess.run(["git", "-C", str(to), "config", "http.extraheader", header], check=True)
        return True, {}

    def upload_artifact(self, _contexts, *, name, path):
        """The folder of the first line, without those that are excluded; a name is taken once."""
        assert (self.run_id, name) not in self.runner.artifacts
        folder, *excluded = path.split()
        kept = self.runner.folder / "artifacts" / self.run_id / name
        without = [Path(one.removeprefix("!")).name for one in excluded if one.startswith(f"!{folder}/")]
        if Path(folder).is_dir():
            shutil.copytree(folder, kept, ignore=lambda at, _: without if at == folder else ())
            self.runner.artifacts[self.run_id, name] = kept
        return True, {}

    def download_artifact(self, contexts, *, name, path, run_id=None, github_token=None):
        assert run_id is None or github_token == contexts["github"]["token"], "another run's need a token"
        kept = self.runner.artifacts.get((str(run_id or self.run_id), name))
        if kept is None:
            return False, {}
        shutil.copytree(kept, self.workspace / path, symlinks=True)
        return True, {}


def _assignments(path):
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


class Api:
    """A server on the loopback with pull requests and comments, that refuses tokens which may not write.

    `faults` are answered first: a status, or None for a connection that is closed without an answer.
    """

    def __init__(self, repository):
        self.comments, self.pulls, self.faults, self.requests = {}, [], [], []
        self.repository = repository
        api = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                api.requests.append((self.command, self.path))
                fault = api.faults.pop(0) if api.faults else 0
                if fault is None:
                    self.close_connection = True
                    return
                status, said = (
                    (fault, {"message": "a fault"})
                    if fault
                    else api.answer(self.command, self.path, body, self.headers)
                )
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"{api.url}/elsewhere")
                self.end_headers()
                self.wfile.write(json.dumps(said).encode())

            def log_message(self, *_):
                pass

        for method in ("GET", "POST", "PATCH"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def comment(self, body, number=7, kind="Bot"):
        made = {"id": len(self.comments) + 1, "body": body, "user": {"login": "a", "type": kind}, "number": number}
        self.comments[made["id"]] = made
        return made

    def answer(self, method, target, body, headers):
        token, parts = headers["Authorization"].removeprefix("Bearer "), urlsplit(target)
        words = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = parts.path.removeprefix(f"/repos/{self.repository}/")
        if token == "closed":
            return 401, {"message": "Bad credentials"}
        if method != "GET" and not token.startswith("write-"):
            return 403, {"message": "Resource not accessible by integration"}
        if path == "pulls":
            return 200, [pull for pull in self.pulls if pull["of"] == words["head"] and words["state"] == "open"]
        if found := re.fullmatch(r"issues/(\d+)/comments", path):
            number = int(found[1])
            if method == "POST":
                return 201, self.comment(body["body"], number)
            listed = [one for one in self.comments.values() if one["number"] == number]
            at, size = int(words["page"]) - 1, int(words["per_page"])
            return 200, listed[at * size : (at + 1) * size]
        found = re.fullmatch(r"issues/comments/(\d+)", path)
        assert found, path
        assert method == "PATCH"
        self.comments[int(found[1])]["body"] = body["body"]
        return 200, self.comments[int(found[1])]
