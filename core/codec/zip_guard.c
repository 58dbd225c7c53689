/* See zip_guard.h. */
#include "codec/zip_guard.h"

#include "codec/zip_local.h"
#include "tessera/sys/try.h"

#include "tessera/sys/vec.h"

enum { ALIGNMENT = 64 };

/* What a local header is compared with when the store reads it. */
typedef struct facts {
    tsr_zip_member member, before; /* the bytes of their names follow this struct */
    size_t descriptor;             /* size of the descriptor that follows the data of `before` */
} facts;

static tsr_status check(const tsr_store_guard *guard, const uint8_t *bytes, tsr_error *err)
{
    facts known;
    memcpy(&known, guard->facts.data, sizeof known);
    known.member.name.data = guard->facts.data + sizeof known;
    known.before.name.data = known.member.name.data + known.member.name.size;
    const tsr_zip_member *member = &known.member;
    if (known.descriptor) TSR_TRY(tsr_zip_check_descriptor(&known.before, bytes, known.descriptor, err));
    const uint8_t *p = bytes + known.descriptor;
    const uint64_t head = member->byte_offset - member->header_offset;
    TSR_FAIL_AT(tsr_load_le(p, 4) != TSR_ZIP_LOCAL_SIGNATURE, err, TSR_E_FORMAT, member->header_offset,
                "zip: the central directory points to no local header of '%.*s'", TSR_STR_ARG(member->name));
    const uint64_t stated = TSR_ZIP_LOCAL_SIZE + tsr_load_le(p + 26, 2) + tsr_load_le(p + 28, 2);
    TSR_FAIL_AT(stated != head, err, TSR_E_FORMAT, member->header_offset,
                "zip: the local header of '%.*s' has %llu bytes, where the central directory leaves %llu",
                TSR_STR_ARG(member->name), (unsigned long long)stated, (unsigned long long)head);
    return tsr_zip_check_local(member, p, err);
}

/* The size of a member's local header, computed from the distance to the next header. Returns 0 if it cannot be
 * determined. */
static uint64_t head_of(const tsr_zip_member *member, uint64_t base, uint64_t next)
{
    const uint64_t least = TSR_ZIP_LOCAL_SIZE + member->name.size, most = least + UINT16_MAX;
    if (next < member->header_offset || next - member->header_offset < member->size) return 0;
    const uint64_t room = next - member->header_offset - member->size;
    if (!(member->flags & TSR_ZIP_FLAG_DESCRIPTOR)) return room >= least && room <= most ? room : 0;
    for (uint64_t gap = TSR_ZIP_DESCRIPTOR_LEAST; gap <= TSR_ZIP_DESCRIPTOR_MOST && gap + least <= room; gap += 4) {
        const uint64_t head = room - gap;
        if (head <= most && (member->header_offset - base + head) % ALIGNMENT == 0) return head;
    }
    return 0;
}

static uint64_t head_at(const tsr_zip_locals *locals, uint32_t i)
{
    const uint64_t next = i + 1 < locals->zip->count ? locals->order[i + 1]->header_offset : locals->end;
    return head_of(locals->order[i], locals->zip->byte_offset, next);
}

static void append(tsr_vec *text, const void *bytes, size_t size)
{
    if (size) memcpy((char *)text->items + text->count, bytes, size);
    text->count += size;
}

/* Registers the guard of member `i`. byte_offset must be known for it and for the member before it. */
static tsr_status guard(tsr_store *store, const tsr_zip_locals *locals, uint32_t i, tsr_vec *text, tsr_error *err)
{
    const tsr_zip_member *member = locals->order[i], *before = i ? locals->order[i - 1] : NULL;
    const uint64_t from = before ? before->byte_offset + before->size : member->header_offset;
    facts known = {.member = *member, .descriptor = (size_t)(member->header_offset - from)};
    if (before) known.before = *before;
    text->count = 0;
    TSR_TRY(tsr_vec_reserve(text, sizeof known + known.member.name.size + known.before.name.size, err));
    append(text, &known, sizeof known);
    append(text, known.member.name.data, known.member.name.size);
    append(text, known.before.name.data, known.before.name.size);
    return store->guard(
        store, &(tsr_store_guard){locals->file, from, member->byte_offset, member->size, {text->items, text->count}, check},
        err);
}

tsr_status tsr_zip_guard_locals(tsr_store *store, const tsr_allocator *allocator, const tsr_zip_locals *locals,
                                bool *is_guarded, tsr_error *err)
{
    *is_guarded = false;
    for (uint32_t i = 0; i < locals->zip->count; i++) {
        const uint64_t head = head_at(locals, i);
        if (!head) return TSR_OK;
        locals->order[i]->byte_offset = locals->order[i]->header_offset + head;
    }
    tsr_vec text = tsr_vec_of(allocator, 1);
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < locals->zip->count && status == TSR_OK; i++) status = guard(store, locals, i, &text, err);
    tsr_vec_free(&text);
    *is_guarded = status == TSR_OK;
    return status;
}
