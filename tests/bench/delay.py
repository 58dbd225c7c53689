"""A proxy in front of an HTTP server that passes everything on, the server's bytes later, and counts the requests that are under way:
delay.py PORT SERVER_PORT MILLISECONDS [--loss PERCENT] [--report FILE]. Each second, and when a connection ends, FILE gets these numbers as JSON: the
requests, the most that were under way at the same time, the seconds during which at least one was under way, and the seconds of all requests added up.

--loss stands in for a network that loses packets, where the kernel has no netem. This percentage of the server's segments arrive only after TCP's shortest
retransmission timeout, and everything behind them on the connection waits. Fast retransmission and the congestion window are not simulated: 1 %
gives 0.7 MB/s for a connection, whatever the delay is, where TCP would have 0.9 MB/s with a round trip of 20 ms (1.22 segments / round trip / square
root of the loss)."""
import argparse
import asyncio
import json
import math
import os
import random
import time

BLOCK, SEGMENT = 1 << 18, 1448  # bytes
TIMEOUT = 0.2  # seconds: the shortest after which Linux sends a segment again


class Count:
    """A request is under way from its last byte until the last byte of its answer has been passed on."""

    def __init__(self, report):
        self.report, self.requests, self.open, self.most = report, 0, 0, 0
        self.busy = self.weighted = 0.0
        self.at = time.monotonic()

    def change(self, by):
        now = time.monotonic()
        if self.open:
            self.busy += now - self.at
            self.weighted += (now - self.at) * self.open
        self.at = now
        self.open += by
        self.requests += by > 0
        self.most = max(self.most, self.open)

    def write(self):
        if not self.report:
            return
        with open(self.report + ".new", "w") as f:
            json.dump({"requests": self.requests, "most": self.most, "weighted": self.weighted, "busy": self.busy}, f)
        os.rename(self.report + ".new", self.report)


class Answers:
    """Finds the ends of answers in what a server sends. Requests have no bodies here, and answers state their lengths."""

    def __init__(self):
        self.head, self.left = b"", 0

    def ended(self, data):
        count, at = 0, 0
        while at < len(data):
            if self.left:
                taken = min(self.left, len(data) - at)
                self.left -= taken
                at += taken
                count += self.left == 0
                continue
            self.head += data[at:]
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return count
            at = len(data) - (len(self.head) - end - 4)
            lengths = [line.split(b":")[1] for line in self.head[:end].split(b"\r\n") if line.lower().startswith(b"content-length:")]
            self.left, self.head = int(lengths[0]) if lengths else 0, b""
            count += self.left == 0
        return count


class Losses:
    """Where the segments of a connection are that are lost."""

    def __init__(self, percent, number):
        self.share, self.random = percent / 100, random.Random(number)
        self.left = self.distance()

    def distance(self):
        """Bytes up to the next lost segment; geometrically distributed."""
        return SEGMENT * int(math.log(1 - self.random.random()) / math.log(1 - self.share)) if self.share else math.inf

    def pieces(self, data):
        """The data, cut before each lost segment."""
        at = 0
        while len(data) - at > self.left:
            yield data[at:at + self.left]
            at += self.left
            self.left = SEGMENT + self.distance()
        self.left -= len(data) - at
        yield data[at:]


async def pass_on(reader, writer, seconds, losses, passed):
    """Each block is written `seconds` after it arrived; blocks that arrive in the meantime wait in order, also for segments that are lost."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue(64)

    async def read():
        while data := await reader.read(BLOCK):
            await queue.put((loop.time() + seconds, data))
        await queue.put(None)
    reading = asyncio.create_task(read())
    try:
        while item := await queue.get():
            await asyncio.sleep(max(0, item[0] - loop.time()))
            for number, piece in enumerate(losses.pieces(item[1])):
                await asyncio.sleep(TIMEOUT if number else 0)
                writer.write(piece)
                passed(piece)
                await writer.drain()
    except OSError:
        pass  # the other side has closed its connection
    finally:
        reading.cancel()
        writer.close()


async def main(port, server, milliseconds, loss, report):
    count, connections = Count(report), 0

    async def connect(reader, writer):
        nonlocal connections
        connections += 1
        answers, waiting, losses = Answers(), 0, Losses(loss, connections)

        def asked(data):
            nonlocal waiting
            for _ in range(data.count(b"\r\n\r\n")):
                waiting += 1
                count.change(+1)

        def answered(data):
            nonlocal waiting
            for _ in range(answers.ended(data)):
                waiting -= 1
                count.change(-1)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(pass_on(reader, to_server, 0, Losses(0, 0), asked),
                             pass_on(from_server, writer, milliseconds / 1000, losses, answered), return_exceptions=True)
        for _ in range(waiting):  # a connection was closed before its answer was complete
            count.change(-1)
        count.write()

    async with await asyncio.start_server(connect, "127.0.0.1", port) as listening:
        while True:
            await asyncio.sleep(1)
            count.write()


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "server", "milliseconds"):
        ap.add_argument(name, type=int)
    ap.add_argument("--loss", type=float, default=0, metavar="PERCENT")
    ap.add_argument("--report", metavar="FILE")
    asyncio.run(main(**vars(ap.parse_args())))
