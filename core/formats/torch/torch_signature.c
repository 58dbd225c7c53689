/* A signature is one word per argument: the letters of the kinds that it may be of, with '?' before the first that may be
 * absent, and '*' behind the last when there may be more of it. '/' separates alternatives.
 *
 *   N None  B bool  I int  J int beyond 64 bits  F float  S str  Y bytes  L list  T tuple  D dict  E set  G global
 *   O object  P persistent id  A any of these
 *   n a str that is a number  i a tuple or list of ints  d a str that names a device  m an int from 0 to 2
 *
 * Source: torch/_utils.py, torch/_tensor.py of PyTorch 2.13, the constructors of CPython 3.11 and numpy 2. */
#include "formats/torch/torch_signature.h"

static const struct {
    const char *name, *signature;
} signatures[] = {
    {"OrderedDict", "?LTDEO"},
    {"_rebuild_tensor_v2", "P I LTO LTON B A ?DN"},
    {"_rebuild_parameter", "ON B A"},
    {"_rebuild_tensor", "P I LTO LTON"},
    {"_rebuild_tensor_v3", "P I LTO LTON B A GN ?DN"},
    {"_rebuild_parameter_with_state", "ON B A DNTO"},
    {"_rebuild_qtensor", "P I LTO LTO T B A"},
    {"_rebuild_sparse_tensor", "O LTO"},
    {"_rebuild_nested_tensor", "O O O O"},
    {"_rebuild_meta_tensor_no_storage", "G iO iO B"},
    {"_rebuild_wrapper_subclass", "GO G LTO LTO IO O O B"},
    {"_rebuild_device_tensor_from_cpu_tensor", "O G SO B"},
    {"_rebuild_device_tensor_from_numpy", "O G SO B"},
    {"_rebuild_xla_tensor", "O G SO B"},
    {"_rebuild_from_type", "GO GO T DO"},
    {"_rebuild_from_type_v2", "GO GO TO A"},
    {"_rebuild_njt", "DO"},
    {"_reconstructor", "G G A"},
    {"Size", "?iO"},
    {"device", "d ?I/IO"},
    {"_reconstruct", "G LTO SYO"},
    {"scalar", "O ?A"},
    {"_frombuffer", "A A A A ?A"},
    {"dtype", "SGOLDT ?BI ?BI ?D"},
    {"object", ""},
    {"int", "?IJFBnYO ?I"},
    {"float", "?IJFBnYO"},
    {"str", "?A ?S ?S"},
    {"bool", "?A"},
    {"complex", "?IJFBnO ?IJFBO"},
    {"list", "?LTDESYO"},
    {"tuple", "?LTDESYO"},
    {"set", "?LTDESYO"},
    {"frozenset", "?LTDESYO"},
    {"dict", "?LTDO"},
    {"bytes", "?iEIBYO/S S ?S"},
    {"bytearray", "?iEIBYO/S S ?S"},
    {"slice", "A ?A ?A"},
    {"range", "IJBO ?IJBO ?IJBO"},
    {"Counter", "?LTDESYNO"},
    {"deque", "?LTDESYO ?IN"},
    {"defaultdict", "?GNO ?LTDO"},
    {"date", "I I I/YSO"},
    {"datetime", "I I I ?I ?I ?I ?I ?ON/YSO ?O"},
    {"time", "?I ?I ?I ?I ?ON/YSO ?O"},
    {"timedelta", "?IFBO*"},
    {"timezone", "O ?S"},
    {"Path", "?SO*"},
    {"PosixPath", "?SO*"},
    {"WindowsPath", "?SO*"},
    {"PurePath", "?SO*"},
    {"PurePosixPath", "?SO*"},
    {"PureWindowsPath", "?SO*"},
    {"Parameter", "?ON ?B"},
    {"Buffer", "?ON ?B"},
    {"Variable", "?ON ?B ?B"},
    {"UninitializedParameter", "?B"},
    {"UninitializedBuffer", "?B"},
    {"Generator", "?dO"},
    {"DTensor", "O O B"},
    {"DeviceMesh", "SO LTO"},
    {"Shard", "IO"},
    {"Replicate", ""},
    {"ndarray", "LTIO ?A*"},
    {"MEM_FORMAT_ENCODING", "m"},
    {"_remote_device", "SO"},
    {"_DimRange", "A A A"},
};

/* The same of the items of the tuple that is an argument: a quantizer, and the parts of a sparse tensor. */
static const struct {
    const char *name, *signature;
    size_t at;
} tuples[] = {
    {"_rebuild_qtensor", "G FIO IO/G O O I", 4},
    {"_rebuild_sparse_tensor", "O O iO ?BN/O O O iO", 1},
};

/* The same of the items of a tuple that BUILD gives to what a function or class of the name has made. */
static const struct {
    const char *name, *signature;
} states[] = {
    {"_reconstruct", "I LT O BI LYO/LT O BI LYO"},
    {"ndarray", "I LT O BI LYO/LT O BI LYO"},
    {"dtype", "I SY NTL NTL ND I I ?I ?A"},
};

bool tsr_torch_is_device(const tsr_pickle *pickle, tsr_ref ref)
{
    static const char *const types[] = {"cuda", "meta", "mps", "xpu", "hpu", "xla", "npu", "mtia", "maia", "ipu", "privateuseone",
                                        "hip",  "vulkan", "lazy", "ve", "fpga", "mkldnn", "mlu", "musa", "gcu", "sdaa", "rbln"};
    tsr_str text = tsr_pickle_text(pickle, ref);
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_STR) return false;
    if (tsr_str_equal(text, TSR_STR("cpu"))) return true;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        size_t size = strlen(types[i]);
        if (tsr_str_starts(text, tsr_str_from(types[i])) && (text.size == size || text.data[size] == ':')) return true;
    }
    return false;
}

static bool is_number(tsr_str text)
{
    bool digits = false;
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] >= '0' && text.data[i] <= '9') digits = true;
        else if (!text.data[i] || !strchr("+-._eEjinfaNIF ", text.data[i])) return false;
    }
    return digits;
}

static bool is_ints(const tsr_pickle *pickle, tsr_ref ref)
{
    size_t count;
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    const tsr_ref *items = tsr_pickle_items(pickle, ref, &count);
    for (size_t i = 0; i < count; i++) {
        tsr_pickle_kind item = tsr_pickle_kind_of(pickle, items[i]);
        if (item != TSR_PICKLE_INT && item != TSR_PICKLE_BOOL && item != TSR_PICKLE_OBJECT) return false;
    }
    return kind == TSR_PICKLE_TUPLE || kind == TSR_PICKLE_LIST;
}

static bool is_letter(const tsr_pickle *pickle, tsr_ref ref, char letter)
{
    static const char letters[] = {[TSR_PICKLE_NONE] = 'N',  [TSR_PICKLE_BOOL] = 'B',   [TSR_PICKLE_INT] = 'I',
                                   [TSR_PICKLE_BIGINT] = 'J', [TSR_PICKLE_FLOAT] = 'F', [TSR_PICKLE_STR] = 'S',
                                   [TSR_PICKLE_BYTES] = 'Y', [TSR_PICKLE_LIST] = 'L',   [TSR_PICKLE_TUPLE] = 'T',
                                   [TSR_PICKLE_DICT] = 'D',  [TSR_PICKLE_SET] = 'E',    [TSR_PICKLE_GLOBAL] = 'G',
                                   [TSR_PICKLE_OBJECT] = 'O', [TSR_PICKLE_PERSISTENT] = 'P', [TSR_PICKLE_FOLDED] = 'O'};
    switch (letter) {
    case 'A': return true;
    case 'n': return is_number(tsr_pickle_text(pickle, ref));
    case 'i': return is_ints(pickle, ref);
    case 'd': return tsr_torch_is_device(pickle, ref);
    case 'm':
        return tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_INT && tsr_pickle_int(pickle, ref) >= 0 &&
               tsr_pickle_int(pickle, ref) <= 2;
    default: return letters[tsr_pickle_kind_of(pickle, ref)] == letter;
    }
}

/* The end of a word, and whether the argument is of one of its kinds. */
static const char *match_word(const tsr_pickle *pickle, tsr_ref ref, const char *word, bool *matches)
{
    *matches = false;
    for (; *word && *word != ' ' && *word != '/' && *word != '*'; word++) *matches |= is_letter(pickle, ref, *word);
    return word;
}

/* One alternative, which begins at `word`. */
static bool match(const tsr_pickle *pickle, const tsr_ref *args, size_t count, const char *word)
{
    bool optional = false, matches;
    size_t given = 0;
    while (*word && *word != '/') {
        if (*word == ' ') word++;
        optional |= *word == '?';
        if (*word == '?') word++;
        if (given == count) return optional;
        const char *end = match_word(pickle, args[given++], word, &matches);
        if (!matches) return false;
        if (*end != '*') word = end;
        else if (given == count) return true;
    }
    return given == count;
}

static bool match_any(const tsr_pickle *pickle, tsr_ref tuple, const char *signature)
{
    size_t count;
    const tsr_ref *items = tsr_pickle_items(pickle, tuple, &count);
    for (const char *at = signature; at; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL)
        if (match(pickle, items, count, at)) return true;
    return false;
}

/* (version, byte order, subarray, names, fields, …) of a dtype: names and fields come together. */
static bool is_dtype_state(const tsr_pickle *pickle, tsr_ref state)
{
    tsr_ref names = tsr_pickle_item(pickle, state, 3), fields = tsr_pickle_item(pickle, state, 4);
    bool order = tsr_pickle_text(pickle, tsr_pickle_item(pickle, state, 1)).size == 1;
    return order && (names == TSR_REF_NONE) == (fields == TSR_REF_NONE);
}

bool tsr_torch_accepts_state(const tsr_pickle *pickle, tsr_ref callee, tsr_ref state)
{
    tsr_str name = tsr_pickle_name_of(pickle, callee);
    bool told = state != TSR_REF_NONE && tsr_pickle_kind_of(pickle, state) != TSR_PICKLE_OBJECT;
    if (!tsr_pickle_id(pickle, callee) || !told) return true;
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        if (!tsr_str_equal(name, tsr_str_from(states[i].name))) continue;
        bool fits = tsr_pickle_kind_of(pickle, state) == TSR_PICKLE_TUPLE && match_any(pickle, state, states[i].signature);
        return fits && (name.data[0] != 'd' || is_dtype_state(pickle, state));
    }
    return true;
}

static bool accepts_tuple(const tsr_pickle *pickle, tsr_str name, tsr_ref args)
{
    for (size_t i = 0; i < sizeof tuples / sizeof tuples[0]; i++) {
        tsr_ref tuple = tsr_pickle_item(pickle, args, tuples[i].at);
        if (!tsr_str_equal(name, tsr_str_from(tuples[i].name)) || tsr_pickle_kind_of(pickle, tuple) == TSR_PICKLE_OBJECT) continue;
        return match_any(pickle, tuple, tuples[i].signature);
    }
    return true;
}

bool tsr_torch_accepts(const tsr_pickle *pickle, tsr_ref callee, tsr_ref args)
{
    tsr_str name = tsr_pickle_name_of(pickle, callee);
    size_t i = 0;
    const size_t rows = sizeof signatures / sizeof signatures[0];
    if (!tsr_pickle_id(pickle, callee)) return true;
    if (tsr_pickle_id(pickle, callee) == TSR_TORCH_TENSOR && tsr_str_ends(name, TSR_STR("Tensor")))
        return match_any(pickle, args, "?IPLTO*");
    while (i < rows && !(signatures[i].name[0] == name.data[0] && tsr_str_equal(name, tsr_str_from(signatures[i].name)))) i++;
    return i == rows || (match_any(pickle, args, signatures[i].signature) && accepts_tuple(pickle, name, args));
}
