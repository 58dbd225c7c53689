"""Pickles that would do more than make data: the techniques that have bypassed scanners of pickles, each in every kind of
checkpoint; and pickles that PyTorch cannot load. Expectations come from Python's unpickler and from
torch.load(weights_only=False)."""
import argparse
import array
import collections
import io
import json
import os
import pickle
import struct
import warnings
import zipfile
import zoneinfo

import pickles
from harness import SAMPLES, need, test
from pickles import archive, call, containers, dcp, dict_of, glob, index, kept, legacy, metadata, new, s, size, stack_global, tensor, tensor_metadata, tup, write

COMMAND = s("true")
OS = glob("os", "system")
ACT = glob("my.package", "act")
CALL, CLASS = "pickle/unlisted-call", "pickle/unlisted-class"
BAD_CALL, BAD_CLASS, ODD_CLASS = (CALL, "error"), (CLASS, "error"), (CLASS, "warning")
SHARDED = glob("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")

CALLED = [
    ("os", "system"), ("posix", "system"), ("nt", "system"), ("subprocess", "check_output"), ("subprocess", "Popen"), ("_posixsubprocess", "fork_exec"),
    ("builtins", "eval"), ("__builtin__", "exec"), ("builtins", "__import__"), ("__builtin__", "compile"), ("builtins", "map"), ("builtins", "breakpoint"),
    ("__builtin__", "apply"), ("builtins", "type"), ("builtins", "setattr"), ("importlib", "import_module"), ("importlib.machinery", "SourceFileLoader"),
    ("pkgutil", "resolve_name"), ("runpy", "_run_code"), ("marshal", "loads"), ("pickle", "loads"), ("_pickle", "loads"), ("cPickle", "loads"), ("dill", "loads"),
    ("joblib", "load"), ("torch", "load"), ("torch.hub", "load"), ("torch.storage", "_load_from_bytes"), ("torch.serialization", "load"), ("numpy", "load"),
    ("operator", "attrgetter"), ("_operator", "methodcaller"), ("operator", "itemgetter"), ("functools", "partial"), ("functools", "reduce"), ("types", "FunctionType"),
    ("ctypes", "CDLL"), ("_ctypes", "dlopen"), ("cffi", "FFI"), ("pty", "spawn"), ("socket", "create_connection"), ("_socket", "socket"), ("ssl", "get_server_certificate"),
    ("http.client", "HTTPSConnection"), ("urllib.request", "urlopen"), ("requests.api", "get"), ("aiohttp", "request"), ("webbrowser", "open"), ("shutil", "rmtree"),
    ("asyncio.unix_events", "_UnixSubprocessTransport._start"), ("multiprocessing.util", "spawnv_passfds"), ("_interpreters", "run_string"), ("timeit", "timeit"),
    ("cProfile", "runctx"), ("profile", "Profile.run"), ("pdb", "run"), ("bdb", "Bdb.run"), ("trace", "Trace.runctx"), ("doctest", "debug_script"),
    ("code", "InteractiveInterpreter.runcode"), ("codeop", "compile_command"), ("pydoc", "pipepager"), ("pip", "main"), ("ensurepip", "_run_pip"), ("venv", "create"),
    ("idlelib.run", "Executive.runcode"), ("lib2to3.pgen2.pgen", "ParserGenerator.make_label"), ("distutils.file_util", "write_file"), ("numpy.f2py.crackfortran", "getlincoef"),
    ("numpy.testing._private.utils", "runstring"), ("torch._dynamo.guards", "GuardBuilder.get"), ("torch.utils.bottleneck.__main__", "run_cprofile"),
    ("torch.utils.collect_env", "run"), ("torch.utils._config_module", "ConfigModule.load_config"), ("torch.jit.unsupported_tensor_ops", "execWrapper"),
    ("torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards_expression"), ("torch._inductor.codecache", "compile_file"), ("io", "open"), ("_io", "FileIO"),
    ("logging.config", "listen"), ("tempfile", "mktemp"), ("platform", "popen"), ("copyreg", "add_extension"), ("threading", "Thread"), ("_thread", "start_new_thread"),
    ("sys", "exit"), ("site", "addsitedir"), ("some.unknown.package", "function"),
]

# technique, fragment, the finding that it must cause (rule, level)
TECHNIQUES = [
    ("INST", b"(" + COMMAND + b"ios\nsystem\n", BAD_CALL),
    ("OBJ", b"(" + OS + COMMAND + b"o", BAD_CALL),
    ("STACK_GLOBAL from the stack", stack_global("posix", "system") + COMMAND + b"\x85R", BAD_CALL),
    ("STACK_GLOBAL of strings that were swapped in the memo", s("os") + b"q\0" + s("system") + b"q\1" + s("torch._utils") + b"\x94" + s("_rebuild_tensor_v2") + b"\x94" + b"0000" + b"h\0h\1\x93" + COMMAND + b"\x85R", BAD_CALL),
    ("STACK_GLOBAL of strings made by DUP and POP", s("os") + b"20" + s("x") + b"0" + s("system") + b"\x93" + COMMAND + b"\x85R", BAD_CALL),
    ("memo slot set twice", s("torch") + b"q\x32" + b"0" + s("os") + b"q\x32" + b"0h\x32" + s("system") + b"\x93" + COMMAND + b"\x85R", BAD_CALL),
    ("a protocol that does not have the opcode", b"\x80\0" + stack_global("os", "system") + COMMAND + b"\x85R", BAD_CALL),
    ("a frame around nothing", b"\x95" + bytes(8) + call(OS, COMMAND), BAD_CALL),
    ("a dotted name", stack_global("torch.serialization", "os.system") + COMMAND + b"\x85R", BAD_CALL),
    ("a dotted name in GLOBAL", call(glob("torch", "serialization.os.system"), COMMAND), BAD_CALL),
    ("a call below a mark that is dropped", b"N(" + call(OS, COMMAND) + b"1", BAD_CALL),
    ("a call kept in the memo only", call(OS, COMMAND) + b"q\x960N", BAD_CALL),
    ("a call as a key", b"}" + call(OS, COMMAND) + b"Ns", BAD_CALL),
    ("a call inside arguments", call(glob("builtins", "str"), call(OS, COMMAND)), BAD_CALL),
    ("a call inside the state", new(glob("collections", "OrderedDict")) + dict_of(a=call(OS, COMMAND)) + b"b", BAD_CALL),
    ("getattr of a listed function", call(glob("__builtin__", "getattr"), glob("torch._utils", "_rebuild_tensor_v2"), s("__globals__")), BAD_CALL),
    ("getattr of a listed class", call(glob("builtins", "getattr"), glob("torch", "Size"), s("__class__")), BAD_CALL),
    ("getattr of a module's name", call(glob("builtins", "getattr"), glob("torch.serialization", "os"), s("system")), BAD_CALL),
    ("getattr of an enum's machinery", call(glob("builtins", "getattr"), glob(pickles.META, "_MEM_FORMAT_ENCODING"), s("__init_subclass__")), BAD_CALL),
    ("a call of what getattr gave", call(call(glob("builtins", "getattr"), glob("torch.serialization", "os"), s("system")), COMMAND), BAD_CALL),
    ("a call of what a call gave", call(call(glob("collections", "OrderedDict")), COMMAND), BAD_CALL),
    ("a call of a string", COMMAND + tup(COMMAND) + b"R", BAD_CALL),
    ("OBJ of what getattr gave", b"(" + call(glob("builtins", "getattr"), glob("torch.serialization", "os"), s("system")) + COMMAND + b"o", BAD_CALL),
    ("NEWOBJ of what a call gave", new(call(glob("collections", "OrderedDict")), COMMAND), BAD_CALL),
    ("a state for a listed class by getattr", call(glob("builtins", "getattr"), SHARDED, s("ProcessGroupState")) + dict_of(a=b"N") + b"b", BAD_CALL),
    ("a state for a global", glob("torch._utils", "_rebuild_tensor_v2") + tup(b"N", dict_of(__code__=b"N")) + b"b", BAD_CALL),
    ("slots of a global, then a dotted name", glob("collections", "OrderedDict") + tup(b"N", dict_of(a=s("os"))) + b"b", BAD_CALL),
    ("an item for a global", glob("torch.serialization", "_package_registered") + s("a") + b"Ns", BAD_CALL),
    ("items appended to a global", glob("torch.serialization", "_package_registered") + b"(" + s("/tmp") + b"e", BAD_CALL),
    ("a second state after one with __setstate__", call(glob("types", "SimpleNamespace")) + dict_of(__setstate__=ACT) + b"b" + dict_of(a=b"N") + b"b", BAD_CALL),
    ("a second state for a listed mapping", call(glob("collections", "OrderedDict")) + dict_of(__setstate__=ACT) + b"b" + dict_of(a=b"N") + b"b", BAD_CALL),
    ("items after a state with append", new(glob("my.package", "Config")) + dict_of(append=ACT) + b"b" + s("a") + b"a", BAD_CALL),
    ("items after a state with extend", new(glob("my.package", "Config")) + dict_of(extend=ACT) + b"b(" + s("a") + b"e", BAD_CALL),
    ("items after a state with add", b"\x80\4" + new(glob("my.package", "Config")) + dict_of(add=ACT) + b"b(" + s("a") + b"\x90", BAD_CALL),
    ("_reconstructor with a base that acts", call(glob("copy_reg", "_reconstructor"), glob("subprocess", "Popen"), glob("subprocess", "Popen"), b"](" + COMMAND + b"e"), BAD_CALL),
    ("_rebuild_from_type_v2 of a function", call(glob("torch._tensor", "_rebuild_from_type_v2"), OS, glob("torch", "Tensor"), tup(COMMAND), b"N"), BAD_CALL),
    ("_rebuild_from_type_v2 of getattr", call(glob("torch._tensor", "_rebuild_from_type_v2"), glob("builtins", "getattr"), glob("torch", "Tensor"), tup(glob("torch", "Size"), s("x")), b"N"), BAD_CALL),
    ("_rebuild_from_type of what a call gave", call(glob("torch._tensor", "_rebuild_from_type"), call(glob("collections", "OrderedDict")), glob("torch", "Tensor"), tup(COMMAND), b"}"), BAD_CALL),
    ("a factory for missing keys", call(glob("collections", "defaultdict"), glob("some.package", "act")), BAD_CALL),
    ("another codec", call(glob("_codecs", "encode"), s("a"), s("some_module")), BAD_CALL),
    ("an instance without __init__", new(glob("subprocess", "Popen")), BAD_CLASS),
    ("NEWOBJ_EX", glob("_socket", "socket") + b")}\x92", BAD_CLASS),
    ("a state for a dangerous class", new(glob("multiprocessing.connection", "Connection")) + dict_of(_handle=b"K\1") + b"b", BAD_CLASS),
    ("a code object", new(glob("types", "CodeType"), b"N"), BAD_CLASS),
    ("a loader's class", new(glob("importlib.machinery", "ExtensionFileLoader"), s("a"), s("b")), BAD_CLASS),
    ("a function that is only named", OS, BAD_CLASS),
    ("a builtin that is only named", glob("builtins", "exec"), BAD_CLASS),
    ("a way to builtins", glob("numpy", "__builtins__"), BAD_CLASS),
    ("a way to globals", stack_global("torch._utils", "_rebuild_tensor_v2.__globals__"), BAD_CLASS),
    ("an instance of an unlisted class", new(glob("my.package", "Config")) + dict_of(a=b"N") + b"b", ODD_CLASS),
    ("an instance of an unlisted class with keywords", glob("my.package", "Config") + b")" + dict_of(a=b"N") + b"\x92", ODD_CLASS),
    ("an instance of an exception of others", new(glob("my.package", "Error"), s("a")), ODD_CLASS),
    ("an unhashable key", b"}]Ns", ("pickle/unloadable", "error")),
    ("an unhashable key in a tuple", b"}" + tup(b"K\1", b"}") + b"Ns", ("pickle/unloadable", "error")),
    ("an unhashable key among many", b"}(K\1NK\2N\x8fNu", ("pickle/unloadable", "error")),
    ("an unhashable key of DICT", b"(]Nd", ("pickle/unloadable", "error")),
    ("an unhashable item of a set", b"\x8f(]\x90", ("pickle/unloadable", "error")),
    ("an unhashable item of a frozenset", b"(}\x91", ("pickle/unloadable", "error")),
    ("a bytearray as a key", b"}" + b"\x96" + struct.pack("<Q", 1) + b"aNs", ("pickle/unloadable", "error")),
    ("an unhashable key of an OrderedDict", call(glob("collections", "OrderedDict")) + b"]Ns", ("pickle/unloadable", "error")),
]


def findings(t, path):
    p = t.run("validate", path, "--deep", "--json", status=(0, 1, 2))
    if p.returncode == 2:
        return None, p.stderr.decode()
    # Most of these pickles hold no entry, which is a note of its own.
    return {(f["rule"], f["level"]) for f in json.loads(p.stdout)["findings"] if f["rule"] != "container/empty"}, p.returncode


def check(t, name, fragment, want):
    for where, path in containers(t.at("c"), fragment):
        got, status = findings(t, path)
        need(got is not None, f"{name} ({where}): cannot be read: {status}")
        need(want in got, f"{name} ({where}): {sorted(got)}, not {want}")
        need(status == (want[1] == "error") or where == "metadata", f"{name} ({where}): ended {status}")


@test
def test_what_would_be_called_is_an_error_wherever_it_is(t):
    for module, name in CALLED:
        path = write(t.at("a.pt"), archive(pickles.popped(call(glob(module, name), COMMAND))))
        need(BAD_CALL in findings(t, path)[0], f"{module}.{name}: {findings(t, path)}")
    check(t, "REDUCE", call(OS, COMMAND), BAD_CALL)


@test
def test_techniques_that_bypass_scanners_are_findings_wherever_they_are(t):
    for name, fragment, want in TECHNIQUES:
        check(t, name, fragment, want)


@test
def test_what_torch_writes_itself_is_no_finding(t):
    for name, fragment in (
        ("getattr of a nested class", new(call(glob("builtins", "getattr"), SHARDED, s("ProcessGroupState"))) + dict_of(local_rank=b"K\0") + b"b"),
        ("defaultdict of a dict", call(glob("collections", "defaultdict"), glob("builtins", "dict"))),
        ("_reconstructor of object", call(glob("copyreg", "_reconstructor"), glob("pathlib", "PurePath"), glob("builtins", "object"), b"N")),
        ("bytes up to protocol 2", call(glob("_codecs", "encode"), s("\x00\xe9"), s("latin1"))),
        ("a layout", call(glob("torch.serialization", "_get_layout"), s("torch.sparse_csr"))),
        ("a tuple, a frozenset and a size as keys", b"}(" + tup(b"K\1", tup(b"N")) + b"N" + b"(K\1\x91" + b"N" + size(2, 3) + b"Nu"),
    ):
        got, status = findings(t, write(t.at("a.pt"), archive(kept(fragment))))
        need(got == set() and status == 0, f"{name}: {got}, {status}")


def module_class(class_):
    """The persistent id that PyTorch 2.13 writes for the class of an nn.Module, only in the legacy format."""
    return tup(s("module"), class_, s("linear.py"), s("class Linear(Module):")) + b"Q"


@test
def test_classes_of_modules_in_the_legacy_form_are_classes(t):
    """torch.save(nn.Linear(3, 4), path, _use_new_zipfile_serialization=False) writes NEWOBJ of such an id."""
    linear = module_class(glob("torch.nn.modules.linear", "Linear"))
    for name, fragment, want in (
        ("an instance", new(linear) + dict_of(training=b"\x88") + b"b", ODD_CLASS),
        ("an instance of a dangerous class", new(module_class(glob("subprocess", "Popen"))), BAD_CLASS),
        ("an instance of a listed function", new(module_class(glob("builtins", "getattr")), SHARDED, s("x")), BAD_CALL),
        ("a call", call(linear, b"K\3", b"K\4"), BAD_CALL),
        ("a call of getattr", call(module_class(glob("builtins", "getattr")), SHARDED, s("__globals__")), BAD_CALL),
        ("an id of something that is not a class", new(module_class(s("Linear"))), BAD_CALL),
        ("a state for the class", linear + dict_of(forward=OS) + b"b", BAD_CALL),
    ):
        got, status = findings(t, write(t.at("a.pt"), legacy(kept(fragment))))
        need(want in got and status == (want[1] == "error"), f"{name}: {got} {status}")
        got, status = findings(t, write(t.at("b.pt"), archive(kept(fragment))))
        need(status == 1, f"{name} in a zip, of which PyTorch's loader resolves no such id: {got}")


@test
def test_bytes_after_the_end_are_a_warning(t):
    tail = b"\x80\2" + call(OS, COMMAND) + b"."
    for name, path in (
        ("zip", write(t.at("a.pt"), archive(kept(b"N") + tail))),
        ("legacy", write(t.at("b.pt"), legacy(kept(b"N"), tail=tail))),
        ("metadata", os.path.dirname(write(t.at("m", ".metadata"), metadata() + tail))),
        ("byte item", dcp(t.at("bytes"), archive(kept(b"N") + tail), False)),
        ("tensor item", dcp(t.at("tensor"), archive(tensor() + b"." + tail), True)),
    ):
        got, status = findings(t, path)
        need(got == {("pickle/trailing-bytes", "warning")} and status == 0, f"{name}: {got}, {status}")
    need(findings(t, write(t.at("c.pt"), archive(kept(tensor()))))[0] == set(), "without a tail")


@test
def test_what_only_a_registry_or_another_buffer_tells_is_refused(t):
    for name, fragment in (("EXT1", b"\x82\1"), ("EXT2", b"\x83\1\0"), ("EXT4", b"\x84\1\0\0\0"), ("NEXT_BUFFER", b"\x97"), ("READONLY_BUFFER", b"\x97\x98")):
        for where, path in containers(t.at("c"), fragment):
            got, why = findings(t, path)
            need(got is None and "opcode" in why or got and ("dcp/item", "error") in got, f"{name} ({where}): {got} {why}")


@test
def test_a_pickle_alone_and_archives_that_scanners_cannot_open_are_refused(t):
    harm = kept(call(OS, COMMAND))
    seven = b"7z\xbc\xaf\x27\x1c" + bytes(26) + harm
    members = lambda *names: zip_of([(n, harm if n.lower().endswith("data.pkl") else b"3\n") for n in names])
    flagged = bytearray(archive(harm))
    at = flagged.rindex(b"PK\1\2")
    flagged[at + 8] |= 1  # encrypted, according to the central directory
    for name, data in (
        ("a pickle", harm), ("7z", seven), ("flag bit", bytes(flagged)),
        ("data.pkl twice", members("archive/data.pkl", "archive/data.pkl", "archive/version")),
        ("data.pkl in two cases", members("archive/data.pkl", "archive/DATA.PKL", "archive/version")),
        ("no top directory", members("data.pkl", "version")),
        ("another top directory", members("other/version", "archive/data.pkl", "archive/version")),
    ):
        p = t.run("validate", write(t.at("a.pt"), data), "--deep", "--json", status=(1, 2))
        need(p.returncode == 2 or any(f["level"] == "error" for f in json.loads(p.stdout)["findings"]), name)
    data = bytearray(archive(harm))
    crc = data.index(b"PK\1\2") + 16
    data[crc:crc + 4] = b"\1\2\3\4"
    local = data.index(b"PK\3\4") + 14
    data[local:local + 4] = b"\1\2\3\4"
    got, why = findings(t, write(t.at("a.pt"), bytes(data)))
    need(got and {BAD_CALL, ("zip/crc", "error")} <= got, f"a wrong CRC hides a call: {got} {why}")


def zip_of(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names may occur twice
        for name, data in members:
            z.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


@test
def test_getattr_in_place_of_size_is_refused(t):
    with open(os.path.join(SAMPLES, "dcp_small", ".metadata"), "rb") as f:
        data = f.read()
    old, now = b"\x8c\5torch\x94\x8c\4Size\x94\x93", b"\x8c\x08builtins\x94\x8c\x07getattr\x94\x93"
    need(data.count(old) == 1 and data[2] == 0x95, "the sample has another form")
    frame = struct.pack("<Q", struct.unpack("<Q", data[3:11])[0] + len(now) - len(old))
    write(t.at("d", ".metadata"), data[:3] + frame + data[11:].replace(old, now))
    for command in ("inspect", "validate", "manifest", "layout"):
        need(b"dcp: sizes or offsets are not a list of" in t.run(command, t.at("d"), status=2).stderr, command)


@test
def test_items_of_mappings_that_are_called_are_entries(t):
    """PyTorch's flatten_state_dict of {"o": Own(a=…, b={"c": …}, n=3), "d": DD(dict, q=…)} results in o.a, o.b.c, o.n,
    d.q."""
    own = call(glob("my.package", "Own")) + b"(" + s("a") + tensor() + s("b") + dict_of(c=tensor()) + s("n") + b"K\3u"
    factory = call(glob("my.package", "DD"), glob("__builtin__", "dict")) + s("q") + tensor() + b"s"
    for state in (b"", dict_of(note=s("kept")) + b"b", tup(dict_of(note=s("kept")), dict_of(slot=b"N")) + b"b"):
        path = write(t.at("a.pt"), archive(b"}(" + s("o") + own + state + s("d") + factory + b"u."))
        doc = t.json("inspect", path, "--json")
        names = {e["fqn"]: e["kind"] for e in doc["entries"]}
        need(names == {"o.a": "tensor", "o.b.c": "tensor", "o.n": "object", "d.q": "tensor"}, names)
        need(findings(t, path)[0] == {BAD_CALL}, "the call of the class is a finding")
        t.run("convert", path, t.at("b.pt"), "--to", "torch", "--overwrite")
        need({e["fqn"] for e in t.json("inspect", t.at("b.pt"), "--json")["entries"]} == set(names), "entries after convert")
    path = write(t.at("a.pt"), archive(own + b"."))
    need([e["fqn"] for e in t.json("inspect", path, "--json")["entries"]] == ["a", "b.c", "n"], "at the root")
    path = write(t.at("a.pt"), archive(b"}" + s("o") + call(glob("my.package", "Thing"), b"K\1") + s("a") + tensor() + b"ss."))
    need([(e["fqn"], e["kind"]) for e in t.json("inspect", path, "--json")["entries"]] == [("o", "opaque")], "a class with arguments of its own")


@test
def test_memo_slots_may_have_gaps(t):
    """Slots 7, 3, 200 and 4294967295 for the parts of one tensor."""
    one = b"K\4q\x07" + b"0" + b"K\1q\x03" + b"0" + s("w") + b"q\xc80" + s("v") + b"r\xff\xff\xff\xff0"
    sized = tensor(size=b"h\x07\x85", stride=b"h\x03\x85")
    path = write(t.at("a.pt"), archive(b"\x80\2" + one + b"}h\xc8" + sized + b"sj\xff\xff\xff\xff" + b"h\x07s."))
    doc = t.json("inspect", path, "--json")
    need([(e["fqn"], e.get("shape"), e.get("value")) for e in doc["entries"]] == [("w", [4], None), ("v", None, 4)], doc["entries"])
    need(findings(t, path) == (set(), 0), findings(t, path))


# What torch.load(weights_only=False) of PyTorch 2.13 on Python 3.11 rejects; each was tried there.
FLOAT, ODICT = b"G" + struct.pack(">d", 1.0), glob("collections", "OrderedDict") + b")R"
PARTS = [pickles.persistent(), b"K\0", b"K\4\x85", b"K\1\x85", b"\x89", ODICT]
UNTYPED = tup(s("storage"), glob("torch.storage", "UntypedStorage"), s("0"), s("cpu"), b"K\x10") + b"Q"
INTS = tup(s("storage"), glob("torch", "IntStorage"), s("0"), s("cpu"), b"K\4") + b"Q"


def rebuilt(*changes, more=(), count=6):
    parts = list(PARTS)
    for at, value in changes:
        parts[at] = value
    return call(glob("torch._utils", "_rebuild_tensor_v2"), *parts[:count], *more)


def stored(*changes, more=()):
    parts = [s("storage"), glob("torch", "FloatStorage"), s("0"), s("cpu"), b"K\4"]
    for at, value in changes:
        parts[at] = value
    return rebuilt((0, tup(*parts, *more) + b"Q"))


def plain(name, *args):
    return call(glob("builtins", name), *args)


FLOAT4 = call(glob("numpy", "dtype"), s("f4"), b"\x89", b"\x88") + tup(b"K\3", s("<"), b"N", b"N", b"N", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\xff", b"K\0") + b"b"
META_TENSOR, SPARSE, QUANTIZED = (glob("torch._utils", name) for name in ("_rebuild_meta_tensor_no_storage", "_rebuild_sparse_tensor", "_rebuild_qtensor"))
COO = call(glob("torch.serialization", "_get_layout"), s("torch.sparse_coo"))
QUINT8 = tup(s("storage"), glob("torch", "QUInt8Storage"), s("0"), s("cpu"), b"K\x10") + b"Q"


def quantized(*quantizer):
    return call(QUANTIZED, QUINT8, b"K\0", b"K\4\x85", b"K\1\x85", tup(*quantizer), b"\x89", ODICT)


UNLOADABLE = {
    "a meta tensor's size": call(META_TENSOR, glob("torch", "float32"), tup(b"N"), tup(b"K\1"), b"\x89"), "a meta tensor's stride": call(META_TENSOR, glob("torch", "float32"), tup(b"K\1"), tup(ODICT[:-2]), b"\x89"),
    "a scale of text": quantized(glob("torch", "per_tensor_affine"), s("1"), b"K\0"), "a quantizer of two": quantized(glob("torch", "per_tensor_affine"), FLOAT), "no quantizer": quantized(),
    "two parts of a sparse tensor": call(SPARSE, COO, tup(rebuilt(), rebuilt())), "five parts of a sparse tensor": call(SPARSE, COO, tup(rebuilt(), rebuilt(), size(4), b"N", b"N")),
    "a sparse tensor of ints": call(SPARSE, COO, tup(b"K\1", b"K\1", size(4))),
    "offset None": rebuilt((1, b"N")), "offset float": rebuilt((1, FLOAT)), "offset bool": rebuilt((1, b"\x89")), "offset of 65 bits": rebuilt((1, b"\x8a\x09" + bytes(8) + b"\1")),
    "requires_grad None": rebuilt((4, b"N")), "requires_grad 1": rebuilt((4, b"K\1")), "4 arguments": rebuilt(count=4), "5 arguments": rebuilt(count=5),
    "8 arguments": rebuilt(more=[b"}", b"}"]), "metadata text": rebuilt(more=[s("x")]), "conj of floats": rebuilt(more=[dict_of(conj=b"\x88")]), "gradient of ints": rebuilt((0, INTS), (4, b"\x88")),
    "id of 6 parts": stored(more=[b"N"]), "key of bytes": stored((2, b"C\x010")), "location unknown": stored((3, s("xyz"))), "location None": stored((3, b"N")), "location cpu:0": stored((3, s("cpu:0"))),
    "an id that is popped": b"K\1Q0N", "a storage id's type that is popped": tup(s("module"), b"N", b"N", b"N", b"N") + b"Q0N",
    "a parameter of nothing": call(glob("torch._utils", "_rebuild_parameter")), "a parameter of an int": call(glob("torch._utils", "_rebuild_parameter"), b"K\1", b"\x88", ODICT),
    "a parameter's text": call(glob("torch._utils", "_rebuild_parameter"), rebuilt(), s("x"), ODICT), "a parameter of ints": call(glob("torch._utils", "_rebuild_parameter"), rebuilt((0, INTS)), b"\x88", ODICT),
    "a parameter's state": call(glob("torch._utils", "_rebuild_parameter_with_state"), rebuilt(), b"\x88", ODICT, b"K\1"),
    "v3 with 9": call(glob("torch._utils", "_rebuild_tensor_v3"), UNTYPED, *PARTS[1:], glob("torch", "float32"), b"}", b"N"),
    "an OrderedDict of an int": call(glob("collections", "OrderedDict"), b"K\3"), "an OrderedDict of ints": call(glob("collections", "OrderedDict"), b"]K\1a"),
    "an OrderedDict of three": call(glob("collections", "OrderedDict"), b"]NNN\x87a"), "an OrderedDict of lists": call(glob("collections", "OrderedDict"), b"]]N\x86a"),
    "int of None": plain("int", b"N"), "int of text": plain("int", s("x")), "float of a list": plain("float", b"]"), "bool of two": plain("bool", b"N", b"N"), "list of None": plain("list", b"N"),
    "set of lists": plain("set", b"]]a"), "frozenset of an int": plain("frozenset", b"K\1"), "dict of text": plain("dict", s("x")), "complex of bytes": plain("complex", b"C\1a"),
    "bytes of text": plain("bytes", s("x")), "bytes of None": plain("bytes", b"N"), "slice of nothing": plain("slice"), "range of text": plain("range", s("x")), "object of None": plain("object", b"N"),
    "a deque of None": call(glob("collections", "deque"), b"N"), "a Size of text": call(glob("torch", "Size"), s("x")), "a Size of texts": call(glob("torch", "Size"), tup(s("x"))),
    "no device": call(glob("torch", "device")), "a device of None": call(glob("torch", "device"), b"N"), "an unknown device": call(glob("torch", "device"), s("x")),
    "an unknown layout": call(glob("torch.serialization", "_get_layout"), s("torch.strided_")), "a date of None": call(glob("datetime", "date"), b"N"), "no timezone": call(glob("datetime", "timezone")),
    "a path of ints": call(glob("pathlib", "PurePath"), b"K\1"), "_codecs.encode of bytes": call(glob("_codecs", "encode"), b"C\1a", s("latin1")), "a dtype that is built": new(glob("torch", "float32")),
    "a storage that is built": new(glob("torch", "FloatStorage")), "a function that is built": new(glob("torch._utils", "_rebuild_tensor_v2"), *PARTS), "a qscheme that is called": call(glob("torch", "per_tensor_affine")),
    "the state of an OrderedDict": ODICT + b"K\3b", "the state of a Size": size(1) + dict_of(a=b"N") + b"b", "the state of a tensor": rebuilt() + dict_of(a=b"N") + b"b", "an OrderedDict's append": ODICT + b"Na",
    "the state of an array": call(glob("numpy.core.multiarray", "_reconstruct"), glob("numpy", "ndarray"), tup(b"K\0"), b"C\1b") + tup(b"K\1", tup(b"K\2"), b"N", b"\x89") + b"b",
    "the state of a dtype": call(glob("numpy", "dtype"), s("f4"), b"\x89", b"\x88") + tup(b"K\3", b"N", b"N", b"N", b"N", b"K\4", b"K\4", b"K\0") + b"b",
    "a memory format": call(glob("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"), s("x")), "a string of Python 2": b"U\1\xff",
}
LOADABLE = {
    "a generator": call(glob("torch._C", "Generator"), call(glob("torch", "device"), s("cpu"))), "a parameter of a lazy module": call(glob("torch.nn.parameter", "UninitializedParameter"), b"\x88"),
    "a buffer of a lazy module": call(glob("torch.nn.parameter", "UninitializedBuffer"), b"\x89"),
    "a meta tensor": call(META_TENSOR, glob("torch", "float32"), tup(b"K\1"), tup(b"K\1"), b"\x89"), "a quantized tensor": quantized(glob("torch", "per_tensor_affine"), FLOAT, b"K\0"),
    "an array": call(glob("numpy.core.multiarray", "_reconstruct"), glob("numpy", "ndarray"), tup(b"K\0"), b"C\1b") + tup(b"K\1", tup(b"K\1"), FLOAT4, b"\x89", b"C\4" + bytes(4)) + b"b", "a dtype": FLOAT4,
    "metadata None": rebuilt(more=[b"N"]), "metadata": rebuilt(more=[dict_of(neg=b"\x88")]), "a gradient": rebuilt((4, b"\x88")), "a parameter": call(glob("torch._utils", "_rebuild_parameter"), rebuilt(), b"\x88", ODICT),
    "a parameter of ints": call(glob("torch._utils", "_rebuild_parameter"), rebuilt((0, INTS)), b"\x89", ODICT), "a parameter with a state": call(glob("torch._utils", "_rebuild_parameter_with_state"), rebuilt(), b"\x88", ODICT, b"}N\x86"),
    "v3": call(glob("torch._utils", "_rebuild_tensor_v3"), UNTYPED, *PARTS[1:], glob("torch", "float32")), "pairs": call(glob("collections", "OrderedDict"), b"]K\1K\2\x86a"), "no set": plain("set"), "a set": plain("set", b"]K\1a"),
    "bytes": plain("bytes"), "a bytearray": plain("bytearray", s("a"), s("latin-1")), "a slice": plain("slice", b"N", b"K\1", b"N"), "a range": plain("range", b"K\1"), "an int of text": plain("int", s("12")),
    "a Size": size(2, 3), "an empty Size": call(glob("torch", "Size"), b")"), "a device": call(glob("torch", "device"), s("cpu"), b"K\0"), "a date": call(glob("datetime", "date"), b"C\4\x07\xe9\1\1"),
    "a timedelta": call(glob("datetime", "timedelta"), b"K\1", b"K\2", b"K\3"), "a path": call(glob("pathlib", "PurePosixPath"), s("a"), s("b")), "no path": call(glob("pathlib", "PurePosixPath")),
    "a state": ODICT + dict_of(a=b"N") + b"b", "slots": ODICT + b"N" + dict_of(a=b"N") + b"\x86b", "a Counter": call(glob("collections", "Counter"), dict_of(a=b"K\1")), "a deque": call(glob("collections", "deque"), b"]", b"K\3"),
    "a complex": plain("complex", FLOAT, FLOAT), "a string of Python 2": b"U\1a", "a qscheme": glob("torch", "per_tensor_affine"),
}


@test
def test_what_torch_cannot_load_is_an_error_and_what_it_can_is_not(t):
    for name, fragment in UNLOADABLE.items():
        got, status = findings(t, write(t.at("a.pt"), archive(kept(fragment))))
        need(got is not None and ("pickle/unloadable", "error") in got and status == 1, f"{name}: {got}, {status}")
    for name, fragment in LOADABLE.items():
        got, status = findings(t, write(t.at("a.pt"), archive(kept(fragment))))
        need(got == set() and status == 0, f"{name}: {got}, {status}")
    for name, fragment in {"missing": tup(s("storage"), glob("torch", "FloatStorage"), s("77"), s("cpu"), b"K\4"), "short": tup(s("storage"), glob("torch", "FloatStorage"), s("0"), s("cpu"), b"K\2")}.items():
        got, why = findings(t, write(t.at("a.pt"), archive(kept(fragment + b"Q0N"))))
        need(got is None and "storage" in why, f"a popped storage that is {name}: {got}, {why}")


@test
def test_versions_that_torch_does_not_read_are_errors(t):
    good, rule = kept(tensor()), ("torch/version", "error")
    for text, want in ((b"1", False), (b"3\n", False), (b"10", False), (b" 3", False), (b"3x", False), (b"+3", False), (None, True), (b"0", True), (b"11", True), (b"999", True), (b"abc", True), (b"", True),
                       (b"-1", True), (b"18446744073709551617", True), (b"0x3", True)):
        for name in ("version", ".data/version") if text is not None else ("version",):
            got, status = findings(t, write(t.at("a.pt"), archive(good, [(name, text)])))
            need(got == ({rule} if want else set()) and status == want, f"{name} {text}: {got}, {status}")
    got, _ = findings(t, write(t.at("a.pt"), archive(good, [("version", b"999"), (".data/version", b"3")])))
    need(got == set(), f".data/version counts where it is there: {got}")
    for text, want in ((b"64", False), (b" 64\n", False), (b"abc", True), (b"", True), (b"1.5", True)):
        got, _ = findings(t, write(t.at("a.pt"), archive(good, [(".storage_alignment", text)])))
        need(got == ({rule} if want else set()), f".storage_alignment {text}: {got}")
    got, status = findings(t, dcp(t.at("d"), archive(tensor() + b".", [("version", b"999")]), True))
    need(got == {rule} and status == 1, f"an item: {got}, {status}")


@test
def test_legacy_files_that_torch_cannot_load_are_errors(t):
    keys, data = pickle.dumps(["0"], 2), struct.pack("<q", 4) + pickles.FLOATS
    good = lambda *parts: rebuilt((0, tup(s("storage"), glob("torch", "FloatStorage"), s("0"), *parts) + b"Q"))
    for name, fragment, want in (("six parts", good(s("cpu"), b"K\4", b"N"), set()), ("five", good(s("cpu"), b"K\4"), {("pickle/unloadable", "error")}),
                                 ("a location", good(s("xyz"), b"K\4", b"N"), {("pickle/unloadable", "error")})):
        got, why = findings(t, write(t.at("a.pt"), legacy(kept(fragment), keys=keys, tail=data)))
        need(got == want, f"{name}: {got} {why}")


@test
def test_metadata_that_another_torch_reads_is_named_as_such(t):
    """PyTorch 2.13 unpacks five items in TensorProperties.__setstate__, and compares the fourth with its memory formats."""
    parts = [glob("torch", "float32"), call(glob("torch.serialization", "_get_layout"), s("torch.strided")), b"\x89", call(glob(pickles.META, "_MEM_FORMAT_ENCODING"), b"K\0"), b"\x89"]
    item = archive(tensor() + b".")
    at = lambda properties: findings(t, dcp(t.at("d"), item, True, tensor_metadata(4, properties=properties)))
    need(at(tup(*parts)) == (set(), 0), "five items")
    need(at(tup(*parts, b"N")) == ({("dcp/newer", "note")}, 0), f"six items: {at(tup(*parts, b'N'))}")
    need(at(tup(*parts[:4]))[0] is None, "four items")
    for wrong in (b"N", b"K\0"):
        need(at(tup(*parts[:3], wrong, parts[4])) == ({("pickle/unloadable", "error")}, 1), "a memory format that is none")
    for fragment in (call(glob(pickles.META, "_MEM_FORMAT_ENCODING"), b"K\3"), call(glob(pickles.META, "_MEM_FORMAT_ENCODING"), b"K\1K\2\x86"), call(glob("torch.serialization", "_get_layout"), s("x")), pickles.persistent(),
                     new(glob("torch.serialization", "_get_layout"), s("torch.strided")), call(glob(pickles.META, "MetadataIndex")) + dict_of(fqn=s("a"), offset=b"N", index=b"N") + b"b"):
        path = os.path.dirname(write(t.at("m", ".metadata"), metadata(extra=s("later") + fragment)))
        need(findings(t, path) == ({("pickle/unloadable", "error")}, 1), f"{fragment}: {findings(t, path)}")


@test
def test_calls_that_reach_further_are_not_written_again(t):
    popen = glob("subprocess", "Popen")
    for fragment in (call(glob("builtins", "getattr"), glob("torch._utils", "_rebuild_tensor_v2"), s("__globals__")), call(glob("copy_reg", "_reconstructor"), popen, popen, b"](" + COMMAND + b"e"),
                     call(glob("torch._tensor", "_rebuild_from_type_v2"), OS, glob("torch", "Tensor"), tup(COMMAND), b"N"), call(OS, COMMAND)):
        path = write(t.at("a.pt"), archive(kept(fragment)))
        need(b"a call of" in t.run("convert", path, t.at("b.pt"), "--to", "torch", status=2).stderr, fragment)
        need(not os.path.exists(t.at("b.pt")), "a file was written")


@test
def test_calls_that_share_their_arguments_cost_no_more_than_the_file(t):
    """Python takes time proportional to the square of the file's size for these."""
    for name, shared, callee in (("text", s("1" * 40000), glob("__builtin__", "int")), ("a state", tup(*[b"K\1"] * 40000), glob("numpy", "dtype") + s("f4") + b"\x85R")):
        one = b"h\1h\0\x85R" if name == "text" else b"cnumpy\ndtype\nh\2\x85Rh\0b"
        data = b"\x80\2" + shared + b"q\0" + b"0" + callee + b"q\1" + b"0" + s("f4") + b"q\2" + b"0" + b"](" + one * 40000 + b"e."
        got, why = findings(t, write(t.at("a.pt"), archive(data)))
        need(got is None and "share arguments" in why, f"{name}: {got}, {why}")


PLAIN = {"bytes": io.BytesIO(b"state \xff of TransformerEngine"), "text": io.StringIO("one\ntwo"), "space": argparse.Namespace(lr=0.5, name="x"),
         "numbers": array.array("d", [1.5, -2.25]), "chain": collections.ChainMap({"a": 1}, {"b": [2]}), "user": collections.UserDict(a=1),
         "users": collections.UserList([1, "b"]), "string": collections.UserString("s"), "zone": zoneinfo.ZoneInfo("UTC"), "error": ValueError("bad", 3),
         "os_error": FileNotFoundError(2, "no such file"), "stop": StopIteration(4), "text_error": UnicodeDecodeError("utf-8", b"a", 0, 1, "reason"),
         "dots": ..., "not": NotImplemented}


def plain_state(value):
    """What equality does not tell of the types in PLAIN."""
    if isinstance(value, (io.BytesIO, io.StringIO)):
        return type(value), value.getvalue(), value.tell()
    if isinstance(value, BaseException):
        return type(value), value.args
    return type(value), repr(value)


@test
def test_plain_values_of_python_are_data(t):
    for protocol in (2, 4):
        PLAIN["bytes"].seek(3)
        write(t.at(f"p{protocol}.pt"), archive(pickle.dumps(PLAIN, protocol=protocol)))
        path = t.at(f"p{protocol}.pt")
        found = t.json("validate", path, "--deep", "--json")["findings"]
        need({f["level"] for f in found} <= {"note"}, found)
        rows = {e["fqn"]: e["type"] for e in t.json("inspect", path, "--json")["entries"]}
        need(set(rows) == set(PLAIN) and rows["user"] == "collections.UserDict" and rows["zone"] == "zoneinfo.ZoneInfo", rows)
        need(rows["bytes"] == "_io.BytesIO" and rows["error"].endswith("ValueError") and rows["numbers"] == "array.array", rows)
        t.run("convert", path, t.at(f"d{protocol}"), "--to", "dcp")
        t.run("convert", t.at(f"d{protocol}"), t.at(f"back{protocol}.pt"), "--to", "torch")
        t.run("convert", path, t.at(f"again{protocol}.pt"), "--to", "torch")
        t.run("diff", path, t.at(f"d{protocol}"), "--values")
        for name in (f"back{protocol}.pt", f"again{protocol}.pt"):
            with zipfile.ZipFile(t.at(name)) as z:
                got = pickle.loads(z.read(next(n for n in z.namelist() if n.endswith("/data.pkl"))))
            need({k: plain_state(v) for k, v in got.items()} == {k: plain_state(v) for k, v in PLAIN.items()}, got)


@test
def test_what_is_next_to_plain_values_is_not_data(t):
    zone = glob("zoneinfo", "ZoneInfo")
    for name, value in {"method": call(call(glob("builtins", "getattr"), zone, s("from_file")), s("x")), "not an error": call(glob("exceptions", "system"), s("x")),
                        "partial of text": call(glob("functools", "partial"), s("x")), "partial of a call": call(glob("functools", "partial"), call(glob("my.package", "make"))),
                        "partial that is called": call(call(glob("functools", "partial"), glob("builtins", "int")), s("1")), "another function of re": call(glob("re", "sub"), s("a"), s("b"), s("c")),
                        "open": call(glob("_io", "open"), s("x")), "function": call(glob("array", "array_reconstructor"), s("x")),
                        "cache": call(call(glob("builtins", "getattr"), zone, s("clear_cache")))}.items():
        write(t.at("bad.pt"), archive(b"\x80\x02" + dict_of(x=value) + b"."))
        found = t.json("validate", t.at("bad.pt"), "--json", status=1)["findings"]
        need((CALL, "error") in {(f["rule"], f["level"]) for f in found}, f"{name}: {found}")
