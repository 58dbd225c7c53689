"""Runs a command and writes what it used to a file descriptor: launch.py FD COMMAND… Its exit status is that of the command.

On Linux the highest memory of a process counts that of the process which started it, as of the moment of the start. So measure.py, which is
large, does not start the programs itself, but this, which is as small as Python can be."""
import json
import os
import sys
import time

out, command = int(sys.argv[1]), sys.argv[2:]
os.set_inheritable(out, False)
start = time.perf_counter()
_, status, usage = os.wait4(os.posix_spawnp(command[0], command, os.environ), 0)
figures = {"wall": time.perf_counter() - start, "cpu": usage.ru_utime + usage.ru_stime, "peak_mib": usage.ru_maxrss / 1024}
os.write(out, json.dumps(figures).encode())
sys.exit(os.waitstatus_to_exitcode(status) % 256)
