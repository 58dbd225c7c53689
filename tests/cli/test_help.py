"""Help on terminals of any width."""
import re

from harness import need, test


def texts(t, columns):
    """What each command prints as help, by its name; "" is the overview."""
    overview = t.text("help", env={"COLUMNS": str(columns)})
    names = re.findall(r"^  (\w+) +\w", overview.split("Commands\n")[1], re.M)
    need(len(names) >= 20, f"commands: {names}")
    return {"": overview, **{name: t.text("help", name, env={"COLUMNS": str(columns)}) for name in (*names, "formats")}}


def words(text):
    return text.split()


@test
def test_help_fits_the_terminal(t):
    """Only what can be copied is longer than a line: commands, the documents of formats, options and their values."""
    wide = texts(t, 400)
    for columns in (40, 80, 120):
        for name, text in texts(t, columns).items():
            need(words(text) == words(wide[name]), f"help {name} has other words in {columns} columns")
            examples = len(re.split("^(?:Usage|Commands)$", text, flags=re.M)[0].splitlines())
            for number, line in enumerate(text.splitlines()):
                copied = re.match(r"    |  tessera|  \w+(, \w+)+$" if name == "formats" else r"  \S" if number < examples else r"  tessera| +--?\w[^ ]* \S+$", line)
                need(len(line) <= columns or copied or " " not in line.strip(), f"help {name} in {columns} columns: {line!r}")
