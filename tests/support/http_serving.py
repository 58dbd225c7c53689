"""What the HTTP servers of the tests have in common: answers, ranges, and running for as long as a test needs them."""
import contextlib
import http.server
import re
import select
import socket
import sys
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + self.server.ahead if timestamp is None else timestamp)

    def answer(self, status, body=b"", **headers):
        """Answers with `body`; underscores in the names of headers stand for hyphens. True, for those who ask whether there was an answer."""
        self.send_response(status)
        for k, v in {"Content-Length": len(body), **headers}.items():
            self.send_header(k.replace("_", "-"), str(v))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def give(self, data, **headers):
        """Answers with `data`, or the range of it that is asked for."""
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not m:
            return self.answer(200, data, **headers)
        first, last = int(m[1]), min(int(m[2] or len(data)), len(data) - 1)
        if first > last:
            return self.answer(416, Content_Range=f"bytes */{len(data)}")
        return self.answer(206, data[first:last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}", **headers)

    def do_HEAD(self):
        self.do_GET()


class Server(http.server.ThreadingHTTPServer):
    """`asked`: what a handler notes of each request, under `lock`. `ahead`: by how many seconds the clock is, in Date. `wrap`: makes TLS's socket
    from the server's. `connections`: those that are open, {socket: address of the client}."""
    daemon_threads = True
    request_queue_size = 1024  # Of connections beyond it nothing is heard for a second or more, and a program seems to have stopped.
    ahead = 0

    def __init__(self, handler, host="127.0.0.1", wrap=None):
        self.asked, self.lock = [], threading.Lock()
        self.connections, self.changed = {}, threading.Condition()
        super().__init__((host, 0), handler)
        if wrap:
            self.socket = wrap(self.socket)
        self.url = f"{'https' if wrap else 'http'}://{host}:{self.server_address[1]}"

    def process_request(self, request, client_address):
        with self.changed:
            self.connections[request] = client_address
            self.changed.notify_all()
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        with self.changed:
            self.connections.pop(request, None)
            self.changed.notify_all()
        super().shutdown_request(request)

    def is_idle(self, held=()):
        """Whether nothing has arrived that no handler has read: no connection, and no byte on the connections but those of the handlers in `held`."""
        with self.changed:
            waiting = [self.socket, *(self.connections.keys() - {handler.connection for handler in held})]
            return not select.select(waiting, [], [], 0)[0]

    def wait_for_ended_clients(self, others=()):
        """Returns when the server has carried out or dropped every request of clients that have ended, including those on connections that it
        had not accepted yet. Clients whose addresses are in `others` may stay connected."""
        with socket.create_connection(self.server_address[:2]) as last:  # connections are accepted in the order in which they were made
            with self.changed:
                accepted = self.changed.wait_for(lambda: last.getsockname() in self.connections.values(), 60)
        with self.changed:
            if not accepted or not self.changed.wait_for(lambda: not set(self.connections.values()) - set(others), 60):
                raise TimeoutError(f"connections of clients that have ended are still open after a minute: {self.connections}")

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # programs that end, or that are killed
            super().handle_error(request, client_address)


class Together:
    """Requests of which `least` have to be under way at the same time. They are held back until that many are, so that it does not depend on the
    machine whether they are seen together, and then for a moment in which more of them would be seen. Where a client waits for some before it
    sends others, `patience` is for how many seconds no other may come before they are answered all the same. `most`: how many there were."""

    def __init__(self, least, patience=60):
        self.least, self.patience, self.now, self.most, self.come, self.changed = least, patience, 0, 0, 0, threading.Condition()

    def hold(self):
        with self.changed:
            self.now, self.come = self.now + 1, self.come + 1
            self.most = max(self.most, self.now)
            self.changed.notify_all()
            come = None
            while self.most < self.least and come != self.come:
                come = self.come
                self.changed.wait_for(lambda: self.most >= self.least or come != self.come, self.patience)
        time.sleep(0.05)
        with self.changed:
            self.now -= 1


@contextlib.contextmanager
def running(*servers):
    for s in servers:
        threading.Thread(target=s.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield servers[0]
    finally:
        for s in servers:
            s.shutdown()
            s.server_close()


RESERVED = []  # sockets


def free_port():
    """Returns a port that is reserved until this process ends: a socket that does not listen is bound to it. A server can still bind to it by
    its number, because all servers of the tests set SO_REUSEADDR. A port that was only found to be free could go to another test's server."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    RESERVED.append(s)
    return s.getsockname()[1]
