/* Digests of objects: computed from their JSON, or from a binary form if JSON cannot represent them. */
#include "check/digest.h"

#include "stream/gather.h"
#include "tessera/sys/json.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

typedef tsr_running_digest running;

static tsr_status take_text(void *ctx, const char *data, size_t size, tsr_error *err)
{
    const running *digest = ctx;
    (void)err;
    digest->ops->update(digest->state, data, size);
    return TSR_OK;
}

enum { VALUE_DEPTH = 48 };

/* Hashes a node, before its items: kind | number of items | size of text | number (two for complex) | text. */
static void put_node(const running *digest, const tsr_value *value)
{
    uint8_t head[33] = {(uint8_t)value->kind};
    uint64_t numbers[4] = {value->count, value->text.size, 0, 0};
    if (value->kind == TSR_VALUE_BOOL) numbers[2] = value->as.boolean;
    if (value->kind == TSR_VALUE_INT) numbers[2] = (uint64_t)value->as.integer;
    if (value->kind == TSR_VALUE_FLOAT) memcpy(&numbers[2], &value->as.real, sizeof(double));
    if (value->kind == TSR_VALUE_COMPLEX) memcpy(&numbers[2], &value->as.complex, 2 * sizeof(double));
    for (size_t i = 0; i < 32; i++) head[1 + i] = (uint8_t)(numbers[i / 8] >> 8 * (i % 8));
    digest->ops->update(digest->state, head, sizeof head);
    if (value->text.size) digest->ops->update(digest->state, value->text.data, value->text.size);
    if (value->kind != TSR_VALUE_DTYPE) return;
    const char *name = tsr_dtype_describe(value->as.dtype)->name;
    digest->ops->update(digest->state, name, strlen(name) + 1);
}

/* What is needed to hash tensors inside a value. */
typedef struct inner {
    tsr_checkpoint *checkpoint;
    tsr_digest_algorithm algorithm;
    tsr_ring *ring;
    tsr_status status;
    tsr_error *err;
} inner;

/* Hashes a tensor inside a value: dtype, shape, and the digest of its elements. */
static bool put_tensor(const running *digest, const tsr_entry *entry, inner *in)
{
    tsr_digest own;
    uint8_t size[8];
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(in->checkpoint)->allocator, 0, in->err);
    const tsr_entry *readable = arena ? tsr_gather_readable(in->checkpoint, arena, entry, in->err) : NULL;
    in->status =
        readable ? tsr_tensor_digest(in->checkpoint, readable, in->algorithm, in->ring, &own, in->err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    if (in->status != TSR_OK) return false;
    const char *name = tsr_dtype_describe(entry->dtype)->name;
    digest->ops->update(digest->state, name, strlen(name) + 1);
    for (uint32_t d = 0; d < entry->ndim; d++) {
        for (size_t i = 0; i < sizeof size; i++) size[i] = (uint8_t)(entry->shape[d] >> 8 * i);
        digest->ops->update(digest->state, size, sizeof size);
    }
    digest->ops->update(digest->state, own.bytes, own.size);
    return true;
}

/* Hashes a value that JSON cannot represent, node by node; only checks it if `digest` is NULL. Returns false if the value
 * has no unique form: for sets, which are unordered, for tensors of which it has only a part, and beyond the limits; also if
 * a tensor inside it cannot be read, which sets in->status. */
static bool put_value(const running *digest, const tsr_value *value, uint64_t nodes, inner *in)
{
    struct {
        const tsr_value *container;
        size_t next;
    } stack[VALUE_DEPTH];
    uint32_t height = 0;
    for (;; nodes--) {
        const tsr_entry *tensor = value->kind == TSR_VALUE_TENSOR ? value->as.tensor : NULL;
        if (nodes == 0 || value->kind == TSR_VALUE_SET || value->expanded == TSR_VALUE_ENDLESS) return false;
        if (tensor && (tensor->is_sharded || tensor->chunk_count != 1)) return false;
        if (digest) put_node(digest, value);
        if (digest && tensor && !put_tensor(digest, tensor, in)) return false;
        if (value->count) {
            if (height == VALUE_DEPTH) return false;
            stack[height].container = value;
            stack[height++].next = 0;
        }
        while (height && stack[height - 1].next == stack[height - 1].container->count) height--;
        if (height == 0) return true;
        value = stack[height - 1].container->items[stack[height - 1].next++];
        if (!value) return false;
    }
}

tsr_status tsr_object_digest(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_digest_algorithm algorithm,
                             tsr_ring *ring, bool *there, tsr_digest *out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    inner in = {checkpoint, algorithm, ring, TSR_OK, err};
    running digest;
    tsr_json json;
    const bool json_holds = entry->value && tsr_value_is_json(entry->value, VALUE_DEPTH, host->limits.expansion);
    *there = json_holds || (entry->value && put_value(NULL, entry->value, host->limits.expansion, &in));
    if (!*there) return TSR_OK;
    TSR_TRY(tsr_digest_start(host, algorithm, &digest, err));
    if (!json_holds) {
        put_value(&digest, entry->value, host->limits.expansion, &in);
        return tsr_digest_finish(&digest, in.status, out);
    }
    tsr_json_start(&json, take_text, &digest, 0, err);
    tsr_json_value(&json, entry->value);
    return tsr_digest_finish(&digest, tsr_json_finish(&json), out);
}

const char *tsr_digest_text(const tsr_digest *digest, char *out)
{
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < digest->size; i++) {
        out[2 * i] = hex[digest->bytes[i] >> 4];
        out[2 * i + 1] = hex[digest->bytes[i] & 15];
    }
    out[2 * digest->size] = 0;
    return out;
}
