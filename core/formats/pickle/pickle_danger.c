/* Globals that do not belong in a checkpoint even if they are only named: naming one imports its module, an instance made
 * without __init__ can still act when its state is set or when it is destroyed, and a function passed as an argument may
 * be called by the function that receives it. */
#include "formats/pickle/pickle_verdict.h"

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
    while (bare.size && bare.data[0] == '_') bare = (tsr_str){bare.data + 1, bare.size - 1};
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
    static const char *const modules[] = {"os",     "sys",    "subprocess", "builtins", "importlib", "posix",
                                          "shutil", "socket", "ctypes",     "pickle",   "runpy",     "marshal"};
    if (tsr_str_starts(step, TSR_STR("__")) && tsr_str_ends(step, TSR_STR("__"))) return true;
    return last ? IS_ONE_OF(step, modules) : in_package(step) || tsr_str_equal(step, TSR_STR("builtins"));
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

bool tsr_pickle_is_dangerous(const tsr_pickle *pickle, tsr_ref global)
{
    return tsr_name_is_dangerous(tsr_pickle_module(pickle, global), tsr_pickle_name_of(pickle, global));
}
