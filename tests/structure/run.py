#!/usr/bin/env python3
"""The structure of the repository: dependencies between modules, what headers and READMEs say, and the library as its users meet it.

    tests/structure/run.py              check the rules: exit 1 on a violation
    tests/structure/run.py --report     files, layers and circles per module, public functions, functions with many parameters or one user
"""
import argparse
import sys

import formatting
import includes
import modules
import product
import report
import texts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="print the figures instead of checking the rules")
    if parser.parse_args().report:
        report.show()
        return
    core, outside = modules.sources("core"), modules.sources("native", "wasm")
    checks = [*includes.checks(core, outside), *texts.checks(modules.PUBLIC, core + outside), *product.checks(), *report.checks(),
              *formatting.checks()]
    failed = 0
    for name, errors in checks:
        failed += bool(errors)
        for e in errors:
            print(f"FAIL {name}: {e}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
