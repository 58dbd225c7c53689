"""A proxy in front of an HTTP server that passes everything on, the server's bytes later, and counts the requests that are under way:
delay.py PORT SERVER_PORT MILLISECONDS [REPORT]. Each second, and when a connection ends, REPORT gets the number of requests, the most that were under way at
once, the seconds in which any was, and the sum of the seconds of all, as JSON."""
import asyncio
import json
import os
import sys
import time

BLOCK = 1 << 18


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


async def pass_on(reader, writer, seconds, passed):
    """Each block is written `seconds` after it arrived; blocks that arrive in the meantime wait in order."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue(64)

    async def read():
        while data := await reader.read(BLOCK):
            await queue.put((loop.time() + seconds, data))
        await queue.put(None)
    reading = asyncio.create_task(read())
    try:
        while item := await queue.get():
            await asyncio.sleep(max(0, item[0] - loop.time()))
            writer.write(item[1])
            passed(item[1])
            await writer.drain()
    except OSError:
        pass  # the other side has closed its connection
    finally:
        reading.cancel()
        writer.close()


async def main(port, server, milliseconds, report):
    count = Count(report)

    async def connect(reader, writer):
        answers, waiting = Answers(), 0

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
        await asyncio.gather(pass_on(reader, to_server, 0, asked), pass_on(from_server, writer, milliseconds / 1000, answered), return_exceptions=True)
        for _ in range(waiting):  # a connection was closed before its answer was complete
            count.change(-1)
        count.write()

    async with await asyncio.start_server(connect, "127.0.0.1", port) as listening:
        while True:
            await asyncio.sleep(1)
            count.write()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4]), sys.argv[4] if len(sys.argv) > 4 else None))
