/* Matches float32 copies with 16-bit weights: they belong together if the rounded copy equals the weight. Instead of
 * comparing every pair, both sides are hashed: first only their shapes, then also the first values, then all values.
 * Whenever exactly one parameter and one weight have a hash, they are matched and left out of the next pass. */
#include "formats/deepspeed/deepspeed_plain.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

enum { BLOCK = 4096, SAMPLE = 512 };

typedef enum depth { BY_SHAPE, BY_HEAD, BY_ALL } depth;

typedef struct matching {
    tsr_checkpoint *checkpoint;
    tsr_ds_numbered *numbered;
    tsr_ds_candidate *candidates;
    uint32_t count, candidate_count;
    tsr_error *err;
} matching;

static uint16_t to_bfloat16(uint32_t bits)
{
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounds to nearest, ties to even. */
static uint16_t to_float16(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    const int32_t exponent = (int32_t)(magnitude >> 23) - 127 + 15;
    if (magnitude > 0x7f800000) return 0x7e00;
    if (exponent >= 31) return (uint16_t)(sign | 0x7c00);
    const uint32_t shift = exponent > 0 ? 13 : (uint32_t)(14 - exponent);
    if (shift > 24) return (uint16_t)sign;
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000, half = UINT32_C(1) << (shift - 1);
    uint32_t rounded = mantissa >> shift;
    const uint32_t rest = mantissa & ((UINT32_C(1) << shift) - 1);
    rounded += rest > half || (rest == half && (rounded & 1));
    /* Adding the implicit leading bit increments the exponent, as does a carry. */
    return (uint16_t)(sign | (exponent > 0 ? (uint32_t)((exponent - 1) << 10) + rounded : rounded));
}

uint16_t tsr_ds_round(uint32_t bits, tsr_dtype to)
{
    return to == TSR_BFLOAT16 ? to_bfloat16(bits) : to_float16(bits);
}

bool tsr_ds_is_plain(const tsr_entry *tensor)
{
    return tensor->chunk_count == 1 && tensor->chunks[0].file != TSR_NO_FILE &&
           (!tensor->chunks[0].view || tsr_view_is_plain(tensor->chunks[0].view));
}

/* Hashes up to `elements` values, converted to the 16-bit dtype `to`, into *hash. */
static tsr_status digest_values(const matching *m, const tsr_entry *tensor, tsr_dtype to, uint64_t elements, uint64_t *hash)
{
    uint32_t wide[BLOCK];
    uint16_t narrow[BLOCK];
    const tsr_chunk *chunk = &tensor->chunks[0];
    const bool rounds = tensor->dtype == TSR_FLOAT32;
    for (uint64_t at = 0; at < elements; at += BLOCK) {
        const size_t count = elements - at < BLOCK ? (size_t)(elements - at) : BLOCK;
        const size_t itemsize = rounds ? sizeof *wide : sizeof *narrow;
        TSR_TRY(tsr_store_read(m->checkpoint->store, chunk->file, chunk->byte_offset + at * itemsize,
                               rounds ? (void *)wide : narrow, count * itemsize, m->err));
        for (size_t i = 0; rounds && i < count; i++) narrow[i] = tsr_ds_round(wide[i], to);
        *hash = tsr_hash_bytes(narrow, count * sizeof *narrow, *hash);
    }
    return TSR_OK;
}

/* `to` is the 16-bit dtype, or NONE when values are not read. */
static tsr_status digest(const matching *m, const tsr_entry *tensor, tsr_dtype to, depth how, uint64_t *hash)
{
    uint64_t elements;
    *hash = tsr_hash_bytes(tensor->shape, tensor->ndim * sizeof *tensor->shape, tensor->ndim);
    if (how == BY_SHAPE || !tsr_ds_is_plain(tensor) || !tsr_entry_elements(tensor, &elements)) return TSR_OK;
    return digest_values(m, tensor, to, how == BY_HEAD && elements > BLOCK ? BLOCK : elements, hash);
}

tsr_status tsr_ds_rounds_to(tsr_checkpoint *checkpoint, const tsr_entry *fp32, const tsr_entry *stored, bool *does,
                            tsr_error *err)
{
    const matching m = {.checkpoint = checkpoint, .err = err};
    const bool narrow = stored->dtype == TSR_BFLOAT16 || stored->dtype == TSR_FLOAT16;
    uint64_t elements, a = 0, b = 0;
    *does = true;
    if (!narrow || fp32->dtype != TSR_FLOAT32 || !tsr_ds_is_plain(fp32) || !tsr_ds_is_plain(stored) ||
        !tsr_entry_elements(fp32, &elements))
        return TSR_OK;
    if (elements > SAMPLE) elements = SAMPLE;
    TSR_TRY(digest_values(&m, fp32, stored->dtype, elements, &a));
    TSR_TRY(digest_values(&m, stored, stored->dtype, elements, &b));
    *does = a == b;
    return TSR_OK;
}

/* How many parameters and weights have a hash, and the last of each. */
typedef struct bucket {
    uint64_t hash;
    uint32_t parameters, weights, parameter, weight;
} bucket;

static tsr_status bucket_of(tsr_map *map, bucket *buckets, uint32_t *used, uint64_t hash, bucket **out, tsr_error *err)
{
    uint32_t *number;
    bool fresh;
    buckets[*used].hash = hash;
    TSR_TRY(tsr_map_put(map, (tsr_str){(const char *)&buckets[*used].hash, sizeof hash}, *used, &number, &fresh, err));
    *out = &buckets[*number];
    *used += fresh;
    return TSR_OK;
}

static tsr_status fill(const matching *m, depth how, tsr_dtype to, tsr_map *map, bucket *buckets, uint32_t *used)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const tsr_ds_numbered *n = &m->numbered[i];
        uint64_t hash;
        bucket *b;
        if (n->candidate != UINT32_MAX || !(how == BY_SHAPE ? n->shaped : n->fp32)) continue;
        TSR_TRY(digest(m, how == BY_SHAPE ? n->shaped : n->fp32, to, how, &hash));
        TSR_TRY(bucket_of(map, buckets, used, hash + n->is_expert, &b, m->err));
        b->parameters++;
        b->parameter = i;
    }
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        const tsr_ds_candidate *c = &m->candidates[i];
        uint64_t hash;
        bucket *b;
        if (c->taken || (how != BY_SHAPE && c->tensor->dtype != to)) continue;
        TSR_TRY(digest(m, c->tensor, to, how, &hash));
        TSR_TRY(bucket_of(map, buckets, used, hash + c->is_expert, &b, m->err));
        b->weights++;
        b->weight = i;
    }
    return TSR_OK;
}

/* One pass: matches each pair of one parameter and one weight that share a hash with no other. */
static tsr_status pass(const matching *m, depth how, tsr_dtype to)
{
    const tsr_allocator *allocator = m->checkpoint->host->allocator;
    const size_t most = (size_t)m->count + m->candidate_count + 1;
    uint32_t used = 0;
    bucket *buckets = tsr_alloc(allocator, most, sizeof *buckets, m->err);
    tsr_map *map = buckets ? tsr_map_new(allocator, 0, m->err) : NULL;
    if (buckets) memset(buckets, 0, most * sizeof *buckets);
    tsr_status status = map ? fill(m, how, to, map, buckets, &used) : TSR_E_NOMEM;
    for (uint32_t b = 0; b < used && status == TSR_OK; b++) {
        if (buckets[b].parameters != 1 || buckets[b].weights != 1) continue;
        m->numbered[buckets[b].parameter].candidate = buckets[b].weight;
        m->candidates[buckets[b].weight].taken = true;
    }
    tsr_map_free(map);
    tsr_free(allocator, buckets, most, sizeof *buckets);
    return status;
}

tsr_status tsr_ds_match(tsr_checkpoint *checkpoint, tsr_ds_numbered *numbered, uint32_t count, tsr_ds_candidate *candidates,
                        uint32_t candidate_count, tsr_error *err)
{
    static const tsr_dtype types[] = {TSR_BFLOAT16, TSR_FLOAT16};
    const matching m = {checkpoint, numbered, candidates, count, candidate_count, err};
    TSR_TRY(pass(&m, BY_SHAPE, TSR_DTYPE_NONE));
    for (depth how = BY_HEAD; how <= BY_ALL; how++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) TSR_TRY(pass(&m, how, types[t]));
    return TSR_OK;
}
