#!/usr/bin/env python3
"""Packs the wheel: make_wheel.py BUILD DEST PAGE [LICENCE…]. BUILD is the built preset `wheel`, PAGE the built page of the
viewer, or empty; prints the wheel's path.

The platform tag is read off the binaries: manylinux_2_N where they need nothing but the C library, and of it no version
after 2.N (PEP 600); plain linux otherwise. N is at most 28."""
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NAME = "tessera_checkpoint"  # the distribution; the package and the command are `tessera`
NEWEST_GLIBC = 28  # of the oldest systems that the wheel supports: RHEL 8 and its relatives
# What every manylinux system has (PEP 600's policies list more; these are all that may be needed here).
SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread)\.so\.\d+|ld-linux.*\.so\.\d+)$")


def version():
    """The version, from the header that states it."""
    text = read(os.path.join(ROOT, "core/include/tessera/version.h")).decode()
    return ".".join(re.search(rf"#define TSR_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def released():
    """The day of this version: [year, month, day]."""
    text = read(os.path.join(ROOT, "CMakeLists.txt")).decode()
    return tuple(map(int, re.search(r"set\(TSR_RELEASED (\S+)\)", text)[1].split("-")))


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def machine_of(binary):
    """What the binary was built for, as the tags of wheels name it."""
    return {"AArch64": "aarch64", "Advanced Micro Devices X86-64": "x86_64"}[re.search(r"Machine:\s+(.+)", output_of("readelf", "-h", binary))[1]]


def platform_tag(binaries):
    newest, foreign = 17, []
    for path in binaries:
        dynamic = output_of("readelf", "-W", "-d", path)
        foreign += [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) if not SYSTEM.match(name)]
        symbols = output_of("readelf", "-W", "--dyn-syms", path)
        needed = {name: int(n) for name, n in re.findall(r"(\w+)@GLIBC_2\.(\d+)", symbols)}
        too_new = sorted(name for name, n in needed.items() if n > NEWEST_GLIBC)
        if too_new:
            sys.exit(f"make_wheel: {path} needs functions that glibc 2.{NEWEST_GLIBC} does not have: {', '.join(too_new)}; add them to native/python/glibc_2_28.c")
        newest = max(newest, *needed.values())
    machine = machine_of(binaries[0])
    return f"linux_{machine}" if foreign else f"manylinux_2_{newest}_{machine}"


def metadata():
    with open(os.path.join(HERE, "README.md")) as f:
        readme = f.read()
    return ("Metadata-Version: 2.1\nName: tessera-checkpoint\n" f"Version: {version()}\n"
            "Summary: Inspect, validate, diff, convert and reshard PyTorch checkpoints\n"
            "License: MIT\nRequires-Python: >=3.9\nProvides-Extra: torch\nRequires-Dist: torch>=2.3; extra == 'torch'\n"
            "Description-Content-Type: text/markdown\n\n" + readme)


class Wheel:
    def __init__(self, path, name, date):
        self.path, self.name, self.date = path, name, date
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, executable=False):
        info = zipfile.ZipInfo(name, (*self.date, 0, 0, 0))
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}\n")

    def add_directory(self, name, path):
        for directory, _, files in sorted(os.walk(path)):
            for file in sorted(files):
                file = os.path.join(directory, file)
                self.add(f"{name}/{os.path.relpath(file, path)}", read(file))

    def finish(self):
        name = f"{self.name}.dist-info/RECORD"
        self.zip.writestr(zipfile.ZipInfo(name, (*self.date, 0, 0, 0)), "".join(self.record) + f"{name},,\n")
        self.zip.close()


def stripped(path):
    out, machine = path + ".stripped", machine_of(path)
    strip = "strip" if machine == platform.machine() else f"{machine}-linux-gnu-strip"
    subprocess.run([strip, "--strip-unneeded", "-o", out, path], check=True)
    return out


def read(path):
    with open(path, "rb") as f:
        return f.read()


def main():
    build, dest, page, *licences = sys.argv[1:]
    name = f"{NAME}-{version()}"
    library, program = stripped(os.path.join(build, "native/python/_tessera.so")), stripped(os.path.join(build, "bin/tessera"))
    tag = f"py3-none-{platform_tag([library, program])}"
    os.makedirs(dest, exist_ok=True)
    wheel = Wheel(os.path.join(dest, f"{name}-{tag}.whl"), name, released())
    package = os.path.join(HERE, "tessera")
    for file in sorted(os.listdir(package)):
        if file.endswith((".py", ".typed")):
            wheel.add(f"tessera/{file}", read(os.path.join(package, file)).replace(b"@VERSION@", version().encode()))
    wheel.add("tessera/_tessera.so", read(library), True)
    wheel.add(f"{name}.data/scripts/tessera", read(program), True)
    share = f"{name}.data/data/share/tessera"
    if page:
        wheel.add_directory(f"{share}/viewer", page)
    wheel.add_directory(f"{share}/schemas", os.path.join(ROOT, "native/cli/schemas"))
    wheel.add(f"{name}.dist-info/METADATA", metadata().encode())
    wheel.add(f"{name}.dist-info/WHEEL", f"Wheel-Version: 1.0\nGenerator: tessera\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{name}.dist-info/licenses/LICENSE", read(os.path.join(ROOT, "LICENSE")))
    for licence in licences:
        directory, file = licence.split(os.sep)[-2:]
        wheel.add(f"{name}.dist-info/licenses/{directory}-{file}", read(licence))
    wheel.finish()
    print(wheel.path)


if __name__ == "__main__":
    main()
