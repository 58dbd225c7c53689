"""A proxy between `tessera` and a server of another project. It counts the requests and can stop some of them."""
import contextlib
import http.client
import urllib.parse

import http_serving


class Proxy(http_serving.Server):
    """`trouble(handler)` may answer a request itself, or leave it without an answer, and then returns True. The server
    behind the proxy never sees such a request. `damages(handler, body, up)` returns the body of a request (`up`) or of an answer as
    it arrives, and `states(headers)` the headers of an answer."""

    def __init__(self, url, trouble=lambda handler: False):
        self.behind, self.trouble = urllib.parse.urlsplit(url).netloc, trouble
        self.damages = lambda handler, body, up: body
        self.states = lambda headers: headers
        super().__init__(Handler)

    def parts(self):
        """Returns the numbers or names of the parts that were sent to the server behind the proxy and answered."""
        queries = [urllib.parse.parse_qs(path.partition("?")[2]) for method, path in self.asked if method == "PUT"]
        return [(q.get("partNumber") or q["blockid"])[0] for q in queries if "partNumber" in q or "blockid" in q]


class Handler(http_serving.Handler):
    def do_GET(self):
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        if self.server.trouble(self):
            return
        if len(body) < size:  # The client was killed. The server behind would wait for the rest.
            self.close_connection = True
            return
        body = self.server.damages(self, body, True)
        connection = http.client.HTTPConnection(self.server.behind)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            data = self.server.damages(self, answer.read(), False)
        finally:
            connection.close()
        with self.server.lock:
            self.server.asked.append((self.command, self.path))
        kept = {k: v for k, v in answer.getheaders() if k.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server")}
        self.answer(answer.status, data, **self.server.states(kept))

    do_PUT = do_POST = do_DELETE = do_GET


@contextlib.contextmanager
def before(url):
    with http_serving.running(Proxy(url)) as server:
        yield server
