"""The part of GitHub's API that comments need, and where the repository lies."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).parents[3]


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
