"""Writes regexes.tsv: regular expressions, and the names that Python's re.match finds them in.

Each line has a pattern, what Python says of it, and names with 1 or 0 before each, all separated by tabs and escaped: "y" for a
pattern that Python compiles, "n" for one that it does not, and "r" for one that Tessera refuses although Python compiles it. Run
with Python 3.11 or later, which has possessive repetition and atomic groups."""
import pathlib
import random
import re
import warnings

warnings.simplefilter("ignore")
NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.12.self_attn.q_proj", "model.layers.1.mlp.down_proj", "layers.2.fc1", "a", "aa", "ab", "b.a",
         "model.language_model.layers.3.mlp.gate_up_proj", "lm_head", "x-y", "q_proj\n", "a\nb", "A.b_1", "^a{2}$", "aaaa.bbbb", "0", "_", "{}", "a]b"]
# Patterns as they are in adapters, and others for what is easily got wrong.
PATTERNS = r"""
q_proj
layers\.[12]\..*
.*self_attn\.(q|v)_proj
model\.layers\.(0|12)\.self_attn\.(?:q|k|v)_proj
^model.layers.\d+.mlp
(?P<kind>self_attn|mlp)\.\w+
.*\.(?:[02468]|1[0-9])\..*
.*layers\.(?:[0-9]|1[0-1])\.(?:self_attn|mlp)\.(?:q_proj|down_proj)
layers.\d{1,2}.fc1
a{2}
a{2,}
a{,2}
a{,}
a{}
a{a}
a{2
{}
\{\}
a{1,2}?b??
(a|b|.)*?\.a
(a*)*b
(a|aa)+$
((a{1,3}){1,3}){1,3}
()*a
(^|x)a
(?:^)*a
[]a]+
[^]]+$
a[]]b
[a-]
[\w.]+
[^\W\d]+$
[\b]a
\bb\b
\Ba
a\Z
a$
\Aa\Z
q_proj$
a.b
a\nb
\x61
\u0061
\0061
[\60-\63]
\141
\.
x\-y
a|
|a
a||b
[0-9]+|[a-z]+$
.{30}
.{31,}
\S+\s?$
\D\W
[^a-z.\d_]
a**
*a
a|*
(+)
^*
\b+
a{2}{3}
a{3,2}
[a
[
[^
(a
a)
(?P<a
(?P<1>a)
(?P<a>
\
\q
[\q]
[\8]
[b-a]
[\w-z]
\x6
a++
(?>a)
(?=a)a
(?!a)b
(?<=b)a
(?<!b)a
(a)\1
(?P<a>a)(?P=a)
(?#a)a
(?i:a)
(a)?(?(1)b|a)
""".split("\n")[1:-1]


def verdict(pattern):
    try:
        return re.compile(pattern), "y"
    except (re.error, OverflowError):
        return None, "n"


def line(pattern, names):
    compiled, said = verdict(pattern)
    refused = re.search(r"\(\?(?!:|P<)|\(a\)\\1|P=|a\+\+", pattern)
    cells = [f"{int(compiled.match(name) is not None)}{name}" for name in names] if said == "y" and not refused else []
    return "\t".join(text.encode("unicode_escape").decode() for text in [pattern, "r" if said == "y" and refused else said, *cells])


def random_pattern(r, depth=0):
    atoms = ["a", "b", ".", r"\.", "_", "0", r"\d", r"\w", "[ab]", "[^a]", "[a-c.]", "proj", "^", "$", r"\b", r"\W"]
    out = ""
    for _ in range(r.randint(0 if depth else 1, 4)):
        kind = r.random()
        if kind < .25 and depth < 3:
            out += r.choice(["(", "(?:"]) + random_pattern(r, depth + 1) + ")"
        elif kind < .35:
            out += "|"
        else:
            out += r.choice(atoms)
        if r.random() < .35:
            out += r.choice(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0}", "{,2}", "{2,}"])
    return out


def random_name(r):
    return "".join(r.choice("aab..0_c") if r.random() < .9 else r.choice(["proj", "\n", "-"]) for _ in range(r.randint(1, 12)))


def main():
    r = random.Random(7)
    lines = [line(pattern, NAMES) for pattern in PATTERNS]
    lines += [line(f"(.*\\.)?({pattern})$", NAMES) for pattern in PATTERNS if verdict(pattern)[1] == "y"]
    lines += [line(random_pattern(r), [random_name(r) for _ in range(8)]) for _ in range(600)]
    pathlib.Path(__file__).with_name("regexes.tsv").write_text("\n".join(lines) + "\n")


main()
