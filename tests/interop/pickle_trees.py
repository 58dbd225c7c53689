"""Pickles as trees that can be changed and written again: nodes are lists [kind, part…] of which parts may be nodes."""
import pickletools
import struct


class Node(list):
    """const (its opcode's bytes, its value), global (module, name), persid (tuple), tuple, list, dict, set, frozenset (items), call and new
    (callee, tuple), newex (callee, tuple, dict), build (object, state), append, items, add (object, item…)"""


def text(value):
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


MAKES = {"EMPTY_TUPLE": "tuple", "EMPTY_LIST": "list", "EMPTY_DICT": "dict", "EMPTY_SET": "set"}
TAKES = {"TUPLE1": ("tuple", 1), "TUPLE2": ("tuple", 2), "TUPLE3": ("tuple", 3), "REDUCE": ("call", 2), "NEWOBJ": ("new", 2), "NEWOBJ_EX": ("newex", 3), "BINPERSID": ("persid", 1)}
PUTS = {"APPENDS": ("list", "append"), "APPEND": ("list", "append"), "SETITEMS": ("dict", "items"), "SETITEM": ("dict", "items"), "ADDITEMS": ("set", "add")}


class Reader:
    def __init__(self):
        self.stack, self.marks, self.memo = [], [], {}

    def above_mark(self):
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def take(self, count):
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def put(self, own, kind, items):
        target = self.stack[-1]
        if target[0] == own:
            target.extend(items)
        else:
            target[:] = [kind, Node(target), *items]

    def do(self, name, arg, raw):
        if name in ("PROTO", "FRAME", "STOP"):
            return
        if name == "MARK":
            self.marks.append(len(self.stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[arg] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[arg])
        elif name in MAKES:
            self.stack.append(Node([MAKES[name]]))
        elif name in TAKES:
            kind, count = TAKES[name]
            self.stack.append(Node([kind, *self.take(count)]))
        elif name in ("TUPLE", "FROZENSET"):
            self.stack.append(Node([name.lower(), *self.above_mark()]))
        elif name in PUTS:
            self.put(*PUTS[name], self.take({"APPEND": 1, "SETITEM": 2}[name]) if name in ("APPEND", "SETITEM") else self.above_mark())
        elif name == "GLOBAL":
            self.stack.append(Node(["global", *arg.split(" ", 1)]))
        elif name == "STACK_GLOBAL":
            module, attribute = self.take(2)
            self.stack.append(Node(["global", module[2], attribute[2]]))
        elif name == "BUILD":
            state = self.stack.pop()
            self.stack[-1][:] = ["build", Node(self.stack[-1]), state]
        else:
            self.stack.append(Node(["const", raw, arg]))


def read(data):
    reader = Reader()
    ops = list(pickletools.genops(data))
    ends = [op[2] for op in ops[1:]] + [len(data)]
    for (op, arg, at), end in zip(ops, ends):
        reader.do(op.name, arg, data[at:end])
    return reader.stack[-1]


OPENS = {"tuple": b"(", "list": b"](", "dict": b"}(", "set": b"\x8f(", "frozenset": b"("}
CLOSES = {"tuple": b"t", "list": b"e", "dict": b"u", "set": b"\x90", "frozenset": b"\x91", "call": b"R", "new": b"\x81", "newex": b"\x92", "build": b"b", "persid": b"Q",
          "append": b"e", "items": b"u", "add": b"\x90"}


def write(node, protocol, depth=0):
    """Shared parts are written wherever they are; RecursionError for a tree that holds itself."""
    if depth > 60:
        raise RecursionError
    kind, *parts = node
    if kind == "const":
        return parts[0]
    if kind == "global":
        return text(parts[0]) + text(parts[1]) + b"\x93" if protocol >= 4 else f"c{parts[0]}\n{parts[1]}\n".encode()
    written = [write(part, protocol, depth + 1) for part in parts]
    if kind in ("append", "items", "add"):
        written.insert(1, b"(")
    return OPENS.get(kind, b"") + b"".join(written) + CLOSES[kind]


def copy(node):
    return Node(copy(part) if isinstance(part, Node) else part for part in node)


def walk(node):
    yield node
    for part in node[1:]:
        if isinstance(part, Node):
            yield from walk(part)
