"""Starts moto's server for each test that asks for one. moto takes seconds to import, which this process does once, when the first test asks; it
forks for each test, so that no test sees what another one stored. Its argument is the number of a socket. A message is a port, and comes with a
socket: the server ends when the other end of that is closed."""
import os
import signal
import socket
import sys
import threading

requests = socket.socket(fileno=int(sys.argv[1]))
if not requests.recv(1, socket.MSG_PEEK):  # no test asks
    sys.exit()

import moto.s3.models  # noqa: E402, F401  the server would import these at its first request
import moto.s3.responses  # noqa: E402, F401
import moto.s3.urls  # noqa: E402, F401
from moto.server import main  # noqa: E402


def end_with(test):
    test.recv(1)
    os._exit(0)


signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the servers
while True:
    port, fds, _, _ = socket.recv_fds(requests, 16, 1)
    if not port:
        sys.exit()
    if os.fork() == 0:
        requests.close()
        threading.Thread(target=end_with, args=(socket.socket(fileno=fds[0]),), daemon=True).start()
        main(["-H", "127.0.0.1", "-p", port.decode()])
    os.close(fds[0])
