"""Whether an installed program shows its page."""
import re
import signal
import subprocess
import urllib.request


def expect_page(command, checkpoint):
    """Starts `command… view CHECKPOINT`, fetches the page, its scripts, the module and the checkpoint's list by the printed address,
    and stops it."""
    p = subprocess.Popen([*command, "view", checkpoint], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        address = p.stdout.readline().decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", address), f"{command} printed {address!r}: {p.stderr.read() if not address else b''}"

        def fetch(name):
            with urllib.request.urlopen(address + name, timeout=60) as answer:
                return answer.read()

        page = fetch("").decode()
        scripts = re.findall(r'src="\./?(assets/[^"]+\.js)"|src="(assets/[^"]+\.js)"', page)
        assert scripts, page[:500]
        for names in scripts:
            fetch("".join(names))
        modules = re.findall(r"assets/tessera-[^\"]+\.wasm", fetch("assets.json").decode())
        assert len(modules) == 2 and all(fetch(name)[:4] == b"\0asm" for name in modules), modules
        assert b'"files"' in fetch("checkpoint.json")
    finally:
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=60)
