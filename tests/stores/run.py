"""Tests that checkpoints in object stores are read and written correctly by the built `tessera`. Usage: run.py --tessera
PATH [--npm FOLDER] [--python PATH --package FOLDER] [NAME-PART…]"""
import argparse
import os
import shutil
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", d) for d in ("cli", "support")]

from checks import TESTS, Bad, Skip  # noqa: E402
from harness import Tessera  # noqa: E402

import servers  # noqa: E402
import test_azure  # noqa: E402, F401
import test_broken_servers  # noqa: E402, F401
import test_costs  # noqa: E402, F401
import test_cp  # noqa: E402, F401
import test_every_reply  # noqa: E402, F401
import test_every_request  # noqa: E402, F401
import test_exec_others  # noqa: E402, F401
import test_exec_parts  # noqa: E402, F401
import test_gcs  # noqa: E402, F401
import test_hf  # noqa: E402, F401
import test_python_writer  # noqa: E402
import test_resume  # noqa: E402, F401
import test_resume_disk  # noqa: E402, F401
import test_s3  # noqa: E402, F401
import test_s3_trouble  # noqa: E402, F401
import test_write  # noqa: E402, F401
import test_write_commands  # noqa: E402, F401
import test_write_others  # noqa: E402, F401
import test_write_ranks  # noqa: E402, F401
import test_write_trouble  # noqa: E402, F401

# The tests must see none of this machine's own settings, and no metadata service.
FOREIGN = ("AWS_", "GOOGLE_", "CLOUDSDK_", "GCE_", "STORAGE_", "AZURE_", "HF_", "TESSERA_HTTP")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--npm")
    ap.add_argument("--python", help="with PyTorch")
    ap.add_argument("--package", help="the folder of the Python package")
    ap.add_argument("names", nargs="*")
    a = ap.parse_args()
    servers.NPM["place"] = a.npm
    test_python_writer.PYTHON.update(python=a.python, package=a.package and os.path.abspath(a.package))
    for name in [n for n in os.environ if n.startswith(FOREIGN)]:
        del os.environ[name]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, body in TESTS:
        if a.names and not any(n in name for n in a.names):
            continue
        t = Tessera(os.path.abspath(a.tessera))
        os.environ.update(HOME=t.folder, AWS_EC2_METADATA_DISABLED="true")
        try:
            body(t)
            counts["passed"] += 1
        except Skip as e:
            counts["skipped"] += 1
            print(f"skipped {name}: {e}")
        except Exception as e:  # noqa: BLE001
            counts["failed"] += 1
            print(f"FAIL {name}: {'' if isinstance(e, Bad) else type(e).__name__ + ': '}{e}")
        finally:
            shutil.rmtree(t.folder, ignore_errors=True)
    print(f"{counts['passed']} passed, {counts['failed']} failed" + (f", {counts['skipped']} skipped" if counts["skipped"] else ""))
    sys.exit(1 if counts["failed"] or not counts["passed"] + counts["skipped"] else 0)


if __name__ == "__main__":
    main()
