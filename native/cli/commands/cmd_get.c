/* `tessera get`: prints or writes one tensor, or a slice of it, reading only the bytes that it needs. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/text/listing.h"
#include "cli/writing/writing.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/names.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

enum { PRINT_FIRST = 1000 };
#define TILE_BYTES ((size_t)8 << 20)

/* ---- .npy ---- */

/* NumPy's name for a dtype ("<f4"); NULL if NumPy has no such dtype (bfloat16, float8, …). */
static const char *descr_of(tsr_dtype dtype)
{
    switch (dtype) {
    case TSR_FLOAT64: return "<f8";
    case TSR_FLOAT32: return "<f4";
    case TSR_FLOAT16: return "<f2";
    case TSR_INT64: return "<i8";
    case TSR_INT32: return "<i4";
    case TSR_INT16: return "<i2";
    case TSR_INT8: return "|i1";
    case TSR_UINT64: return "<u8";
    case TSR_UINT32: return "<u4";
    case TSR_UINT16: return "<u2";
    case TSR_UINT8: return "|u1";
    case TSR_BOOL: return "|b1";
    case TSR_COMPLEX64: return "<c8";
    case TSR_COMPLEX128: return "<c16";
    default: return NULL;
    }
}

/* Makes the header of a C-ordered array, in `arena` (NumPy format 1.0 and 2.0, numpy.lib.format):
 *
 *   magic 6 bytes | version 2 | length 2 (1.0) or 4 (2.0) | "{'descr': …, 'fortran_order': False, 'shape': (…), }" spaces \n
 *
 * padded to a multiple of 64 bytes. The version is 2.0 if the header is too long for 1.0. Errors: TSR_E_UNSUPPORTED for a dtype that
 * NumPy does not have, TSR_E_NOMEM. */
static tsr_status npy_header(tsr_dtype dtype, uint32_t ndim, const uint64_t *shape, tsr_arena *arena, tsr_str *out,
                             tsr_error *err)
{
    const char *descr = descr_of(dtype);
    if (!descr) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "NumPy has no dtype for %s; name the output .bin to write raw bytes",
                        tsr_dtype_describe(dtype)->name);
    }
    size_t room = 128 + (size_t)ndim * 22, used;
    char *text = tsr_arena_array(arena, room + 64, 1, err);
    if (!text) return TSR_E_NOMEM;
    used = (size_t)snprintf(text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (uint32_t d = 0; d < ndim; d++)
        used += (size_t)snprintf(text + used, room - used, "%" PRIu64 "%s", shape[d],
                                 d + 1 < ndim ? ", "
                                 : ndim == 1  ? ","
                                              : "");
    used += (size_t)snprintf(text + used, room - used, "), }");
    size_t prefix = used + 10 + 1 + 63 <= 65535 ? 10 : 12; /* magic, version, length */
    size_t total = (prefix + used + 1 + 63) / 64 * 64, length = total - prefix;
    char *header = tsr_arena_array(arena, total, 1, err);
    if (!header) return TSR_E_NOMEM;
    memcpy(header, prefix == 10 ? "\x93NUMPY\x01\x00" : "\x93NUMPY\x02\x00", 8);
    for (size_t i = 8; i < prefix; i++) header[i] = (char)(length >> 8 * (i - 8));
    memcpy(header + prefix, text, used);
    memset(header + prefix + used, ' ', total - prefix - used - 1);
    header[total - 1] = '\n';
    *out = (tsr_str){header, total};
    return TSR_OK;
}

/* ---- the values ---- */

/* Receives the slice's bytes in order. */
typedef struct sink {
    FILE *file;
    bool as_text;
    tsr_dtype dtype;
    uint32_t ndim;         /* for text output */
    const uint64_t *shape; /* for text output */
    uint64_t put, most;    /* elements printed so far, and their limit */
} sink;

/* For brackets as NumPy prints them: the number of dims that begin, or have just ended, at element `index`. */
static uint32_t dims_at(const sink *to, uint64_t index)
{
    uint32_t count = 0;
    for (uint32_t d = to->ndim; d-- > 0; count++) {
        if (to->shape[d] == 0 || index % to->shape[d] != 0) break;
        index /= to->shape[d];
    }
    return count;
}

static void print_elements(sink *to, const uint8_t *data, size_t size)
{
    char text[80];
    const uint32_t itemsize = tsr_dtype_size(to->dtype);
    for (size_t at = 0; at + itemsize <= size && to->put < to->most; at += itemsize, to->put++) {
        uint32_t opens = dims_at(to, to->put);
        if (to->put && opens) {
            for (uint32_t d = 0; d < opens; d++) putchar(']');
            putchar('\n');
            for (uint32_t d = 1; d < opens; d++) putchar('\n');
            cli_pad(stdout, to->ndim - opens);
        } else if (to->put) {
            putchar(' ');
        }
        for (uint32_t d = 0; d < opens; d++) putchar('[');
        fputs(tsr_element_text(to->dtype, data + at, text, sizeof text), stdout);
    }
}

static tsr_status take(sink *to, const uint8_t *data, size_t size, tsr_error *err)
{
    if (!to->as_text) return cli_write_file(to->file, (const char *)data, size, err);
    print_elements(to, data, size);
    return TSR_OK;
}

static tsr_status take_tile(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    (void)byte_at;
    return take(ctx, data, size, err);
}

/* Reads a slice, at most TILE_BYTES at a time. */
static tsr_status read_slice(const cli_session *session, const tsr_entry *entry, const tsr_slice *slice, sink *to,
                             tsr_error *err)
{
    const uint64_t itemsize = tsr_dtype_size(entry->dtype), tile = itemsize ? TILE_BYTES / itemsize : 0;
    uint64_t elements;
    if (!tile)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s elements are not byte-aligned, so they cannot be sliced; leave the slice out",
                        tsr_dtype_describe(entry->dtype)->name);
    if (!tsr_box_volume((tsr_box){entry->ndim, NULL, slice->sizes}, &elements)) elements = UINT64_MAX; /* rejected below */
    if (elements > to->most) elements = to->most;
    if (elements == 0) return TSR_OK;
    const size_t most = (size_t)((elements < tile ? elements : tile) * itemsize);
    uint8_t *buffer = tsr_alloc(&tsr_allocator_libc, most, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    tsr_run run = {.offsets = slice->offsets, .sizes = slice->sizes};
    tsr_status status = TSR_OK;
    for (; run.first < elements && status == TSR_OK; run.first += run.count) {
        run.count = elements - run.first < tile ? elements - run.first : tile;
        status = tsr_read_run(session->checkpoint, entry, &run, buffer, (size_t)(run.count * itemsize), err);
        if (status == TSR_OK) status = take(to, buffer, (size_t)(run.count * itemsize), err);
    }
    tsr_free(&tsr_allocator_libc, buffer, most, 1);
    return status;
}

static tsr_status read_whole(const cli_session *session, const tsr_entry *entry, sink *to, tsr_error *err)
{
    tsr_ring *ring = NULL;
    tsr_status status = tsr_ring_new(tsr_checkpoint_host(session->checkpoint), 0, &ring, err);
    if (status == TSR_OK) status = tsr_stream_tensor(session->checkpoint, entry, ring, take_tile, to, err);
    tsr_ring_free(ring);
    return status;
}

/* The entry and the slice that FQN[SLICE] names. */
typedef struct asked_values {
    const tsr_entry *entry;
    tsr_slice slice;
    bool whole; /* no SLICE was given */
} asked_values;

static tsr_status get_to_file(cli *program, const cli_session *session, const asked_values *asked, const char *output,
                              tsr_error *err)
{
    const tsr_entry *entry = asked->entry;
    const tsr_slice *slice = &asked->slice;
    tsr_str name = tsr_str_from(output), header = {NULL, 0};
    bool npy = tsr_str_ends(name, TSR_STR(".npy"));
    if (!npy && !tsr_str_ends(name, TSR_STR(".bin"))) {
        return tsr_fail(tsr_naming(err), TSR_E_USAGE,
                        "cannot infer the output format from '%s'; name it .npy for NumPy or .bin for raw bytes", output);
    }
    if (npy) {
        TSR_TRY(
            npy_header(entry->dtype, slice->ndim, slice->shape, tsr_checkpoint_arena(session->checkpoint), &header, err));
    }
    cli_out_file out;
    tsr_status status = cli_out_open(program, output, session, &out, err);
    if (status != TSR_OK) return status;
    sink to = {.file = out.to, .dtype = entry->dtype, .most = UINT64_MAX};
    status = header.size ? cli_write_file(to.file, header.data, header.size, err) : TSR_OK;
    if (status == TSR_OK)
        status = asked->whole ? read_whole(session, entry, &to, err) : read_slice(session, entry, slice, &to, err);
    if (status == TSR_OK) status = cli_unchanged(session, err);
    return cli_out_close(&out, status, err);
}

static tsr_status get_as_text(const cli_session *session, const tsr_entry *entry, const tsr_slice *slice, bool all,
                              tsr_error *err)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < slice->ndim; d++) elements *= slice->shape[d];
    if (tsr_dtype_size(entry->dtype) == 0) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s elements are not byte-aligned; write them with -o FILE.bin",
                        tsr_dtype_describe(entry->dtype)->name);
    }
    sink to = {.file = stdout,
               .as_text = true,
               .dtype = entry->dtype,
               .ndim = slice->ndim,
               .shape = slice->shape,
               .most = all || elements < PRINT_FIRST ? elements : PRINT_FIRST};
    tsr_status status = read_slice(session, entry, slice, &to, err);
    if (status != TSR_OK) {
        if (to.put) putchar('\n');
        return status;
    }
    if (elements == 0) fputs("[]", stdout);
    else if (to.put == elements)
        for (uint32_t d = 0; d < slice->ndim; d++) putchar(']');
    else printf(" …\n%s more; --print prints all, -o FILE.npy writes them", cli_number(elements - to.put).text);
    putchar('\n');
    return status;
}

/* Makes the error for a name that the checkpoint does not have, with the name that was probably meant. */
static tsr_status raise_no_entry(const cli_session *session, tsr_str name, tsr_error *err)
{
    size_t common;
    const tsr_str similar = tsr_name_most_similar(session->catalog, name, &common);
    if (!name.size) return tsr_fail(err, TSR_E_USAGE, "the name of the entry is missing");
    if (2 * common <= name.size || common == name.size) return tsr_checkpoint_raise_no_entry(session->checkpoint, name, err);
    return tsr_fail(err, TSR_E_NOT_FOUND, "there is no entry '%.*s'; did you mean '%.*s'?", TSR_STR_ARG(name),
                    TSR_STR_ARG(similar));
}

/* Looks for the whole text first, because names may contain brackets. */
static tsr_status find(const cli_session *session, const char *given, const tsr_entry **entry, tsr_str *inside,
                       tsr_error *err)
{
    tsr_str name = tsr_str_from(given);
    *inside = (tsr_str){NULL, 0};
    *entry = tsr_checkpoint_entry(session->checkpoint, name);
    if (*entry) return TSR_OK;
    name = tsr_slice_split(name, inside);
    *entry = tsr_checkpoint_entry(session->checkpoint, name);
    return *entry ? TSR_OK : raise_no_entry(session, name, err);
}

static tsr_status get(cli *program, const cli_session *session, const tsr_command_options *arguments, tsr_error *err)
{
    tsr_str inside;
    asked_values asked;
    tsr_status status = find(session, program->operands.items[1], &asked.entry, &inside, err);
    if (status != TSR_OK) return status;
    const tsr_entry *entry = asked.entry;
    asked.whole = inside.data == NULL;
    if (entry->kind != TSR_ENTRY_TENSOR) {
        char text[4096];
        if (arguments->output || inside.data) {
            return tsr_fail(err, TSR_E_USAGE,
                            "'%.*s' is not a dense tensor but %.*s; only tensors can be sliced and written with -o",
                            TSR_STR_ARG(entry->fqn), TSR_STR_ARG(entry->type));
        }
        cli_put(stdout, tsr_str_from(tsr_value_text(entry->value, text, sizeof text)));
        putchar('\n');
        return cli_unchanged(session, err);
    }
    status = tsr_slice_parse(inside, entry->ndim, entry->shape, &asked.slice, err);
    if (status == TSR_OK)
        status = tsr_repeats_check_box(session->checkpoint, entry, asked.slice.offsets, asked.slice.sizes, err);
    if (status == TSR_OK && (arguments->print || !arguments->output))
        status = get_as_text(session, entry, &asked.slice, arguments->print, err);
    if (status == TSR_OK) status = cli_unchanged(session, err);
    /* Written last, because the output may replace a file in PATH's directory. */
    if (status == TSR_OK && arguments->output) status = get_to_file(program, session, &asked, arguments->output, err);
    return status;
}

/* Whether FQN[SLICE] refers to the entry of this name. */
static bool is_asked(const void *operand, tsr_str fqn)
{
    const tsr_str asked = tsr_str_from(operand);
    return tsr_str_starts(asked, fqn) && (asked.size == fqn.size || asked.data[fqn.size] == '[');
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    cli_session session;
    const char *path = program->operands.items[0];
    const tsr_open_options used = {.selects = is_asked, .selects_ctx = program->operands.items[1]};
    cli_allow_expansion(program, arguments->allow_expansion);
    tsr_status status = cli_open(program, path, &used, &session, &err);
    if (status == TSR_OK) status = get(program, &session, arguments, &err);
    cli_close(&session);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

const cli_command cli_get = {
    .name = "get",
    .examples = "tessera get ckpt/ 'model.embed.weight[0:2,:8]'\nPrint a corner of a tensor\n"
                "tessera get model.safetensors lm_head.weight -o head.npy\nWrite a tensor for NumPy\n"
                "tessera get run.pt w -o w.bin\nWrite raw bytes, for dtypes that NumPy does not have\n",
    .run = run,
};
