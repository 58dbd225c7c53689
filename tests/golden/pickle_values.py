"""Writes pickle_values.tsv: pickles that CPython makes (protocols 0 to 5, C and Python picklers) and what is in them.
Usage: python3 pickle_values.py > pickle_values.tsv   (made with CPython 3.11.7)"""
import collections
import pickle

Point = collections.namedtuple("Point", "x y")  # its module is named below


class Plain:
    def __init__(self, **state):
        self.__dict__.update(state)


class Words(list):
    pass


class Keyword:
    def __new__(cls, *args, size=0):
        return object.__new__(cls)

    def __getnewargs_ex__(self):
        return (1,), {"size": 2}


for cls in (Point, Plain, Words, Keyword):
    cls.__module__ = "__main__"

shared = [1, 2]
VALUES = [
    None, True, False, 0, 1, -1, 255, 256, 65535, 65536, 2**27 - 1, 2**27, -(2**27), -(2**27) - 1, 2**31 - 1, -(2**31), 2**31, 2**63 - 1,
    -(2**63), 2**63, -(2**63) - 1, 2**200, -(2**200), 10**50, 0.0, -1.5, 1e300, 5e-324, float("inf"), float("-inf"),
    "", "abc", "it's", 'say "it"', "back\\slash", "tab\tline\n", "h\u00e9llo", "\u20ac", "\U0001F600", "\ud800", "nul\0inside", "x" * 255, "y" * 256,
    b"", b"ab", bytes(range(120, 140)), bytearray(b"array"), [], [1], [[], [[]]], list(range(1001)), (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4),
    {}, {"a": 1}, {1: "one", (2, 3): None}, {i: i for i in range(1001)}, {7}, frozenset({7}), [shared, shared], (shared, [shared]),
    collections.OrderedDict(a=1, b=[2]), Plain(x=1, y=[2]), Plain(), Words([1, 2]), Point(1, "two"), Keyword(), complex(1, 2), len, Plain,
]


def escaped(data):
    return "'" + "".join(chr(c) if 32 <= c <= 126 and c not in (39, 92) else "\\x%02x" % c for c in data) + "'"


def items(open_, values, close):
    return open_ + "".join(shown(v) + "," for v in values) + close


def name(cls):
    return f"<{cls.__module__}.{cls.__name__}>"


def shown(v):
    """What a machine that calls nothing must say of the protocol-2-and-later form."""
    if v is None or isinstance(v, bool):
        return str(v)
    if isinstance(v, int):
        return str(v) if -(2**63) <= v < 2**63 else "big:" + pickle.encode_long(v).hex()
    if isinstance(v, float):
        return "%.17g" % v
    if isinstance(v, str):
        return escaped(v.encode("utf-8", "surrogatepass"))
    if isinstance(v, (bytes, bytearray)):
        return "b" + escaped(v)
    if isinstance(v, Point):
        return f"new({name(Point)};{items('(', v, ')')})"
    if isinstance(v, Words):
        return f"new({name(Words)};();appended={items('[', v, ']')})"
    if isinstance(v, list):
        return items("[", v, "]")
    if isinstance(v, tuple):
        return items("(", v, ")")
    if isinstance(v, (set, frozenset)):
        return items("{", v, "}")
    if isinstance(v, collections.OrderedDict):
        return f"call(<collections.OrderedDict>;();set={pairs(v)})"
    if isinstance(v, dict):
        return pairs(v)
    if isinstance(v, Plain):
        return f"new({name(Plain)};()" + (f";state={pairs(v.__dict__)}" if v.__dict__ else "") + ")"
    if isinstance(v, Keyword):
        return f"new({name(Keyword)};((1,),{{'size':2,}},))"
    if isinstance(v, complex):
        return f"call(<builtins.complex>;({v.real:.17g},{v.imag:.17g},))"
    return name(v) if isinstance(v, type) else f"<builtins.{v.__name__}>"


def pairs(d):
    return "{" + "".join(shown(k) + ":" + shown(v) + "," for k, v in d.items()) + "}"


def first_protocol(v):
    if isinstance(v, (bytes, set, frozenset, Keyword)):
        return 4 if not isinstance(v, bytes) else 3
    if isinstance(v, bytearray):
        return 5
    return 2 if isinstance(v, (Point, Plain, Words)) or v is Plain else 0


def protocols(v):
    """All that can hold the value; for those longer than a batch, one."""
    return [4] if hasattr(v, "__len__") and not isinstance(v, (str, bytes)) and len(v) > 1000 else range(first_protocol(v), 6)


def main():
    seen = set()
    for v in VALUES:
        for protocol in protocols(v):
            for dumps in (pickle.dumps, pickle._dumps):
                data = dumps(v, protocol)
                if data not in seen:
                    seen.add(data)
                    print(data.hex(), shown(v), sep="\t")


main()
