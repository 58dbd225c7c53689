/* A ribbon filter takes a tenth of the bytes of a list, and three quarters of a Bloom filter's, which gzip cannot make smaller
 * (Dillinger and Walzer, "Ribbon filter: practically smaller than Bloom and Xor", 2021). It holds the solution of a system of
 * linear equations over bits: for each name that exists, the exclusive or of the rows that the name's hash selects is a number
 * that the hash gives as well. Other names have that number by chance only. */
#include "formats/pickle/pickle_verdict.h"

#include "formats/pickle/name_filter.h"
#include "tessera/str.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

typedef enum tsr_name_state {
    TSR_NAME_EXISTS,
    TSR_NAME_MISSING,   /* the module is known, and has no such name */
    TSR_NAME_UNCHECKED, /* of PyTorch or numpy, in a module that is not known */
    TSR_NAME_FOREIGN    /* of another package, about which nothing is known */
} tsr_name_state;

/* Knows PyTorch 2.13, numpy 1.26 and 2.4, and Python, in the modules that checkpoints name. Of the names that do not
 * exist, it takes about one in 1,000 for an existing one (tests/golden/make_known_names.py). */
tsr_name_state tsr_name_state_of(tsr_str module, tsr_str name);

static uint64_t fnv(uint64_t hash, tsr_str text)
{
    for (size_t i = 0; i < text.size; i++) hash = (hash ^ (unsigned char)text.data[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static bool is_listed(tsr_str module, bool core)
{
    const tsr_str package = TSR_STR("numpy._core.");
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
        tsr_str listed = tsr_str_from(modules[i]);
        if (core && !tsr_str_skip(&listed, package)) continue;
        if (tsr_str_equal(module, listed)) return true;
    }
    return false;
}

static uint64_t mix(uint64_t x)
{
    for (int i = 0; i < 2; i++) x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

static uint32_t filter_row(uint32_t index)
{
    const uint32_t bit = ROW_BITS * index; /* even, so that a row lies in two bytes */
    return (uint32_t)(filter[bit / 8] | filter[bit / 8 + 1] << 8) >> bit % 8;
}

/* `core`: a module of numpy.core, which is numpy._core since numpy 2; it follows behind that name. */
static bool is_in_filter(tsr_str module, bool core, tsr_str name)
{
    const uint64_t package = fnv(UINT64_C(0xcbf29ce484222325), core ? TSR_STR("numpy._core.") : TSR_STR(""));
    const uint64_t selects = mix(fnv(fnv(fnv(package, module), TSR_STR(" ")), name) + SEED), gives = mix(selects);
    uint32_t row = (uint32_t)((gives >> 32) * (ROWS - 63) >> 32),
             sum = (uint32_t)gives; /* 64 rows from here may be selected */
    for (uint64_t left = selects | 1; left; left >>= 1, row++)
        if (left & 1) sum ^= filter_row(row);
    return (sum & ((1u << ROW_BITS) - 1)) == 0;
}

static bool is_below(tsr_str module, tsr_str package)
{
    return tsr_str_starts(module, package) && (module.size == package.size || module.data[package.size] == '.');
}

tsr_name_state tsr_name_state_of(tsr_str module, tsr_str name)
{
    tsr_str first = name;
    for (size_t i = 0; i < name.size && first.size == name.size; i++)
        if (name.data[i] == '.') first.size = i;
    if (tsr_str_equal(module, TSR_STR("torch.tensor"))) module = TSR_STR("torch._tensor"); /* as torch.load renames it */
    const tsr_str old = TSR_STR("numpy.core.");
    const bool core = tsr_str_starts(module, old);
    const tsr_str bare = core ? tsr_str_after(module, old.size) : module;
    if (is_listed(bare, core)) {
        bool dunder = first.size > 4 && tsr_str_starts(first, TSR_STR("__")) && tsr_str_ends(first, TSR_STR("__"));
        return dunder || is_in_filter(bare, core, first) ? TSR_NAME_EXISTS : TSR_NAME_MISSING;
    }
    /* Python 2's modules, which Python 3 renames in pickles of its protocols only. */
    if (tsr_str_equal(module, TSR_STR("__builtin__")) || tsr_str_equal(module, TSR_STR("copy_reg"))) return TSR_NAME_MISSING;
    return is_below(module, TSR_STR("torch")) || is_below(module, TSR_STR("numpy")) ? TSR_NAME_UNCHECKED : TSR_NAME_FOREIGN;
}

/* ---- danger ---- */

/* Globals that do not belong in a checkpoint even if they are only named: naming one imports its module, an instance made
 * without __init__ can still act when its state is set or when it is destroyed, and a function passed as an argument may
 * be called by the function that receives it. */

/* Packages with all their submodules; a leading underscore (the twin in C) does not count: `_socket` is `socket`. */
/* clang-format off */
static const char *const packages[] = {
    /* run programs and threads */
    "os", "posix", "nt", "subprocess", "posixsubprocess", "winapi", "pty", "popen2", "commands", "signal", "multiprocessing",
    "asyncio", "overlapped", "thread", "threading", "interpreters", "xxsubinterpreters", "xxinterpchannels", "atexit",
    "platform", "resource", "fcntl", "msvcrt", "winreg",
    /* load code of other languages, reach raw memory */
    "ctypes", "cffi", "cffi_backend", "mmap", "gc",
    /* import, compile, run and trace Python */
    "sys", "importlib", "frozen_importlib", "frozen_importlib_external", "imp", "pkgutil", "zipimport", "runpy", "code",
    "codeop", "compileall", "py_compile", "pydoc", "pdb", "bdb", "doctest", "trace", "timeit", "profile", "cProfile",
    "lsprof", "inspect", "symtable", "lib2to3", "idlelib", "distutils", "setuptools", "pip", "ensurepip",
    "venv", "pyrepl", "testcapi", "testinternalcapi", "IPython", "aix_support", "osx_support",
    /* pickles inside pickles */
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "dbm",
    /* files */
    "shutil", "tempfile", "fileinput", "linecache", "tarfile", "zipfile", "sqlite3", "logging.config", "logging.handlers",
    /* the network */
    "socket", "socketserver", "ssl", "select", "selectors", "http", "httplib", "urllib", "urllib2", "ftplib", "smtplib",
    "poplib", "imaplib", "nntplib", "telnetlib", "xmlrpc", "wsgiref", "webbrowser", "antigravity", "requests", "aiohttp",
    "httpx", "paramiko", "SocketServer", "BaseHTTPServer", "SimpleHTTPServer", "CGIHTTPServer", "SimpleXMLRPCServer",
    "DocXMLRPCServer", "xmlrpclib", "cookielib", /* the last seven: Python 2, which a loader renames */
    /* functions that reach other attributes or call other functions */
    "operator", "tkinter", "rlcompleter",
    /* the same inside torch and numpy */
    "torch.hub", "torch.serialization", "torch.package", "torch.jit", "torch.ops", "torch.classes", "torch.multiprocessing",
    "torch.distributed.rpc", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic",
    "torch.utils.cpp_extension", "torch.utils.model_zoo", "torch.utils.collect_env", "torch.utils.bottleneck",
    "torch.utils._config_module", "torch.utils.data.datapipes.utils.decoder", "torch._inductor", "torch._dynamo",
    "torch.fx.experimental", "torch.fx.graph_module",
    "numpy.f2py", "numpy.distutils", "numpy.testing", "numpy.ctypeslib",
};
/* clang-format on */

/* Single names of modules that are otherwise harmless. */
/* clang-format off */
static const struct {
    const char *module, *name;
} names[] = {
    {"io", "open"}, {"io", "open_code"}, {"io", "FileIO"}, {"_io", "open"}, {"_io", "open_code"}, {"_io", "FileIO"},
    {"functools", "partial"}, {"functools", "partialmethod"}, {"functools", "reduce"}, {"_functools", "partial"},
    {"_functools", "reduce"}, {"types", "CodeType"}, {"types", "FunctionType"}, {"types", "LambdaType"},
    {"types", "MethodType"}, {"types", "ModuleType"}, {"types", "BuiltinFunctionType"}, {"types", "FrameType"},
    {"logging", "FileHandler"}, {"codecs", "open"}, {"numpy", "load"}, {"numpy", "save"}, {"numpy", "fromfile"},
    {"numpy", "memmap"}, {"numpy", "loadtxt"}, {"numpy", "genfromtxt"}, {"pandas", "read_pickle"}, {"torch", "load"},
    {"torch", "save"}, {"torch", "compile"}, {"torch.storage", "_load_from_bytes"},
};
/* clang-format on */

/* Types of `builtins`, beside exceptions: everything else there is a function, or makes types. */
/* clang-format off */
static const char *const plain_types[] = {
    "object", "int", "float", "complex", "bool", "str", "bytes", "bytearray", "list", "tuple", "dict", "set", "frozenset",
    "slice", "range", "memoryview", "NoneType", "ellipsis", "Ellipsis", "NotImplemented", "NotImplementedType",
};
/* clang-format on */

static bool is_one_of(tsr_str text, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tsr_str_equal(text, tsr_str_from(list[i]))) return true;
    return false;
}
#define IS_ONE_OF(text, list) is_one_of(text, list, sizeof(list) / sizeof(list)[0])

/* Whether the module is a package of the list, or inside one. */
static bool in_package(tsr_str module)
{
    tsr_str bare = module;
    while (bare.size && bare.data[0] == '_') bare = tsr_str_after(bare, 1);
    for (size_t i = 0; i < sizeof packages / sizeof packages[0]; i++) {
        tsr_str package = tsr_str_from(packages[i]);
        if (tsr_str_starts(bare, package) && (bare.size == package.size || bare.data[package.size] == '.')) return true;
    }
    return false;
}

static bool is_plain_builtin(tsr_str name)
{
    return IS_ONE_OF(name, plain_types) || tsr_str_ends(name, TSR_STR("Error")) ||
           tsr_str_ends(name, TSR_STR("Exception")) || tsr_str_ends(name, TSR_STR("Warning")) ||
           tsr_str_ends(name, TSR_STR("Exit")) || tsr_str_ends(name, TSR_STR("Group")) ||
           tsr_str_equal(name, TSR_STR("KeyboardInterrupt")) || tsr_str_ends(name, TSR_STR("Iteration"));
}

/* A step of a dotted name that leads to Python's own machinery or to a module: `prod.__globals__`, `os.system` of
 * torch.serialization. The last step may be a function that is merely called like a module. */
static bool is_way_out(tsr_str step, bool last)
{
    static const char *const dangerous[] = {"os",     "sys",    "subprocess", "builtins", "importlib", "posix",
                                            "shutil", "socket", "ctypes",     "pickle",   "runpy",     "marshal"};
    if (tsr_str_starts(step, TSR_STR("__")) && tsr_str_ends(step, TSR_STR("__"))) return true;
    return last ? IS_ONE_OF(step, dangerous) : in_package(step) || tsr_str_equal(step, TSR_STR("builtins"));
}

bool tsr_name_is_dangerous(tsr_str module, tsr_str name)
{
    if (in_package(module)) return true;
    if (tsr_str_equal(module, TSR_STR("builtins")) || tsr_str_equal(module, TSR_STR("__builtins__")))
        return !is_plain_builtin(name);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (tsr_str_equal(module, tsr_str_from(names[i].module)) && tsr_str_equal(name, tsr_str_from(names[i].name)))
            return true;
    }
    for (size_t from = 0, to; from <= name.size; from = to + 1) {
        for (to = from; to < name.size && name.data[to] != '.'; to++) {
        }
        if (is_way_out((tsr_str){name.data + from, to - from}, to == name.size)) return true;
    }
    return false;
}

static bool pickle_is_dangerous(const tsr_pickle *pickle, tsr_ref global)
{
    return tsr_name_is_dangerous(tsr_pickle_module(pickle, global), tsr_pickle_name_of(pickle, global));
}

/* ---- verdict ---- */

static tsr_place place_of(const tsr_verdict *v, uint64_t position)
{
    return (tsr_place){
        v->file_name, position == TSR_NO_POSITION ? v->pickle_offset : v->pickle_offset + position, {NULL, 0}};
}

tsr_status tsr_verdict_call(const tsr_verdict *v, uint64_t position, tsr_str name, tsr_error *err)
{
    return tsr_finding_add(v->findings, "pickle/unlisted-call", place_of(v, position), err,
                           "loading this file with pickle would call %.*s", TSR_STR_ARG(name));
}

tsr_status tsr_verdict_call_of(const tsr_verdict *v, uint64_t position, tsr_ref callee, tsr_error *err)
{
    if (tsr_pickle_kind_of(v->pickle, callee) != TSR_PICKLE_GLOBAL)
        return tsr_verdict_call(v, position, TSR_STR("something that the pickle does not name as a global"), err);
    return tsr_finding_add(v->findings, "pickle/unlisted-call", place_of(v, position), err,
                           "loading this file with pickle would call %.*s.%.*s",
                           TSR_STR_ARG(tsr_pickle_module(v->pickle, callee)),
                           TSR_STR_ARG(tsr_pickle_name_of(v->pickle, callee)));
}

tsr_status tsr_verdict_member(const tsr_verdict *v, uint64_t position, tsr_ref class_, tsr_str name, tsr_error *err)
{
    const tsr_str module = tsr_pickle_module(v->pickle, class_), class_name = tsr_pickle_name_of(v->pickle, class_);
    const bool dangerous = tsr_name_is_dangerous(module, class_name) || tsr_name_is_dangerous(module, name);
    return tsr_finding_add(v->findings, "pickle/unlisted-call", place_of(v, position), err,
                           "loading this file with pickle would call builtins.getattr for '%.*s' of %.*s.%.*s%s",
                           TSR_STR_ARG(name), TSR_STR_ARG(module), TSR_STR_ARG(class_name),
                           dangerous ? "" : ", which may be a member of an enum");
}

static tsr_status find_missing(const tsr_verdict *v, uint64_t position, tsr_str module, tsr_str name, tsr_error *err)
{
    return tsr_finding_add(v->findings, "pickle/unloadable", place_of(v, position), err,
                           "loading this file with pickle fails: there is no '%.*s' in the module %.*s", TSR_STR_ARG(name),
                           TSR_STR_ARG(module));
}

/* dtypes, which every .metadata names: the list of names, which may be loaded on demand, is not needed for them. */
static bool is_usual(tsr_str module, tsr_str name)
{
    static const char *const dtypes[] = {"float32",   "bfloat16",   "float16",       "float64",    "int64",
                                         "int32",     "int16",      "int8",          "uint8",      "bool",
                                         "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"};
    if (!tsr_str_equal(module, TSR_STR("torch"))) return false;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(dtypes[i]))) return true;
    return false;
}

/* The number of bits in which a text differs from one of the same size. */
static unsigned bits_between(tsr_str text, tsr_str other)
{
    unsigned count = 0;
    for (size_t i = 0; i < text.size; i++)
        for (unsigned bits = (unsigned char)text.data[i] ^ (unsigned char)other.data[i]; bits; bits &= bits - 1) count++;
    return count;
}

static bool is_flipped(const tsr_verdict *v, tsr_str module, tsr_str name)
{
    for (size_t i = 0; i < v->listed_count; i++) {
        const tsr_str of_module = tsr_str_from(v->listed[i].module), of_name = tsr_str_from(v->listed[i].name);
        if (module.size == of_module.size && name.size == of_name.size &&
            bits_between(module, of_module) + bits_between(name, of_name) == 1)
            return true;
    }
    return false;
}

static tsr_status find_class(const tsr_verdict *v, uint64_t position, tsr_ref global, tsr_pickle_use use, tsr_error *err)
{
    const tsr_str module = tsr_pickle_module(v->pickle, global), name = tsr_pickle_name_of(v->pickle, global);
    const bool dangerous = pickle_is_dangerous(v->pickle, global), built = use == TSR_PICKLE_USE_BUILT;
    const bool nested =
        name.size && memchr(name.data, '.', name.size) && tsr_pickle_protocol(v->pickle) < 4; /* one name then */
    const bool usual = !built && !v->named && is_usual(module, name);
    if (!nested && !usual) TSR_TRY(tsr_host_load(v->host, err));
    tsr_name_state state = nested ? TSR_NAME_MISSING : usual ? TSR_NAME_EXISTS : tsr_name_state_of(module, name);
    if (!TSR_IS_SMALL && is_flipped(v, module, name)) state = TSR_NAME_MISSING;
    if (state == TSR_NAME_MISSING && !dangerous) return find_missing(v, position, module, name, err);
    const bool unchecked = state == TSR_NAME_UNCHECKED;
    tsr_level level = dangerous ? TSR_ERROR : built || unchecked ? TSR_WARNING : TSR_NOTE;
    if (!dangerous && !built && !v->named) return TSR_OK;
    return tsr_finding_add_at(v->findings, (tsr_rated_rule){"pickle/unlisted-class", level}, place_of(v, position), err,
                              "%s %.*s.%.*s, which %s%s", built ? "contains objects of" : "names", TSR_STR_ARG(module),
                              TSR_STR_ARG(name), dangerous ? "can do harm in any use" : "is not known to be harmless data",
                              unchecked && !dangerous ? "; whether it exists was not checked" : "");
}

tsr_status tsr_verdict_instance_of(const tsr_verdict *v, uint64_t position, tsr_ref global, tsr_error *err)
{
    return find_class(v, position, global, TSR_PICKLE_USE_BUILT, err);
}

tsr_status tsr_verdict_unloadable(const tsr_verdict *v, uint64_t position, const char *reason, tsr_error *err)
{
    return tsr_finding_add(v->findings, "pickle/unloadable", place_of(v, position), err,
                           "loading this file with pickle fails: %s", reason);
}

tsr_status tsr_verdict_unloadable_of(const tsr_verdict *v, uint64_t position, tsr_ref global, const char *reason,
                                     tsr_error *err)
{
    return tsr_finding_add(
        v->findings, "pickle/unloadable", place_of(v, position), err, "loading this file with pickle fails: %.*s.%.*s %s",
        TSR_STR_ARG(tsr_pickle_module(v->pickle, global)), TSR_STR_ARG(tsr_pickle_name_of(v->pickle, global)), reason);
}

tsr_status tsr_verdict_end(const tsr_verdict *v, uint64_t end, uint64_t size, tsr_error *err)
{
    if (end >= size) return TSR_OK;
    return tsr_finding_add(v->findings, "pickle/trailing-bytes", place_of(v, end), err,
                           "%llu bytes follow the last byte that PyTorch reads", (unsigned long long)(size - end));
}

typedef struct walk {
    const tsr_verdict *verdict;
    tsr_error *err;
    tsr_status status;
} walk;

static void judge_global(void *ctx, tsr_ref global, tsr_pickle_use use)
{
    walk *w = ctx;
    const tsr_verdict *v = w->verdict;
    uint64_t position = tsr_pickle_position(v->pickle, global);
    if (w->status != TSR_OK) return;
    bool data = use != TSR_PICKLE_USE_CALLED && v->is_data && v->is_data(v->pickle, global);
    if (data && use == TSR_PICKLE_USE_BUILT)
        w->status = tsr_verdict_unloadable(v, position, "something that is not a class has instances", w->err);
    if (data) return;
    w->status = use == TSR_PICKLE_USE_CALLED ? tsr_verdict_call_of(v, position, global, w->err)
                                             : find_class(v, position, global, use, w->err);
}

static tsr_status judge_oddity(const tsr_verdict *v, const tsr_pickle_oddity *odd, tsr_error *err)
{
    switch (odd->kind) {
    case TSR_PICKLE_ODD_CALL:
        if (odd->ref && v->is_class && v->is_class(v->pickle, odd->ref)) return TSR_OK;
        return tsr_verdict_call_of(v, odd->position, odd->ref, err);
    case TSR_PICKLE_ODD_BUILD:
        return tsr_verdict_call(v, odd->position,
                                TSR_STR("__setstate__, or set attributes, of an object that the pickle did not make"), err);
    case TSR_PICKLE_ODD_ITEMS:
        return tsr_verdict_call(v, odd->position, TSR_STR("__setitem__ or append of an object that the pickle did not make"),
                                err);
    case TSR_PICKLE_ODD_AGAIN:
        return tsr_verdict_call(v, odd->position,
                                TSR_STR("__setstate__, append, extend or add of an object whose state may have replaced it"),
                                err);
    case TSR_PICKLE_ODD_KEY:
        return tsr_verdict_unloadable(v, odd->position, "a key of a dict, or an item of a set, cannot be hashed", err);
    case TSR_PICKLE_ODD_STRING:
        return tsr_verdict_unloadable(v, odd->position,
                                      "a string of Python 2 is not UTF-8 (torch.load needs encoding='latin1')", err);
    default:
        if (v->persistent) return v->persistent(v, odd, err);
        return tsr_verdict_unloadable(v, odd->position, "it has a persistent id, which cannot be resolved", err);
    }
}

tsr_status tsr_verdict_on_pickle(const tsr_verdict *v, tsr_error *err)
{
    walk w = {v, err, TSR_OK};
    tsr_pickle_unknown(v->pickle, judge_global, &w);
    size_t count;
    const tsr_pickle_oddity *odd = tsr_pickle_oddities(v->pickle, &count);
    for (size_t i = 0; i < count && w.status == TSR_OK; i++) w.status = judge_oddity(v, &odd[i], err);
    return w.status;
}
