"""Manual pages and completions, as mandoc, man and real shells take them."""
import os
import pty
import re
import select
import shlex
import time

from harness import ROOT, SAMPLES, Skip

import safetensors_file
from shell import check


def commands(t):
    return re.findall(r"^  (\w+) +\w", t.run("help").stdout.decode().split("Commands\n")[1], re.M)


def test_manual_pages_are_accepted_by_mandoc_and_man(t):
    for name in ["", *commands(t), "formats"]:
        page = t.at(f"tessera-{name}.{5 if name == 'formats' else 1}")
        with open(page, "wb") as f:
            f.write(t.run("help", "--man", *([name] if name else [])).stdout)
        assert check("mandoc", "-Tlint", "-Wwarning", page) == ""
        assert check("man", "--warnings", "-l", page, env={**os.environ, "MANPAGER": "cat", "LC_ALL": "C.UTF-8"}).count("WARNING") == 0


def test_manual_pages_lose_nothing_in_the_posix_locale(t):
    for name in ["", *commands(t), "formats"]:
        page = t.at("page.1")
        with open(page, "wb") as f:
            f.write(t.run("help", "--man", *([name] if name else [])).stdout)
        with open(page) as f:
            assert f.read().isascii(), name
        plain = check("man", "--warnings", "-l", page, env={**os.environ, "MANPAGER": "cat", "LC_ALL": "C"})
        wide = check("man", "-l", page, env={**os.environ, "MANPAGER": "cat", "LC_ALL": "C.UTF-8"})
        typographic = {"\u2018": "`", "\u2019": "'", "\u2010": "-"}  # of groff itself
        assert "troff:" not in plain and plain.split() == "".join(typographic.get(c, c) for c in wide).split(), name


def test_the_manual_describes_every_document(t):
    page = t.at("page.5")
    with open(page, "wb") as f:
        f.write(t.run("help", "--man", "formats").stdout)
    shown = "".join(re.sub(".\b", "", check("mandoc", "-Tutf8", page)).replace("…", "...").split())
    for paragraph in t.run("help", "formats").stdout.decode().replace("…", "...").split("\n\n")[2:]:
        for word in paragraph.split():
            assert word in shown, f"not in the manual page: {word}"


def test_manual_pages_tell_what_help_tells(t):
    for name in commands(t):
        page = t.at("page.1")
        with open(page, "wb") as f:
            f.write(t.run("help", "--man", name).stdout)
        shown = re.sub(r"[\s|]+", " ", re.sub(".\b", "", check("mandoc", "-Tutf8", page)))
        told = t.run("help", name).stdout.decode()
        for option in re.findall(r"^  (?:-\w, |   )(--[\w-]+)", told, re.M):
            assert f"{option} " in shown, f"{name}: {option} is not in the manual page"
        for example in re.findall(r"^  (tessera .*|source .*)$", told.split("Usage\n")[0], re.M):
            assert re.sub(r"[\s|]+", " ", example) in shown, f"{name}: an example is not in the manual page: {example}\n{shown}"


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, arguments, env):
        try:
            self.pid, self.fd = pty.fork()
        except OSError as e:
            raise Skip(f"this machine gives no terminal: {e}") from e
        if self.pid == 0:
            os.environ.update({**env, "TERM": "dumb", "COLUMNS": "200"})
            os.execvp(arguments[0], arguments)
        self.seen = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait(self, pattern, seconds=20):
        """The text up to a match of `pattern`; the time only ends a test that fails."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            ready = select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"no {pattern!r} in {self.seen[-800:]!r}"
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            assert data, f"the shell ended without {pattern!r}: {self.seen[-800:]!r}"
            self.seen += data.decode(errors="replace")
        seen, self.seen = self.seen, ""
        return seen

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


# Typed so far (after "tessera "), and what must be suggested. The samples' directory is $S.
CASES = [
    ("val", ["validate"]),
    ("inspect --ha", ["--hash"]),
    ("inspect --hash ", ["sha256", "xxh3"]),
    ("validate --format s", ["sarif"]),
    ("convert a b --dtype bfl", ["bfloat16"]),
    ("optim un", ["unflatten", "unshard"]),
    ("explain zip/", ["zip/crc", "zip/crc-absent"]),
    ("help doc", ["doctor"]),
    ("help forma", ["formats"]),
    ("completions ", ["bash", "zsh", "fish"]),
    ("get $S/dcp_small w", ["weight"]),
    ("layout $S/dcp_smal", ["dcp_small"]),
    ("map suggest $S/dcp_smal", ["dcp_small"]),
    ("layout $S/dcp_small -o $S/READ", ["README.md"]),
    ("validate --quiet --layout $S/READ", ["README.md"]),
    ("diff --atol 1 $S/dcp_small $S/READ", ["README.md"]),
]


def environment(t):
    return {**os.environ, "PATH": f"{os.path.dirname(t.path)}:{os.environ['PATH']}", "S": os.path.relpath(SAMPLES, ROOT), "HOME": t.scratch}


def script(t, shell, name):
    path = t.at(name)
    with open(path, "wb") as f:
        f.write(t.run("completions", shell).stdout)
    return path


BASH = r"""source "$1"; line="tessera $2"; line=${line//=/ = }; read -ra COMP_WORDS <<<"$line"
[[ $line == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tessera; printf '%s\n' "${COMPREPLY[@]}" """


def test_bash_completes(t):
    path = script(t, "bash", "tessera.bash")
    env = environment(t)
    for typed, wanted in [*CASES, ("validate --format=s", ["sarif"]), ("inspect --hash=", ["sha256", "xxh3"])]:
        typed = typed.replace("$S", env["S"])
        words = {os.path.basename(w) if "/" in w and os.path.exists(os.path.join(ROOT, w)) else w
                 for w in check("bash", "--norc", "-c", BASH, "_", path, typed, cwd=ROOT, env=env).split()}
        assert words >= set(wanted), f"{typed!r}: bash suggests {words}"


def test_fish_completes(t):
    path = script(t, "fish", "tessera.fish")
    env = environment(t)
    for typed, wanted in CASES:
        typed = typed.replace("$S", env["S"])
        out = check("fish", "--no-config", "-c", f"source {shlex.quote(path)}; complete -C {shlex.quote('tessera ' + typed)}", cwd=ROOT, env=env)
        words = {os.path.basename(line.split("\t")[0].rstrip("/")) if "samples" in line else line.split("\t")[0] for line in out.splitlines()}
        assert words >= set(wanted), f"{typed!r}: fish suggests {words}"


def test_bash_completes_at_a_terminal(t):
    path = script(t, "bash", "tessera.bash")
    with Shell(["bash", "--norc", "--noprofile", "-i"], environment(t)) as shell:
        shell.type(f"PS1='>>'; bind 'set bell-style none'; cd {shlex.quote(ROOT)}; source {shlex.quote(path)}; echo so it be''gins\n")
        shell.wait("so it begins")
        shell.type("echo tessera; tessera expl\t")
        shell.wait("explain ")
        shell.type("dcp/dest\x15tessera validate --fail\t")
        shell.wait("--fail-on ")
        shell.type("war\t")
        shell.wait("warning ")
        shell.type("samples/checkpoints/dcp_small.ex\t")
        shell.wait(r"pect.json ")
        shell.type("\x15exit\n")


def test_zsh_completes_at_a_terminal(t):
    script(t, "zsh", "_tessera")
    env = environment(t)
    with Shell(["zsh", "-f", "-i"], env) as shell:
        shell.type(f"PS1='>>'; cd {shlex.quote(ROOT)}; fpath=({shlex.quote(t.scratch)} $fpath); autoload -U compinit; "
                   f"compinit -u -d {shlex.quote(t.at('zcompdump'))}; unsetopt zle_bracketed_paste; echo so it be''gins\n")
        shell.wait("so it begins")
        for typed, wanted in CASES:
            typed = typed.replace("$S", env["S"])
            shell.type(f"tessera {typed}\t\t")
            rest = [word[len(re.split(r"[ =/]", typed)[-1]):] if len(wanted) == 1 else word for word in wanted]
            shell.wait("".join(rf"(?=[\s\S]*{re.escape(word)})" for word in rest))
            shell.type("\x15echo and a''gain\n")
            shell.wait("and again")
        shell.type("exit\n")


def test_names_from_a_file_are_never_run_or_expanded(t):
    path = t.at("hostile.safetensors")
    ran = t.at("ran")
    names = [f"$(touch {ran})", f"`touch {ran}`", "a b", "quote'd", "line\nbreak", "$HOME", "esc\x1b[31m"]
    safetensors_file.write(path, names)
    script_path = script(t, "bash", "tessera.bash")
    fish = script(t, "fish", "tessera.fish")
    env = environment(t)
    out = check("bash", "--norc", "-c", BASH, "_", script_path, f"get {path} ", env=env).splitlines()
    assert not os.path.exists(ran)
    back = [check("bash", "-c", f"printf %s {word}") for word in out]
    assert sorted(back) == sorted(n for n in names if n.isprintable()), back
    out = check("fish", "--no-config", "-c", f"source {shlex.quote(fish)}; complete -C {shlex.quote(f'tessera get {path} ')}", env=env)
    assert not os.path.exists(ran) and "$HOME" in out and "\x1b" not in out
