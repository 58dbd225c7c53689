"""A proxy that passes everything on, the server's bytes later: delay.py PORT SERVER_PORT MILLISECONDS."""
import asyncio
import sys

BLOCK = 1 << 18


async def pass_on(reader, writer, seconds):
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
            await writer.drain()
    except OSError:
        pass  # the other side has closed its connection
    finally:
        reading.cancel()
        writer.close()


async def main(port, server, milliseconds):
    async def connect(reader, writer):
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(pass_on(reader, to_server, 0), pass_on(from_server, writer, milliseconds / 1000), return_exceptions=True)
    async with await asyncio.start_server(connect, "127.0.0.1", port) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
