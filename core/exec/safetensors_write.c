/* Safetensors files.
 *
 *   u64 length | {"__metadata__":{"format":"pt"},"name":{"dtype":…,"shape":[…],"data_offsets":[b,e]},…} spaces | data
 *   └───────────────────────────── a multiple of 64 bytes ──────────────────────────────────────────────┘
 *
 * Within a file, pieces with larger elements come first (stable), so that every tensor is aligned to its elements. */
#include "exec/safetensors_write.h"

#include <stdlib.h>

#include "base/try.h"
#include "base/utf8.h"
#include "exec/text.h"
#include "formats/safetensors.h"
#include "tessera/json.h"

#define HEADER_ALIGNMENT 64u

bool tsr_safetensors_holds(tsr_dtype dtype)
{
    uint64_t last = 1;
    return tsr_dtype_unpack(&dtype, &last) && tsr_dtype_describe(dtype)->safetensors_name;
}

const char *tsr_safetensors_name_refusal(tsr_str name)
{
    if (name.size == 0) return "has an empty name";
    if (memchr(name.data, 0, name.size)) return "has a NUL in its name";
    if (tsr_utf8_check(name) != name.size) return "has a name that is no valid UTF-8";
    return tsr_str_equal(name, TSR_STR("__metadata__")) ? "has the name of the metadata" : NULL;
}

/* ---- order ---- */

typedef struct ordered {
    uint32_t file;
    uint32_t size; /* of an element; 1 where it is less than a byte */
    size_t index;
} ordered;

static int by_alignment(const void *a, const void *b)
{
    const ordered *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->size != y->size) return x->size > y->size ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static tsr_status align_pieces(tsr_piece *pieces, size_t count, tsr_arena *arena, tsr_error *err)
{
    ordered *order = tsr_arena_array(arena, count, sizeof *order, err);
    tsr_piece *moved = order ? tsr_arena_array(arena, count, sizeof *moved, err) : NULL;
    if (!moved) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) order[i] = (ordered){pieces[i].file, tsr_dtype_size(pieces[i].dtype), i};
    qsort(order, count, sizeof *order, by_alignment);
    for (size_t i = 0; i < count; i++) moved[i] = pieces[order[i].index];
    if (count) memcpy(pieces, moved, count * sizeof *pieces);
    return TSR_OK;
}

/* ---- headers ---- */

static void emit_metadata(tsr_json *json, const tsr_str *metadata, size_t pairs)
{
    tsr_json_key(json, "__metadata__");
    tsr_json_object(json);
    tsr_json_key(json, "format");
    tsr_json_text(json, "pt");
    for (size_t i = 0; i < pairs; i++) {
        tsr_json_key_str(json, metadata[2 * i]);
        tsr_json_str(json, metadata[2 * i + 1]);
    }
    tsr_json_object_end(json);
}

/* Shape and type as the header counts them: float4 by single elements. */
static tsr_status header_shape(const tsr_piece *piece, tsr_dtype *dtype, uint32_t *rank, uint64_t *shape, tsr_error *err)
{
    uint64_t elements, single = 1;
    TSR_TRY(tsr_gather_geometry(piece->entry, dtype, rank, shape, &elements, err));
    if (piece->sizes) memcpy(shape, piece->sizes, *rank * sizeof *shape);
    if (tsr_dtype_describe(piece->entry->dtype)->bits == 6) { /* bytes to the gather, elements to the header */
        *rank = piece->entry->rank;
        memcpy(shape, piece->entry->shape, *rank * sizeof *shape);
        *dtype = piece->dtype;
    }
    if (piece->dtype != piece->entry->dtype) *dtype = piece->dtype; /* a cast; else the gather's own, packed */
    const bool fits = tsr_dtype_unpack(dtype, *rank ? &shape[*rank - 1] : &single);
    TSR_FAIL_IF(!fits || single != 1, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%.*s': a packed float4 tensor needs a dimension",
                TSR_STR_ARG(piece->entry->fqn));
    return TSR_OK;
}

static tsr_status emit_piece(tsr_json *json, const tsr_piece *piece, uint64_t begin, uint64_t end, tsr_error *err)
{
    tsr_dtype dtype;
    uint32_t rank;
    uint64_t shape[TSR_MAX_RANK];
    TSR_TRY(header_shape(piece, &dtype, &rank, shape, err));
    tsr_json_key_str(json, piece->name);
    tsr_json_object(json);
    tsr_json_key(json, "dtype");
    tsr_json_text(json, tsr_dtype_describe(dtype)->safetensors_name);
    tsr_json_key(json, "shape");
    tsr_json_u64s(json, shape, rank);
    tsr_json_key(json, "data_offsets");
    tsr_json_u64s(json, (uint64_t[]){begin, end}, 2);
    tsr_json_object_end(json);
    return TSR_OK;
}

/* The header's text in `text`, behind room for its length. */
static tsr_status emit_header(tsr_vec *text, const tsr_piece *pieces, const tsr_blit *blits, size_t count,
                              const tsr_str *metadata, size_t pairs, tsr_error *err)
{
    tsr_json json;
    text->count = 0;
    TSR_TRY(tsr_text_append(text, "\0\0\0\0\0\0\0", 8, err));
    tsr_json_start(&json, tsr_text_append, text, 0, err);
    tsr_json_object(&json);
    emit_metadata(&json, metadata, pairs);
    for (size_t i = 0; i < count; i++) {
        TSR_TRY(emit_piece(&json, &pieces[i], blits[i].byte_offset, blits[i].byte_offset + blits[i].byte_length, err));
    }
    tsr_json_object_end(&json);
    TSR_TRY(tsr_json_finish(&json));
    if (text->count > 8 && ((char *)text->items)[text->count - 1] == '\n') text->count--;
    const size_t padding = (HEADER_ALIGNMENT - text->count % HEADER_ALIGNMENT) % HEADER_ALIGNMENT;
    TSR_TRY(tsr_vec_reserve(text, padding, err));
    memset((char *)text->items + text->count, ' ', padding);
    text->count += padding;
    const uint64_t length = text->count - 8;
    TSR_FAIL_IF(length > TSR_SAFETENSORS_MAX_HEADER, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                "safetensors: a header of %llu bytes; the format allows %u: write shards", (unsigned long long)length,
                (unsigned)TSR_SAFETENSORS_MAX_HEADER);
    for (unsigned i = 0; i < 8; i++) ((uint8_t *)text->items)[i] = (uint8_t)(length >> (8 * i));
    return TSR_OK;
}

/* ---- the plan ---- */

/* Offsets within the data section first; with the header's size known they become offsets in the file. */
static tsr_status plan_file(const tsr_piece *pieces, tsr_blit *blits, size_t count, tsr_safetensors_file *file,
                            const tsr_str *metadata, size_t pairs, tsr_vec *text, tsr_arena *arena, tsr_error *err)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const tsr_piece *p = &pieces[i];
        blits[i] = (tsr_blit){.entry = p->entry, .offsets = p->offsets, .sizes = p->sizes, .dtype = p->dtype, .file = p->file, .byte_offset = at};
        TSR_TRY(tsr_blit_measure(p->entry, p->sizes, p->dtype, &blits[i].byte_length, err));
        at += blits[i].byte_length;
        TSR_FAIL_IF(at < blits[i].byte_length, err, TSR_E_FORMAT, TSR_NO_POSITION, "'%.*s' is too large", TSR_STR_ARG(p->entry->fqn));
    }
    TSR_TRY(emit_header(text, pieces, blits, count, metadata, pairs, err));
    file->header = tsr_arena_str(arena, (tsr_str){text->items, text->count}, err);
    if (!file->header.data) return TSR_E_NOMEM;
    file->size = file->header.size + at;
    for (size_t i = 0; i < count; i++) blits[i].byte_offset += file->header.size;
    return TSR_OK;
}

tsr_status tsr_safetensors_plan(tsr_piece *pieces, size_t count, tsr_safetensors_file *files, uint32_t file_count,
                                const tsr_str *metadata, size_t pairs, const tsr_host *host, tsr_arena *arena,
                                tsr_blit **blits, tsr_error *err)
{
    TSR_TRY(align_pieces(pieces, count, arena, err));
    *blits = tsr_arena_array(arena, count, sizeof **blits, err);
    if (!*blits) return TSR_E_NOMEM;
    tsr_vec text = tsr_vec_of(host->allocator, 1);
    tsr_status status = TSR_OK;
    for (size_t f = 0, from = 0; f < file_count && status == TSR_OK; f++) {
        size_t to = from;
        while (to < count && pieces[to].file == f) to++;
        status = plan_file(pieces + from, *blits + from, to - from, &files[f], metadata, pairs, &text, arena, err);
        from = to;
    }
    tsr_vec_free(&text);
    return status;
}

tsr_status tsr_safetensors_write(tsr_blit_run *run, tsr_safetensors_file *files, uint32_t file_count, tsr_error *err)
{
    for (uint32_t f = 0; f < file_count; f++) {
        TSR_TRY(run->output->create(run->output, files[f].name, files[f].size, &files[f].output, err));
        TSR_TRY(run->output->write_at(run->output, files[f].output, 0, files[f].header.data, files[f].header.size, err));
    }
    for (size_t i = 0; i < run->count; i++) run->blits[i].file = files[run->blits[i].file].output;
    return tsr_blits_write(run, err);
}
