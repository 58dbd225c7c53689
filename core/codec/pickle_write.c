/* Writes values as opcodes. */
#include "codec/pickle.h"

#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

#define NOT_THERE UINT32_MAX

static void emit(tsr_pickler *pickler, const void *bytes, size_t size)
{
    if (pickler->status == TSR_OK) pickler->status = tsr_vec_append(pickler->out, bytes, size, pickler->err);
}

static void opcode(tsr_pickler *pickler, char code)
{
    emit(pickler, &code, 1);
}

static void little(tsr_pickler *pickler, char code, uint64_t value, unsigned bytes)
{
    uint8_t text[9] = {(uint8_t)code};
    tsr_store_le(text + 1, value, bytes);
    emit(pickler, text, bytes + 1);
}

void tsr_pickler_open(tsr_pickler *pickler, unsigned protocol, const tsr_allocator *allocator, tsr_vec *out, tsr_error *err)
{
    *pickler = (tsr_pickler){.protocol = protocol, .out = out, .key = tsr_vec_of(allocator, 1), .err = err};
    pickler->strings = tsr_map_new(allocator, 0, err);
    pickler->globals = tsr_map_new(allocator, 0, err);
    pickler->keys = tsr_arena_new(allocator, 0, err);
    if (!pickler->strings || !pickler->globals || !pickler->keys) pickler->status = TSR_E_NOMEM;
    little(pickler, '\x80', protocol, 1);
}

tsr_status tsr_pickler_finish(tsr_pickler *pickler)
{
    opcode(pickler, '.');
    return pickler->status;
}

void tsr_pickler_close(tsr_pickler *pickler)
{
    tsr_map_free(pickler->strings);
    tsr_map_free(pickler->globals);
    tsr_arena_free(pickler->keys);
    tsr_vec_free(&pickler->key);
}

void tsr_pickler_none(tsr_pickler *pickler)
{
    opcode(pickler, 'N');
}

void tsr_pickler_bool(tsr_pickler *pickler, bool value)
{
    opcode(pickler, value ? '\x88' : '\x89');
}

void tsr_pickler_bigint(tsr_pickler *pickler, tsr_str bytes)
{
    if (bytes.size < 256) {
        little(pickler, '\x8a', bytes.size, 1);
    } else if (bytes.size <= INT32_MAX) {
        little(pickler, '\x8b', bytes.size, 4);
    } else if (pickler->status == TSR_OK) {
        pickler->status = tsr_fail(pickler->err, TSR_E_LIMIT, "pickle: an integer of %zu bytes is too large", bytes.size);
    }
    emit(pickler, bytes.data, bytes.size);
}

void tsr_pickler_int(tsr_pickler *pickler, int64_t value)
{
    if (value >= 0 && value < 256) {
        little(pickler, 'K', (uint64_t)value, 1);
    } else if (value >= 0 && value < 65536) {
        little(pickler, 'M', (uint64_t)value, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        little(pickler, 'J', (uint64_t)value, 4);
    } else {
        uint8_t bytes[8];
        size_t size = 8;
        tsr_store_le(bytes, (uint64_t)value, 8);
        const uint8_t fill = value < 0 ? 0xff : 0;
        while (size > 1 && bytes[size - 1] == fill && (bytes[size - 2] ^ fill) < 0x80) size--;
        tsr_pickler_bigint(pickler, (tsr_str){(const char *)bytes, size});
    }
}

void tsr_pickler_uint(tsr_pickler *pickler, uint64_t value)
{
    if (value <= INT64_MAX) {
        tsr_pickler_int(pickler, (int64_t)value);
        return;
    }
    uint8_t bytes[9] = {0};
    tsr_store_le(bytes, value, 8);
    tsr_pickler_bigint(pickler, (tsr_str){(const char *)bytes, 9});
}

void tsr_pickler_float(tsr_pickler *pickler, double value)
{
    uint64_t bits;
    uint8_t text[9] = {'G'};
    memcpy(&bits, &value, sizeof bits);
    for (unsigned i = 0; i < 8; i++) text[i + 1] = (uint8_t)(bits >> (56 - 8 * i));
    emit(pickler, text, sizeof text);
}

/* ---- the memo ---- */

uint32_t tsr_pickler_memoize(tsr_pickler *pickler)
{
    const uint32_t number = pickler->memo_count++;
    if (pickler->protocol >= 4) {
        opcode(pickler, '\x94');
    } else if (number < 256) {
        little(pickler, 'q', number, 1);
    } else {
        little(pickler, 'r', number, 4);
    }
    return number;
}

void tsr_pickler_get(tsr_pickler *pickler, uint32_t memo)
{
    if (memo < 256) {
        little(pickler, 'h', memo, 1);
    } else {
        little(pickler, 'j', memo, 4);
    }
}

/* Writes a memo fetch if this key was written before. Returns false if it must be written now. */
static bool fetch(tsr_pickler *pickler, const tsr_map *map, tsr_str key)
{
    if (pickler->status != TSR_OK) return true;
    const uint32_t known = tsr_map_get(map, key, NOT_THERE);
    if (known != NOT_THERE) tsr_pickler_get(pickler, known);
    return known != NOT_THERE;
}

static void remember(tsr_pickler *pickler, tsr_map *map, tsr_str key)
{
    const uint32_t memo = tsr_pickler_memoize(pickler);
    if (pickler->status != TSR_OK) return;
    const tsr_str copy = tsr_arena_str(pickler->keys, key, pickler->err);
    pickler->status = copy.data ? tsr_map_put(map, copy, memo, NULL, NULL, pickler->err) : TSR_E_NOMEM;
}

static void emit_text(tsr_pickler *pickler, tsr_str text)
{
    if (pickler->protocol >= 4 && text.size < 256) {
        little(pickler, '\x8c', text.size, 1);
    } else if (text.size <= UINT32_MAX) {
        little(pickler, 'X', text.size, 4);
    } else if (pickler->status == TSR_OK) {
        pickler->status = tsr_fail(pickler->err, TSR_E_LIMIT, "pickle: a string of %zu bytes is too large", text.size);
    }
    emit(pickler, text.data, text.size);
}

void tsr_pickler_str(tsr_pickler *pickler, tsr_str text)
{
    if (fetch(pickler, pickler->strings, text)) return;
    emit_text(pickler, text);
    remember(pickler, pickler->strings, text);
}

static void emit_global(tsr_pickler *pickler, tsr_str module, tsr_str name)
{
    if (pickler->protocol >= 4) {
        tsr_pickler_str(pickler, module);
        tsr_pickler_str(pickler, name);
        opcode(pickler, '\x93');
        return;
    }
    opcode(pickler, 'c');
    emit(pickler, module.data, module.size);
    opcode(pickler, '\n');
    emit(pickler, name.data, name.size);
    opcode(pickler, '\n');
}

static bool is_plain(tsr_str name)
{
    return name.size && !memchr(name.data, '\n', name.size) && !memchr(name.data, 0, name.size);
}

void tsr_pickler_global(tsr_pickler *pickler, tsr_str module, tsr_str name)
{
    if (pickler->status == TSR_OK && (!is_plain(module) || !is_plain(name))) {
        pickler->status = tsr_fail(pickler->err, TSR_E_UNSUPPORTED, "pickle: '%.*s.%.*s' is not a valid class name",
                                   TSR_STR_ARG(module), TSR_STR_ARG(name));
    }
    const tsr_str parts[] = {module, TSR_STR("\n"), name};
    pickler->key.count = 0;
    for (size_t i = 0; i < 3 && pickler->status == TSR_OK; i++)
        pickler->status = tsr_vec_append(&pickler->key, parts[i].data, parts[i].size, pickler->err);
    const tsr_str key = {pickler->key.items, pickler->key.count};
    if (fetch(pickler, pickler->globals, key)) return;
    emit_global(pickler, module, name);
    remember(pickler, pickler->globals, key);
}

/* Protocol 2 has no opcode for bytes. Python's pickler writes Latin-1 text and a call that encodes it when it is loaded. */
void tsr_pickler_bytes(tsr_pickler *pickler, tsr_str bytes)
{
    if (pickler->protocol >= 4) {
        little(pickler, bytes.size < 256 ? 'C' : '\x8e', bytes.size, bytes.size < 256 ? 1 : 8);
        emit(pickler, bytes.data, bytes.size);
        return;
    }
    tsr_pickler_global(pickler, TSR_STR("_codecs"), TSR_STR("encode"));
    uint64_t size = bytes.size;
    for (size_t i = 0; i < bytes.size; i++) size += (uint8_t)bytes.data[i] >> 7;
    if (size > UINT32_MAX && pickler->status == TSR_OK) {
        pickler->status = tsr_fail(pickler->err, TSR_E_LIMIT, "pickle: an object of %zu bytes is too large", bytes.size);
    }
    little(pickler, 'X', size, 4);
    for (size_t i = 0; i < bytes.size; i++) {
        const uint8_t byte = (uint8_t)bytes.data[i],
                      pair[2] = {(uint8_t)(0xc0 | byte >> 6), (uint8_t)(0x80 | (byte & 0x3f))};
        emit(pickler, byte < 0x80 ? &byte : pair, byte < 0x80 ? 1 : 2);
    }
    tsr_pickler_str(pickler, TSR_STR("latin1"));
    tsr_pickler_tuple(pickler, 2);
    tsr_pickler_reduce(pickler);
}

/* ---- joints ---- */

void tsr_pickler_mark(tsr_pickler *pickler)
{
    opcode(pickler, '(');
}

void tsr_pickler_tuple(tsr_pickler *pickler, size_t count)
{
    static const char codes[] = {')', '\x85', '\x86', '\x87'};
    opcode(pickler, count < 4 ? codes[count] : 't');
}

void tsr_pickler_empty_list(tsr_pickler *pickler)
{
    opcode(pickler, ']');
}

void tsr_pickler_empty_dict(tsr_pickler *pickler)
{
    opcode(pickler, '}');
}

void tsr_pickler_appends(tsr_pickler *pickler)
{
    opcode(pickler, 'e');
}

void tsr_pickler_setitems(tsr_pickler *pickler)
{
    opcode(pickler, 'u');
}

void tsr_pickler_reduce(tsr_pickler *pickler)
{
    opcode(pickler, 'R');
}

void tsr_pickler_newobj(tsr_pickler *pickler)
{
    opcode(pickler, '\x81');
}

void tsr_pickler_build(tsr_pickler *pickler)
{
    opcode(pickler, 'b');
}

void tsr_pickler_persistent(tsr_pickler *pickler)
{
    opcode(pickler, 'Q');
}
