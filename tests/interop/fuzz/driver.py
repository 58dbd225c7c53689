"""Our side: builds driver.c against the built libraries, and runs it."""
import glob
import os
import re
import select
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
SOURCES = ["driver.c", "subject.c", "wire.c"]
LIBRARIES = ["core/**/*.a", "native/comm/libtsr_native_comm.a", "native/live/*.a", "native/publish/*.a", "native/io/*.a"]
PATIENCE = 60


def system_libraries(build):
    """What the program itself is linked with besides our libraries."""
    with open(os.path.join(build, "build.ninja")) as f:
        text = f.read()
    line = re.search(r"^build bin/tessera: .*?^  LINK_LIBRARIES = (.*?)$", text, re.S | re.M).group(1)
    return [word for word in line.split() if not re.search(r"(core|native)/\S+\.a$", word)]


def build_driver(build, out, patched=()):
    """Compiles and links. `patched`: source files with their objects' places taken (mutants.py)."""
    libraries = [path for pattern in LIBRARIES for path in sorted(glob.glob(os.path.join(build, pattern), recursive=True))]
    if not libraries:
        raise SystemExit(f"state_dict_fuzz: no libraries in {build}; build the release preset first")
    include = [f"-I{ROOT}/core/include", f"-I{ROOT}/native/include", f"-I{ROOT}/native/live/include", f"-I{ROOT}/native", f"-I{ROOT}/core"]
    os.makedirs(os.path.dirname(out), exist_ok=True)
    command = ["cc", "-std=c11", "-O1", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", *include, "-o", out,
               *(os.path.join(HERE, s) for s in SOURCES), *patched, "-Wl,--start-group", *libraries, "-Wl,--end-group",
               *system_libraries(build), "-lpthread", "-lm"]
    p = subprocess.run(command, cwd=build, capture_output=True, text=True)
    if p.returncode:
        raise SystemExit(f"state_dict_fuzz: cannot build the driver:\n{p.stderr[-3000:]}")


class Died(Exception):
    pass


class Driver:
    def __init__(self, path):
        self.path, self.process = path, None

    def start(self):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def read(self, size):
        data = b""
        while len(data) < size:
            if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
                self.stop()
                raise Died("no answer")
            more = os.read(self.process.stdout.fileno(), size - len(data))
            if not more:
                error = self.process.communicate()[1].decode(errors="replace")[-2000:]
                status, self.process = self.process.returncode, None
                raise Died(f"ended with {status}: {error}")
            data += more
        return data

    def perform(self, jobs):
        """The ranks' answers as bytes."""
        self.start()
        try:
            self.process.stdin.write(struct.pack("<I", len(jobs)) + b"".join(struct.pack("<I", len(j)) + j for j in jobs))
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said is read below
        return [self.read(struct.unpack("<I", self.read(4))[0]) for _ in jobs]
