"""A stand-in for the Hugging Face Hub: it answers the requests that huggingface_hub makes, and it redirects the requests for
large files to a second server. It is a fair stand-in only as long as the real client can read it, so test_hf.py shows
that first."""
import contextlib
import hashlib
import json
import re
import urllib.parse

from http_serving import Handler, Server, running


def blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Noting(Handler):
    def note(self):
        with self.server.lock:
            self.server.asked.append((self.command, self.path, dict(self.headers)))


class Cdn(Noting):
    """Serves the large files that the hub redirects to. It wants a signed URL and never sees a token."""

    def do_GET(self):
        self.note()
        data = self.server.blobs.get(self.path.partition("?")[0])
        if data is None or "sig=" not in self.path:
            return self.answer(403)
        return self.give(data)


class Hub(Noting):
    """The hub itself. `repositories` is {"models/org/name": {"token": …, "refs": {"main": commit}, "commits": {commit:
    {path: bytes}}}}."""

    def do_GET(self):
        self.note()
        path, _, query = self.path.partition("?")
        m = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/(.*))?)?", path)
        if m:
            return self.api(*m.groups(), urllib.parse.parse_qs(query))
        m = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        return self.resolve("datasets" if m[1] else "models", *m.groups()[1:]) if m else self.answer(404)

    def files(self, kind, repository, revision):
        r = self.server.repositories.get(f"{kind}/{repository}")
        if r is None or (r.get("token") and self.headers.get("Authorization") != f"Bearer {r['token']}"):
            return not self.answer(401, b'{"error":"Invalid username or password."}', X_Error_Code="RepoNotFound")
        revision = urllib.parse.unquote(revision or "main")
        commit = r["refs"].get(revision, revision)
        if commit not in r["commits"]:
            return not self.answer(404, b'{"error":"Invalid rev id"}', X_Error_Code="RevisionNotFound")
        return commit, r["commits"][commit]

    def api(self, kind, repository, what, revision, directory, query):
        found = self.files(kind, repository, revision)
        if not found:
            return None
        commit, files = found
        if what != "tree":
            return self.answer(200, json.dumps({"id": repository, "modelId": repository, "sha": commit, "private": False, "tags": [], "downloads": 0, "likes": 0,
                                                "siblings": [{"rfilename": f} for f in files]}).encode(), Content_Type="application/json")
        below = urllib.parse.unquote(directory or "")
        prefix = below + "/" if below else ""
        items, seen = [], set()
        for name, data in sorted(files.items()):
            if not name.startswith(prefix):
                continue
            parts = name[len(prefix):].split("/")
            for i in range(1, len(parts)):
                sub = prefix + "/".join(parts[:i])
                if sub not in seen and (query.get("recursive") in (["true"], ["True"]) or i == 1):
                    seen.add(sub)
                    items.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": sub})
            if len(parts) == 1 or query.get("recursive") in (["true"], ["True"]):
                item = {"type": "file", "oid": blob(data), "size": len(data), "path": name}
                if len(data) > 1000:
                    item["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                items.append(item)
        if not items:
            return self.answer(404, b'{"error":"not found"}', X_Error_Code="EntryNotFound")
        start = int(query.get("cursor", ["0"])[0])
        more = start + self.server.page < len(items)
        following = self.server.following or f'{self.server.url}{self.path.partition("?")[0]}?recursive={query.get("recursive", ["false"])[0]}&cursor={start + self.server.page}'
        link = {"Link": f'<{following.replace("SAME", self.server.url + self.path)}>; rel="next"'} if more else {}
        return self.answer(200, json.dumps(items[start:start + self.server.page]).encode(), Content_Type="application/json", **link)

    def resolve(self, kind, repository, revision, path):
        found = self.files(kind, repository, revision)
        if not found:
            return None
        commit, files = found
        data = files.get(urllib.parse.unquote(path))
        if data is None:
            return self.answer(404, b"Entry not found", X_Error_Code="EntryNotFound")
        headers = {"X_Repo_Commit": commit, "ETag": f'"{blob(data)}"', "Accept_Ranges": "bytes"}
        if len(data) <= 1000:
            return self.give(data, **headers)
        at = f"/blobs/{hashlib.sha256(data).hexdigest()}"
        self.server.cdn.blobs[at] = data
        return self.answer(302, Location=f"{self.server.cdn.url}{at}?sig=abc", **headers, X_Linked_Size=len(data), X_Linked_Etag=f'"{hashlib.sha256(data).hexdigest()}"')


@contextlib.contextmanager
def serving(repositories, page=1000, following=None):
    """`following`: the address of the next page of every listing, where SAME is that of the current one."""
    cdn, hub = Server(Cdn), Server(Hub)
    cdn.blobs = {}
    hub.cdn, hub.repositories, hub.page, hub.following = cdn, repositories, page, following
    with running(hub, cdn):
        yield hub
