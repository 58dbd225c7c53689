/* The zip around a torch.save pickle and its storages.
 *
 *   [header data.pkl][pickle][descriptor] … [header data/0] storage 0 [descriptor][header data/1] storage 1 … [descriptor]
 *   └────────────── piece 0 ─────────────┘                 └───── piece 1 ──────┘             └── piece 2, with version,
 *   serialization_id and the central directory ──┘
 *
 * The serialization id is 40 digits as torch's: the CRC of all names, then the CRC of all contents before it. */
#include "formats/torch/torch_writer.h"

#include <inttypes.h>

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#include "tessera/sys/host_calls.h"

#define TOP            "archive/"
#define ID_MEMBER      ".data/serialization_id"
#define ID_NAME        TOP ID_MEMBER
#define ID_DIGITS      40u
#define MEMBERS_AROUND 6u /* data.pkl, .format_version, .storage_alignment, byteorder; version, serialization_id */

static const tsr_str head_contents[] = {{NULL, 0}, {"1", 1}, {"64", 2}, {"little", 6}};

static void set_member(tsr_torch_archive *archive, size_t index, const char *name, tsr_str content, const tsr_host *host)
{
    archive->members[index] =
        (tsr_zip_new_member){.name = tsr_str_from(name),
                             .size = content.size,
                             .crc32 = archive->unsummed ? 0 : tsr_crc32(host, 0, content.data, content.size)};
}

static tsr_status name_storages(tsr_torch_archive *archive, const tsr_torch_new_storage *storages, tsr_arena *arena,
                                tsr_error *err)
{
    for (uint32_t i = 0; i < archive->storage_count; i++) {
        tsr_zip_new_member *member = &archive->members[archive->first_storage + i];
        member->name = tsr_arena_format(arena, err, TOP "data/%u", (unsigned)i);
        member->size = storages[i].byte_length;
        if (!member->name.data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

tsr_status tsr_torch_archive_around(tsr_str pickle, const tsr_torch_tree *tree, const tsr_host *host, tsr_arena *arena,
                                    tsr_torch_archive *out, tsr_error *err)
{
    uint64_t directory;
    *out = (tsr_torch_archive){.pickle = pickle,
                               .storage_count = tree->storage_count,
                               .first_storage = 4,
                               .unsummed = tree->unsummed,
                               .member_count = (size_t)tree->storage_count + MEMBERS_AROUND};
    out->members = tsr_arena_array(arena, out->member_count, sizeof *out->members, err);
    if (!out->members) return TSR_E_NOMEM;
    set_member(out, 0, TOP "data.pkl", pickle, host);
    set_member(out, 1, TOP ".format_version", head_contents[1], host);
    set_member(out, 2, TOP ".storage_alignment", head_contents[2], host);
    set_member(out, 3, TOP "byteorder", head_contents[3], host);
    TSR_TRY(name_storages(out, tree->storages, arena, err));
    set_member(out, out->member_count - 2, TOP "version", TSR_STR("3\n"), host);
    out->members[out->member_count - 1] = (tsr_zip_new_member){.name = TSR_STR(ID_NAME), .size = ID_DIGITS};
    TSR_FAIL_IF(!tsr_zip_layout(out->members, out->member_count, &directory, &out->size), err, TSR_E_LIMIT,
                "torch: the archive is too large");
    return TSR_OK;
}

static tsr_status append_member(const tsr_zip_new_member *member, tsr_str content, tsr_vec *out, tsr_error *err)
{
    TSR_TRY(tsr_zip_append_header(member, out, err));
    TSR_TRY(tsr_vec_append(out, content.data, content.size, err));
    return tsr_zip_append_descriptor(member, out, err);
}

static void put_digits(char *out, uint64_t number)
{
    for (unsigned i = ID_DIGITS / 2; i-- > 0; number /= 10) out[i] = (char)('0' + number % 10);
}

/* By all members but the last, which has the id. */
static void identify(const tsr_zip_new_member *members, size_t count, char id[ID_DIGITS])
{
    uint32_t names = 0, contents = 0;
    for (size_t i = 0; i + 1 < count; i++) {
        const tsr_zip_new_member *m = &members[i];
        names = tsr_crc32(NULL, names, m->name.data, m->name.size);
        contents = tsr_crc32_join(contents, m->crc32, m->size);
    }
    put_digits(id, names);
    put_digits(id + ID_DIGITS / 2, contents);
}

static tsr_status append_tail(tsr_torch_archive *archive, tsr_vec *out, tsr_error *err)
{
    char id[ID_DIGITS];
    tsr_zip_new_member *last = &archive->members[archive->member_count - 1];
    TSR_TRY(append_member(last - 1, TSR_STR("3\n"), out, err));
    for (size_t m = archive->first_storage; archive->unsummed && m < archive->member_count; m++)
        archive->members[m].crc32 = 0;
    identify(archive->members, archive->member_count, id);
    last->crc32 = archive->unsummed ? 0 : tsr_crc32(NULL, 0, id, sizeof id);
    TSR_TRY(append_member(last, (tsr_str){id, sizeof id}, out, err));
    return tsr_zip_append_directory(archive->members, archive->member_count, out, err);
}

tsr_status tsr_torch_archive_piece(tsr_torch_archive *archive, uint32_t i, tsr_vec *out, uint64_t *byte_at, tsr_error *err)
{
    tsr_zip_new_member *before = i ? &archive->members[archive->first_storage + i - 1] : NULL;
    if (before && archive->unsummed) before->crc32 = 0;
    *byte_at = before ? before->byte_offset + before->size : 0;
    for (size_t m = 0; !before && m < archive->first_storage; m++) {
        TSR_TRY(append_member(&archive->members[m], m ? head_contents[m] : archive->pickle, out, err));
    }
    if (before) TSR_TRY(tsr_zip_append_descriptor(before, out, err));
    if (i < archive->storage_count) return tsr_zip_append_header(&archive->members[archive->first_storage + i], out, err);
    return append_tail(archive, out, err);
}

/* ---- what Tessera or torch.save wrote ---- */

/* The second half of torch's id: PyTorch's hash_combine over the CRCs of all members that have bytes. Its first half is a hash of names that
 * differs from one C++ library to another. */
static void identify_as_torch(const tsr_zip_new_member *members, size_t count, char contents[ID_DIGITS / 2])
{
    uint64_t hash = 0;
    for (size_t i = 0; i + 1 < count; i++)
        if (members[i].size) hash ^= members[i].crc32 + UINT64_C(0x9e3779b9) + (hash << 6) + (hash >> 2);
    put_digits(contents, hash);
}

/* Whether the last member is the id of the others. One half of Tessera's is enough, as the other one may be damaged. */
static tsr_status has_known_id(tsr_range range, const tsr_zip_new_member *members, size_t count, bool *out, tsr_error *err)
{
    const tsr_zip_new_member *last = &members[count - 1];
    char id[ID_DIGITS], want[ID_DIGITS], torch[ID_DIGITS / 2];
    const char *contents = id + ID_DIGITS / 2;
    *out = tsr_str_ends(last->name, TSR_STR("/" ID_MEMBER)) && last->size == ID_DIGITS;
    if (!*out) return TSR_OK;
    TSR_TRY(tsr_store_read(range.store, range.file, last->byte_offset, id, sizeof id, err));
    identify(members, count, want);
    identify_as_torch(members, count, torch);
    *out = memcmp(id, want, ID_DIGITS / 2) == 0 || memcmp(contents, want + ID_DIGITS / 2, ID_DIGITS / 2) == 0 ||
           memcmp(contents, torch, ID_DIGITS / 2) == 0;
    return TSR_OK;
}

/* Replaces the members' places by those that Tessera and torch.save give them. Returns whether they are the same. */
static bool has_known_places(tsr_range range, tsr_zip_new_member *members, size_t count, uint64_t *before)
{
    uint64_t directory, size;
    for (size_t i = 0; i < count; i++) before[i] = members[i].byte_offset;
    bool same = tsr_zip_layout(members, count, &directory, &size) && size == range.byte_length;
    for (size_t i = 0; i < count && same; i++) same = before[i] == range.byte_offset + members[i].byte_offset;
    return same;
}

tsr_status tsr_torch_written_open(tsr_range range, const tsr_host *host, tsr_zip_new_member *members, size_t count,
                                  tsr_torch_written *out, tsr_error *err)
{
    bool known = count > 1;
    *out = (tsr_torch_written){.count = count, .range = range, .bytes = tsr_vec_of(host->allocator, 1)};
    if (known) TSR_TRY(has_known_id(range, members, count, &known, err));
    if (!known) return TSR_OK;
    uint64_t *places = tsr_alloc(host->allocator, count, sizeof *places, err);
    if (!places) return TSR_E_NOMEM;
    if (has_known_places(range, members, count, places)) out->members = members;
    tsr_free(host->allocator, places, count, sizeof *places);
    return TSR_OK;
}

tsr_status tsr_torch_written_gap(tsr_torch_written *w, const tsr_host *host, size_t i, tsr_extent *out, tsr_error *err)
{
    const tsr_zip_new_member *before = i ? &w->members[i - 1] : NULL;
    w->bytes.count = 0;
    if (before) TSR_TRY(tsr_zip_append_descriptor(before, &w->bytes, err));
    if (i < w->count) TSR_TRY(tsr_zip_append_header(&w->members[i], &w->bytes, err));
    else TSR_TRY(tsr_zip_append_directory(w->members, w->count, &w->bytes, err));
    const uint64_t at = before ? before->byte_offset + before->size : 0;
    *out = (tsr_extent){.file = w->range.file,
                        .byte_offset = w->range.byte_offset + at,
                        .byte_length = w->bytes.count,
                        .has_crc = true,
                        .covers = TSR_COVERS_AROUND,
                        .crc32 = tsr_crc32(host, 0, w->bytes.items, w->bytes.count),
                        .member = i < w->count ? w->members[i].name : TSR_STR("the end"),
                        .before = at};
    return TSR_OK;
}

void tsr_torch_written_close(tsr_torch_written *written)
{
    if (written->bytes.allocator) tsr_vec_free(&written->bytes);
}
