"""The end of a process that ran PyTorch."""
import inspect
import os
import sys


def leave(status=0):
    """Ends the process without finalizing the interpreter: PyTorch's threads of the backward pass and of gloo ask for the interpreter's
    lock while it is finalized, and at times that aborts the process ("terminate called without an active exception")."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def leaving(program):
    """Returns the text of a program so that it leaves at its end if it has a group of gloo. With two ranks on a busy machine, 6 of 32 runs of
    one without Tessera aborted."""
    return f"{program}\nimport os, sys\n{inspect.getsource(leave)}leave()\n" if "gloo" in program else program
