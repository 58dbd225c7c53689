/* The allowlist of torch.save files. Sources: torch/_weights_only_unpickler.py, torch/_utils.py, torch/_tensor.py,
 * torch/distributed/tensor, torch/distributed/_shard of PyTorch 2.13, and where older versions kept the same classes. */
#include "formats/pickle/torch_names.h"

#include "formats/pickle/pickle_verdict.h"
#include "tessera/sys/catalog.h"

#define DTENSOR_MODULES(name, id) \
    {"torch.distributed.tensor", name, id}, {"torch.distributed.tensor._api", name, id}, \
        {"torch.distributed._tensor", name, id}, \
    { \
        "torch.distributed._tensor.api", name, id \
    }

#define SPEC_MODULES(name, id) \
    {"torch.distributed.tensor._dtensor_spec", name, id}, {"torch.distributed._tensor._dtensor_spec", name, id}, \
    { \
        "torch.distributed._tensor.placement_types", name, id \
    }

#define PLACEMENT_MODULES(name, id) \
    {"torch.distributed.tensor.placement_types", name, id}, \
    { \
        "torch.distributed._tensor.placement_types", name, id \
    }

#define NUMPY_MODULES(module, name, id) \
    {"numpy.core." module, name, id}, \
    { \
        "numpy._core." module, name, id \
    }

#define UNHASHABLE TSR_PICKLE_UNHASHABLE

static const tsr_pickle_name names[] = {
    {"builtins", "getattr", TSR_TORCH_GETATTR},
    {"copyreg", "_reconstructor", TSR_TORCH_RECONSTRUCTOR},
    {"builtins", "object", TSR_TORCH_LISTED},
    {"builtins", "dict", TSR_TORCH_PLAIN_DICT | UNHASHABLE},
    {"builtins", "list", TSR_TORCH_LISTED | UNHASHABLE},
    {"builtins", "tuple", TSR_TORCH_LISTED},
    {"builtins", "int", TSR_TORCH_LISTED},
    {"builtins", "float", TSR_TORCH_LISTED},
    {"builtins", "str", TSR_TORCH_LISTED},
    {"builtins", "bool", TSR_TORCH_LISTED},
    {"builtins", "slice", TSR_TORCH_LISTED},
    {"builtins", "range", TSR_TORCH_LISTED},
    {"builtins", "set", TSR_TORCH_SET | UNHASHABLE},
    {"builtins", "frozenset", TSR_TORCH_SET},
    {"builtins", "complex", TSR_TORCH_COMPLEX},
    {"builtins", "bytes", TSR_TORCH_BYTES},
    {"builtins", "bytearray", TSR_TORCH_BYTES | UNHASHABLE},
    {"_codecs", "encode", TSR_TORCH_ENCODE},
    {"collections", "OrderedDict", TSR_TORCH_ORDERED_DICT | UNHASHABLE},
    {"collections", "defaultdict", TSR_TORCH_DEFAULT_DICT | UNHASHABLE},
    {"collections", "Counter", TSR_TORCH_PLAIN_DICT | UNHASHABLE},
    {"collections", "deque", TSR_TORCH_LISTED | UNHASHABLE},
    {"datetime", "date", TSR_TORCH_LISTED},
    {"datetime", "datetime", TSR_TORCH_LISTED},
    {"datetime", "time", TSR_TORCH_LISTED},
    {"datetime", "timedelta", TSR_TORCH_LISTED},
    {"datetime", "timezone", TSR_TORCH_LISTED},
    {"pathlib", "Path", TSR_TORCH_LISTED},
    {"pathlib", "PosixPath", TSR_TORCH_LISTED},
    {"pathlib", "PurePath", TSR_TORCH_LISTED},
    {"pathlib", "PurePosixPath", TSR_TORCH_LISTED},
    {"pathlib", "WindowsPath", TSR_TORCH_LISTED},
    {"pathlib", "PureWindowsPath", TSR_TORCH_LISTED},
    {"pathlib._local", "PosixPath", TSR_TORCH_LISTED},
    {"pathlib._local", "WindowsPath", TSR_TORCH_LISTED},
    {"_io", "BytesIO", TSR_TORCH_LISTED},
    {"_io", "StringIO", TSR_TORCH_LISTED},
    {"argparse", "Namespace", TSR_TORCH_LISTED | UNHASHABLE},
    {"array", "array", TSR_TORCH_LISTED | UNHASHABLE},
    {"array", "_array_reconstructor", TSR_TORCH_FUNCTION | UNHASHABLE},
    {"collections", "ChainMap", TSR_TORCH_LISTED | UNHASHABLE},
    {"collections", "UserDict", TSR_TORCH_LISTED | UNHASHABLE},
    {"collections", "UserList", TSR_TORCH_LISTED | UNHASHABLE},
    {"collections", "UserString", TSR_TORCH_LISTED},
    {"UserDict", "IterableUserDict", TSR_TORCH_LISTED | UNHASHABLE}, /* up to protocol 2, under Python 2's names */
    {"UserDict", "UserDict", TSR_TORCH_LISTED | UNHASHABLE},
    {"UserList", "UserList", TSR_TORCH_LISTED | UNHASHABLE},
    {"UserString", "UserString", TSR_TORCH_LISTED},
    {"zoneinfo", "ZoneInfo", TSR_TORCH_LISTED},
    {"torch.torch_version", "TorchVersion", TSR_TORCH_LISTED},
    {"torch", "OutOfMemoryError", TSR_TORCH_LISTED},
    {"numpy", "ndarray", TSR_TORCH_LISTED | UNHASHABLE},
    {"numpy", "dtype", TSR_TORCH_LISTED},
    NUMPY_MODULES("multiarray", "_reconstruct", TSR_TORCH_FUNCTION | UNHASHABLE),
    NUMPY_MODULES("multiarray", "scalar", TSR_TORCH_FUNCTION),
    NUMPY_MODULES("numeric", "_frombuffer", TSR_TORCH_FUNCTION | UNHASHABLE),
    {"numpy._core._internal", "_convert_to_stringdtype_kwargs", TSR_TORCH_FUNCTION},
    {"numpy", "matrix", TSR_TORCH_LISTED | UNHASHABLE},
    {"numpy", "record", TSR_TORCH_LISTED},
    {"numpy", "recarray", TSR_TORCH_LISTED | UNHASHABLE},
    {"numpy.rec", "recarray", TSR_TORCH_LISTED | UNHASHABLE},
    {"numpy.ma", "MaskedArray", TSR_TORCH_LISTED | UNHASHABLE},
    {"numpy.ma.core", "MaskedArray", TSR_TORCH_LISTED | UNHASHABLE},
    {"numpy.ma.core", "MaskedConstant", TSR_TORCH_LISTED | UNHASHABLE},
    {"numpy.ma.core", "_mareconstruct", TSR_TORCH_FUNCTION | UNHASHABLE},
    {"numpy.random._pickle", "__bit_generator_ctor", TSR_TORCH_FUNCTION},
    {"numpy.random._pickle", "__generator_ctor", TSR_TORCH_FUNCTION},
    {"numpy.random._pickle", "__randomstate_ctor", TSR_TORCH_FUNCTION},
    {"numpy.random.bit_generator", "__pyx_unpickle_SeedSequence", TSR_TORCH_FUNCTION},
    {"numpy.random.bit_generator", "SeedSequence", TSR_TORCH_LISTED},
    {"numpy.random._pcg64", "PCG64", TSR_TORCH_LISTED},
    {"numpy.random._pcg64", "PCG64DXSM", TSR_TORCH_LISTED},
    {"numpy.random._mt19937", "MT19937", TSR_TORCH_LISTED},
    {"numpy.random._philox", "Philox", TSR_TORCH_LISTED},
    {"numpy.random._sfc64", "SFC64", TSR_TORCH_LISTED},
    {"decimal", "Decimal", TSR_TORCH_LISTED},
    {"functools", "partial", TSR_TORCH_PARTIAL_CALL},
    {"ipaddress", "IPv4Address", TSR_TORCH_LISTED},
    {"ipaddress", "IPv6Address", TSR_TORCH_LISTED},
    {"ipaddress", "IPv4Network", TSR_TORCH_LISTED},
    {"ipaddress", "IPv6Network", TSR_TORCH_LISTED},
    {"ipaddress", "IPv4Interface", TSR_TORCH_LISTED},
    {"ipaddress", "IPv6Interface", TSR_TORCH_LISTED},
    {"itertools", "count", TSR_TORCH_LISTED},
    {"logging", "getLogger", TSR_TORCH_FUNCTION},
    {"random", "Random", TSR_TORCH_LISTED},
    {"re", "_compile", TSR_TORCH_FUNCTION},
    {"time", "struct_time", TSR_TORCH_LISTED},
    {"fractions", "Fraction", TSR_TORCH_LISTED},
    {"uuid", "UUID", TSR_TORCH_LISTED},
    {"types", "SimpleNamespace", TSR_TORCH_LISTED | UNHASHABLE},
    {"torch", "Size", TSR_TORCH_SIZE},
    {"torch", "device", TSR_TORCH_DEVICE},
    {"torch.serialization", "_get_layout", TSR_TORCH_LAYOUT},
    {"torch", "per_tensor_affine", TSR_TORCH_QSCHEME},
    {"torch", "per_tensor_symmetric", TSR_TORCH_QSCHEME},
    {"torch", "per_channel_affine", TSR_TORCH_QSCHEME},
    {"torch", "per_channel_symmetric", TSR_TORCH_QSCHEME},
    {"torch", "per_channel_affine_float_qparams", TSR_TORCH_QSCHEME},
    {"torch", "Tensor", TSR_TORCH_TENSOR},
    {"torch", "DoubleTensor", TSR_TORCH_TENSOR},
    {"torch", "FloatTensor", TSR_TORCH_TENSOR},
    {"torch", "HalfTensor", TSR_TORCH_TENSOR},
    {"torch", "BFloat16Tensor", TSR_TORCH_TENSOR},
    {"torch", "LongTensor", TSR_TORCH_TENSOR},
    {"torch", "IntTensor", TSR_TORCH_TENSOR},
    {"torch", "ShortTensor", TSR_TORCH_TENSOR},
    {"torch", "CharTensor", TSR_TORCH_TENSOR},
    {"torch", "ByteTensor", TSR_TORCH_TENSOR},
    {"torch", "BoolTensor", TSR_TORCH_TENSOR},
    {"torch.autograd.variable", "Variable", TSR_TORCH_TENSOR},
    {"torch.nn.parameter", "Parameter", TSR_TORCH_PARAMETER},
    {"torch.nn.parameter", "Buffer", TSR_TORCH_TENSOR},
    {"torch.nn.parameter", "UninitializedParameter", TSR_TORCH_LISTED}, /* of a lazy module before its first input */
    {"torch.nn.parameter", "UninitializedBuffer", TSR_TORCH_LISTED},
    {"torch._C", "Generator", TSR_TORCH_LISTED},
    {"torch._utils", "_rebuild_tensor", TSR_TORCH_REBUILD_TENSOR},
    {"torch._utils", "_rebuild_tensor_v2", TSR_TORCH_REBUILD_TENSOR},
    {"torch._utils", "_rebuild_tensor_v3", TSR_TORCH_REBUILD_TENSOR_V3},
    {"torch._utils", "_rebuild_parameter", TSR_TORCH_REBUILD_PARAMETER},
    {"torch._utils", "_rebuild_parameter_with_state", TSR_TORCH_REBUILD_PARAMETER},
    {"torch._utils", "_rebuild_qtensor", TSR_TORCH_REBUILD_QUANTIZED},
    {"torch._utils", "_rebuild_sparse_tensor", TSR_TORCH_REBUILD_SPARSE},
    {"torch._utils", "_rebuild_nested_tensor", TSR_TORCH_REBUILD_NESTED},
    {"torch.nested._internal.nested_tensor", "_rebuild_njt", TSR_TORCH_REBUILD_JAGGED},
    {"torch.nested._internal.nested_tensor", "NestedTensor", TSR_TORCH_LISTED},
    {"torch._dynamo.decorators", "_DimRange", TSR_TORCH_LISTED},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", TSR_TORCH_REBUILD_META},
    {"torch._utils", "_rebuild_wrapper_subclass", TSR_TORCH_REBUILD_WRAPPER},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", TSR_TORCH_REBUILD_DEVICE},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", TSR_TORCH_REBUILD_DEVICE},
    {"torch._utils", "_rebuild_xla_tensor", TSR_TORCH_REBUILD_DEVICE},
    {"torch._tensor", "_rebuild_from_type", TSR_TORCH_REBUILD_FROM_TYPE},
    {"torch._tensor", "_rebuild_from_type_v2", TSR_TORCH_REBUILD_FROM_TYPE},
    {"torch.tensor", "_rebuild_from_type", TSR_TORCH_REBUILD_FROM_TYPE},
    DTENSOR_MODULES("DTensor", TSR_TORCH_DTENSOR),
    SPEC_MODULES("DTensorSpec", TSR_TORCH_LISTED),
    SPEC_MODULES("TensorMeta", TSR_TORCH_LISTED),
    {"torch.distributed.tensor._dtensor_spec", "ShardOrderEntry", TSR_TORCH_LISTED},
    {"torch.distributed.device_mesh", "DeviceMesh", TSR_TORCH_LISTED},
    {"torch.distributed._tensor.device_mesh", "DeviceMesh", TSR_TORCH_LISTED},
    {"torch.distributed._mesh_layout", "_MeshLayout", TSR_TORCH_LISTED},
    {"torch.distributed._mesh_layout", "_FlatLayout", TSR_TORCH_LISTED},
    PLACEMENT_MODULES("Shard", TSR_TORCH_SHARD),
    PLACEMENT_MODULES("_StridedShard", TSR_TORCH_STRIDED_SHARD),
    PLACEMENT_MODULES("Replicate", TSR_TORCH_REPLICATE),
    PLACEMENT_MODULES("Partial", TSR_TORCH_PARTIAL),
    PLACEMENT_MODULES("_Partial", TSR_TORCH_PARTIAL),
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor", TSR_TORCH_SHARDED_TENSOR},
    {"torch.distributed._shard.sharded_tensor.shard", "Shard", TSR_TORCH_LISTED},
    {"torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata", TSR_TORCH_LISTED},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", TSR_TORCH_LISTED},
    {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", TSR_TORCH_LISTED},
    {"torch.distributed._shard.metadata", "ShardMetadata", TSR_TORCH_LISTED},
    {"torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec", TSR_TORCH_LISTED},
    {"torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec", TSR_TORCH_LISTED},
    {"torch.distributed.remote_device", "_remote_device", TSR_TORCH_LISTED},
    {"torch.distributed.distributed_c10d", "ReduceOp", TSR_TORCH_LISTED},
    {"torch._C._distributed_c10d", "ReduceOp", TSR_TORCH_LISTED},
    {"torch._C._distributed_c10d", "ReduceOp.RedOpType", TSR_TORCH_LISTED},
};

/* What `getattr` may be asked for: a nested class up to protocol 3, and the members of an enum as Python 3.11 pickles them. */
static const struct {
    const char *class_name, *attribute;
} attributes[] = {
    {"ShardedTensor", "ProcessGroupState"},
    {"ReduceOp", "RedOpType"},
    {"ZoneInfo", "_unpickle"},
    {"MEM_FORMAT_ENCODING", "TORCH_CONTIGUOUS_FORMAT"},
    {"MEM_FORMAT_ENCODING", "TORCH_CHANNELS_LAST"},
    {"MEM_FORMAT_ENCODING", "TORCH_PRESERVE_FORMAT"},
};

bool tsr_torch_is_attribute(const tsr_pickle *pickle, tsr_ref class_, tsr_ref name)
{
    if (tsr_pickle_id(pickle, class_) == TSR_TORCH_ENUM) return tsr_enum_is_member(pickle, name);
    if (tsr_pickle_id(pickle, class_) == 0 || tsr_pickle_kind_of(pickle, name) != TSR_PICKLE_STR) return false;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        if (tsr_str_equal(tsr_pickle_name_of(pickle, class_), tsr_str_from(attributes[i].class_name)) &&
            tsr_str_equal(tsr_pickle_text(pickle, name), tsr_str_from(attributes[i].attribute)))
            return true;
    }
    return false;
}

/* How many items each tuple of torch.return_types has. Its pickle may hold one argument more, a dict of further
 * attributes. */
size_t tsr_torch_return_size(tsr_str name)
{
    static const struct {
        size_t size;
        const char *names; /* each between spaces; most exist with the suffix `_out`, too */
    } rows[] = {
        {2,
         " _attr _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper _linalg_eigh "
         "_scaled_dot_product_flash_attention_for_cpu _unpack_dual aminmax cummax cummin frexp geqrf histogram histogramdd "
         "kthvalue linalg_cholesky_ex linalg_eig linalg_eigh linalg_inv_ex linalg_ldl_factor linalg_lu_factor linalg_qr "
         "linalg_slogdet linalg_solve_ex max median min mode nanmedian qr slogdet sort topk triangular_solve "},
        {3,
         " _linalg_det _linalg_svd _lu_with_info linalg_ldl_factor_ex linalg_lu linalg_lu_factor_ex linalg_svd lu_unpack svd "},
        {4, " _linalg_slogdet _linalg_solve_ex _scaled_dot_product_efficient_attention linalg_lstsq "},
        {9, " _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention "},
    };
    if (tsr_str_ends(name, TSR_STR("_out"))) name.size -= 4;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (const char *at = rows[i].names + 1; *at; at += strcspn(at, " ") + 1)
            if (tsr_str_equal(name, (tsr_str){at, strcspn(at, " ")})) return rows[i].size;
    }
    return 0;
}

/* Python's own exceptions, which up to protocol 2 are in Python 2's module. */
static bool is_exception(tsr_str module, tsr_str name)
{
    static const char exceptions[] =
        " ArithmeticError AssertionError AttributeError BaseException BaseExceptionGroup BlockingIOError BrokenPipeError "
        "BufferError BytesWarning ChildProcessError ConnectionAbortedError ConnectionError ConnectionRefusedError "
        "ConnectionResetError DeprecationWarning EOFError EncodingWarning EnvironmentError Exception ExceptionGroup "
        "FileExistsError FileNotFoundError FloatingPointError FutureWarning GeneratorExit IOError ImportError ImportWarning "
        "IndentationError IndexError InterruptedError IsADirectoryError KeyError KeyboardInterrupt LookupError MemoryError "
        "ModuleNotFoundError NameError NotADirectoryError NotImplementedError OSError OverflowError "
        "PendingDeprecationWarning PermissionError ProcessLookupError RecursionError ReferenceError ResourceWarning "
        "RuntimeError RuntimeWarning StandardError StopAsyncIteration StopIteration SyntaxError SyntaxWarning SystemError "
        "SystemExit TabError TimeoutError TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError UnicodeError "
        "UnicodeTranslateError UnicodeWarning UserWarning ValueError Warning ZeroDivisionError ";
    if (!tsr_str_equal(module, TSR_STR("builtins")) && !tsr_str_equal(module, TSR_STR("exceptions"))) return false;
    for (const char *at = exceptions + 1; *at; at += strcspn(at, " ") + 1)
        if (tsr_str_equal(name, (tsr_str){at, strcspn(at, " ")})) return true;
    return false;
}

static uint32_t other_id(tsr_str module, tsr_str name)
{
    if (is_exception(module, name)) return TSR_TORCH_LISTED;
    if (tsr_str_equal(module, TSR_STR("torch.return_types"))) return tsr_torch_return_size(name) ? TSR_TORCH_RETURN_TYPE : 0;
    return tsr_enum_is_listed(module, name) ? TSR_TORCH_ENUM : 0;
}

const tsr_pickle_sink tsr_torch_names = {.names = names, .count = sizeof names / sizeof names[0], .other = other_id};

static bool in_torch(const tsr_pickle *pickle, tsr_ref global)
{
    return tsr_pickle_kind_of(pickle, global) == TSR_PICKLE_GLOBAL &&
           tsr_str_equal(tsr_pickle_module(pickle, global), TSR_STR("torch"));
}

tsr_dtype tsr_torch_dtype(const tsr_pickle *pickle, tsr_ref global)
{
    return in_torch(pickle, global) ? tsr_dtype_from_name(tsr_pickle_name_of(pickle, global)) : TSR_DTYPE_NONE;
}

bool tsr_torch_is_untyped(const tsr_pickle *pickle, tsr_ref global)
{
    const tsr_str name = tsr_pickle_name_of(pickle, global);
    return tsr_str_equal(name, TSR_STR("UntypedStorage")) || tsr_str_equal(name, TSR_STR("_UntypedStorage"));
}

tsr_dtype tsr_torch_storage_dtype(const tsr_pickle *pickle, tsr_ref global)
{
    bool known = in_torch(pickle, global);
    if (!known && tsr_pickle_kind_of(pickle, global) == TSR_PICKLE_GLOBAL) {
        tsr_str module = tsr_pickle_module(pickle, global);
        known = tsr_str_equal(module, TSR_STR("torch.storage")) || tsr_str_equal(module, TSR_STR("torch.cuda"));
    }
    if (!known) return TSR_DTYPE_NONE;
    return tsr_torch_is_untyped(pickle, global) ? TSR_UINT8
                                                : tsr_dtype_from_storage_class(tsr_pickle_name_of(pickle, global));
}

/* ---- enum names ---- */

/* Which (module, class) pairs are enums whose members are data. */

static const struct {
    const char *module, *classes; /* classes are separated by spaces */
} modules[] = {
/* in byte order */
#include "formats/pickle/enum_table.h"
};

/* Whether `word` is one of the words of `words`. */
static bool has_word(const char *words, tsr_str word)
{
    while (*words) {
        const size_t size = strcspn(words, " ");
        if (tsr_str_equal((tsr_str){words, size}, word)) return true;
        words += size + (words[size] == ' ');
    }
    return false;
}

bool tsr_enum_is_listed(tsr_str module, tsr_str name)
{
    size_t low = 0, high = sizeof modules / sizeof modules[0];
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = tsr_str_compare(module, tsr_str_from(modules[middle].module));
        if (order == 0) return has_word(modules[middle].classes, name);
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return false;
}

/* What stands before the last dot, and after it. */
static bool split(tsr_str dotted, tsr_str *before, tsr_str *after)
{
    size_t dot = dotted.size;
    while (dot > 0 && dotted.data[dot - 1] != '.') dot--;
    if (dot < 2) return false;
    *before = (tsr_str){dotted.data, dot - 1};
    *after = tsr_str_after(dotted, dot);
    return true;
}

bool tsr_enum_is_class(tsr_str dotted)
{
    tsr_str module, name;
    return split(dotted, &module, &name) && tsr_enum_is_listed(module, name);
}

bool tsr_enum_is_member(const tsr_pickle *pickle, tsr_ref ref)
{
    const tsr_str name = tsr_pickle_text(pickle, ref);
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_STR) return false;
    if (name.size == 0 || tsr_is_digit(name.data[0])) return false;
    if (name.data[0] == '_' && name.data[name.size - 1] == '_') return false;
    for (size_t i = 0; i < name.size; i++) {
        const char c = name.data[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && !tsr_is_digit(c)) return false;
    }
    return true;
}

bool tsr_enum_is_plain(tsr_pickle_kind kind)
{
    switch (kind) {
    case TSR_PICKLE_NONE:
    case TSR_PICKLE_BOOL:
    case TSR_PICKLE_INT:
    case TSR_PICKLE_FLOAT:
    case TSR_PICKLE_STR: return true;
    default: return false;
    }
}

const tsr_value *tsr_enum_value(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_OBJECT || !value->called || value->count != 1) return NULL;
    const tsr_value *arguments = value->items[0];
    if (arguments->kind != TSR_VALUE_TUPLE || arguments->count != 1 || !tsr_enum_is_class(value->text)) return NULL;
    switch (arguments->items[0]->kind) {
    case TSR_VALUE_NONE:
    case TSR_VALUE_BOOL:
    case TSR_VALUE_INT:
    case TSR_VALUE_FLOAT:
    case TSR_VALUE_STR: return arguments->items[0];
    default: return NULL;
    }
}

tsr_str tsr_enum_named(const tsr_value *value)
{
    tsr_str class_name, member;
    if (value->kind != TSR_VALUE_GLOBAL || !split(value->text, &class_name, &member)) return (tsr_str){NULL, 0};
    return tsr_enum_is_class(class_name) ? class_name : (tsr_str){NULL, 0};
}

tsr_str tsr_enum_picked(const tsr_value *object)
{
    const tsr_str none = {NULL, 0};
    const tsr_value *args = object->count ? object->items[0] : NULL;
    if (!tsr_str_equal(object->text, TSR_STR("builtins.getattr"))) return none;
    if (!args || args->kind != TSR_VALUE_TUPLE || args->count < 2) return none;
    const tsr_value *class_ = args->items[0], *member = args->items[1];
    tsr_str module, name;
    if (class_->kind != TSR_VALUE_GLOBAL || !split(class_->text, &module, &name) || !name.size) return none;
    if (member->kind != TSR_VALUE_STR || member->text.size == 0 || member->text.data[0] == '_') return none;
    return tsr_name_is_dangerous(module, name) || tsr_name_is_dangerous(module, member->text) ? none : class_->text;
}
