#!/usr/bin/env python3
"""What a build with CUDA holds: code for every major architecture of this nvcc, and a program that starts without a driver.

    tests/cuda/test_fatbin.py --build build/cuda
"""
import argparse
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, ELF = 1, 2


def entries(path):
    """(kind, architecture) of everything in the fat binaries of a file: header, then entries of a header and a body each."""
    data, at = path.read_bytes(), -1
    while (at := data.find(MAGIC, at + 1)) >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", data, at)
        if version != 1 or header != 16:
            continue
        place, end = at + header, at + header + size
        while place < end:
            kind, _, own, body = struct.unpack_from("<HHIQ", data, place)
            yield kind, struct.unpack_from("<I", data, place + 28)[0]
            place += own + body


def expected():
    """The least architecture of every major one that nvcc knows."""
    known = [int(n) for n in re.findall(r"compute_(\d+)", subprocess.run(["nvcc", "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout)]
    return {min(a for a in known if a // 10 == major) for major in {a // 10 for a in known}}


def check_architectures(program):
    found, wanted = list(entries(program)), expected()
    elf, ptx = {a for k, a in found if k == ELF}, {a for k, a in found if k == PTX}
    assert wanted and wanted <= elf, f"code for {sorted(elf)}, wanted {sorted(wanted)}"
    assert min(wanted) == 75, f"the oldest is {min(wanted)}"
    assert max(wanted) in ptx, f"PTX for {sorted(ptx)}: nothing for processors newer than {max(wanted)}"
    if shutil.which("cuobjdump"):
        listed = subprocess.run(["cuobjdump", "--list-elf", program], capture_output=True, text=True, check=True).stdout
        assert {int(a) for a in re.findall(r"sm_(\d+)", listed)} == elf, listed


def check_libraries(program):
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for name in ("libcuda", "libcudart", "libstdc++", "libnccl"):
        assert name not in needed, f"{program.name} needs {name}"


def check_doctor(program):
    done = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cuda = json.loads(done.stdout)["cuda"]
    assert cuda["built"] is True and float(cuda["runtime"]) >= 13, cuda
    assert (cuda["devices"] == 0) == ("reason" in cuda), cuda
    if cuda["devices"]:
        assert "sm_" in cuda["device_0"], cuda


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--build", required=True, type=pathlib.Path)
    program = ap.parse_args().build / "bin/tessera"
    failed = 0
    for check in (check_architectures, check_libraries, check_doctor):
        try:
            check(program)
            print(f"[       OK ] test_fatbin__{check.__name__}")
        except AssertionError as e:
            failed += 1
            print(f"ERROR: {e}\n[  FAILED  ] test_fatbin__{check.__name__}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
