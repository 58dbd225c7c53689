/* A torch.save archive as values.
 *
 *   <top>/data.pkl        the pickle, with persistent ids for storages
 *   <top>/data/<key>      one member a storage
 *   <top>/byteorder       "little" or "big"; absent before PyTorch 2.1: little */
#include "formats/torch/torch_item.h"

#include "formats/torch/torch_verdict.h"
#include "tessera/sys/try.h"

#include "tessera/sys/finding_add.h"
#include "tessera/sys/store_read.h"

static tsr_status read_member(const tsr_zip_window *window, const tsr_torch_build *build, const tsr_zip_member *member,
                              tsr_str *out, tsr_error *err)
{
    const tsr_host *host = build->host;
    TSR_FAIL_AT(member->size > host->limits.metadata_bytes, err, TSR_E_LIMIT, member->byte_offset,
                "torch: '%.*s' has %llu bytes, which exceed the limit of %llu (metadata_bytes)", TSR_STR_ARG(member->name),
                (unsigned long long)member->size, (unsigned long long)host->limits.metadata_bytes);
    char *bytes = tsr_arena_array(build->arena, (size_t)member->size, 1, err);
    if (!bytes) return TSR_E_NOMEM;
    TSR_TRY(tsr_zip_window_read(window, member->byte_offset, bytes, (size_t)member->size, err));
    *out = (tsr_str){bytes, (size_t)member->size};
    return TSR_OK;
}

static tsr_status read_byte_order(const tsr_zip_window *window, const tsr_zip *zip, bool *big, tsr_error *err)
{
    const tsr_zip_member *member = tsr_zip_find(zip, TSR_STR("byteorder"));
    char text[6];
    *big = false;
    if (!member) return TSR_OK;
    size_t size = member->size < sizeof text ? (size_t)member->size : sizeof text;
    TSR_TRY(tsr_zip_window_read(window, member->byte_offset, text, size, err));
    *big = member->size == 3 && memcmp(text, "big", 3) == 0;
    TSR_FAIL_AT(!*big && (member->size != 6 || memcmp(text, "little", 6) != 0), err, TSR_E_FORMAT, member->byte_offset,
                "torch: 'byteorder' is neither \"little\" nor \"big\"");
    return TSR_OK;
}

/* A number as C++'s stoull reads it, or 0: leading white space, digits, then anything. */
static uint64_t leading_number(const char *text, size_t size)
{
    uint64_t value = 0;
    size_t at = 0;
    while (at < size && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r'))) at++;
    if (at < size && text[at] == '+') at++;
    for (; at < size && text[at] >= '0' && text[at] <= '9' && value < UINT32_MAX; at++)
        value = value * 10 + (uint64_t)(text[at] - '0');
    return value;
}

/* PyTorch reads archives of the versions 1 to 10 only (kMinSupportedFileFormatVersion, kMaxSupportedFileFormatVersion). */
static tsr_status judge_version(const tsr_torch_build *build, const tsr_zip_window *window, const tsr_zip *zip,
                                tsr_error *err)
{
    const tsr_zip_member *member = tsr_zip_find(zip, TSR_STR(".data/version"));
    char text[24];
    if (!build->findings) return TSR_OK;
    if (!member) member = tsr_zip_find(zip, TSR_STR("version"));
    tsr_place place = {build->file_name, member ? member->byte_offset : zip->byte_offset, {NULL, 0}};
    if (!member)
        return tsr_finding_add(build->findings, "torch/version", place, err,
                               "the archive has no member 'version'; PyTorch refuses it");
    size_t size = member->size < sizeof text ? (size_t)member->size : sizeof text;
    TSR_TRY(tsr_zip_window_read(window, member->byte_offset, text, size, err));
    uint64_t version = leading_number(text, size);
    if (version >= 1 && version <= 10) return TSR_OK;
    for (size_t i = 0; i < size; i++)
        if (text[i] < ' ' || text[i] > '~') size = i;
    return tsr_finding_add(build->findings, "torch/version", place, err,
                           "the archive's version is '%.*s'; PyTorch reads versions 1 to 10", (int)size, text);
}

/* torch.load takes '.storage_alignment' for an int, whether or not it uses it. */
static tsr_status judge_alignment(const tsr_torch_build *build, const tsr_zip_window *window, const tsr_zip *zip,
                                  tsr_error *err)
{
    const tsr_zip_member *member = tsr_zip_find(zip, TSR_STR(".storage_alignment"));
    char text[24];
    bool digits = false, known = member && member->size <= sizeof text;
    if (!build->findings || !member) return TSR_OK;
    if (known) TSR_TRY(tsr_zip_window_read(window, member->byte_offset, text, (size_t)member->size, err));
    for (size_t i = 0; known && i < member->size; i++) {
        digits |= text[i] >= '0' && text[i] <= '9';
        known = (text[i] >= '0' && text[i] <= '9') || (text[i] && strchr(" \n_+-", text[i]));
    }
    if (known && digits) return TSR_OK;
    tsr_place place = {build->file_name, member->byte_offset, {NULL, 0}};
    return tsr_finding_add(build->findings, "torch/version", place, err,
                           "the member '.storage_alignment' is not a decimal number; PyTorch refuses the archive");
}

static tsr_status locate_storages(tsr_torch_build *build, const tsr_zip *zip, tsr_error *err)
{
    tsr_torch_storage *storages = build->storages.items;
    for (size_t i = 0; i < build->storages.count; i++) {
        if (storages[i].meta) continue;
        tsr_str name = tsr_arena_format(build->arena, err, "data/%.*s", TSR_STR_ARG(storages[i].key));
        if (!name.data) return TSR_E_NOMEM;
        const tsr_zip_member *member = tsr_zip_find(zip, name);
        TSR_FAIL_AT(!member, err, TSR_E_FORMAT, zip->byte_offset,
                    "torch: the archive has no '%.*s' for a storage of %llu bytes", TSR_STR_ARG(name),
                    (unsigned long long)storages[i].byte_length);
        TSR_FAIL_AT(member->size != storages[i].byte_length, err, TSR_E_FORMAT, member->byte_offset,
                    "torch: storage '%.*s' has %llu bytes, but its member '%.*s' has %llu", TSR_STR_ARG(storages[i].key),
                    (unsigned long long)storages[i].byte_length, TSR_STR_ARG(name), (unsigned long long)member->size);
        storages[i].byte_offset = member->byte_offset;
    }
    return TSR_OK;
}

bool tsr_torch_is_storage(const tsr_zip *zip, const tsr_zip_member *member)
{
    const size_t top = zip->top.size ? zip->top.size + 1 : 0;
    return tsr_str_starts((tsr_str){member->name.data + top, member->name.size - top}, TSR_STR("data/"));
}

static bool storages_unsummed(const tsr_zip *zip)
{
    bool bytes = false;
    for (uint32_t m = 0; m < zip->count; m++) {
        if (!tsr_torch_is_storage(zip, &zip->members[m])) continue;
        if (zip->members[m].crc32 != 0) return false;
        bytes |= zip->members[m].size > 0;
    }
    return bytes && !zip->crc_absent;
}

static tsr_status build_values(tsr_torch_build *build, const tsr_zip *zip, bool big, tsr_torch_item *out, tsr_error *err)
{
    TSR_TRY(tsr_torch_build_open(build, err));
    TSR_TRY(tsr_torch_values(build, tsr_pickle_root(build->pickle), &out->root, err));
    TSR_TRY(locate_storages(build, zip, err));
    out->storage_count = (uint32_t)build->storages.count;
    out->storages_unsummed = storages_unsummed(zip);
    out->rank_known = build->rank.known;
    out->rank = build->rank.rank;
    out->world = build->rank.world;
    return tsr_torch_place(build, big, err);
}

static tsr_status find_pickle(const tsr_zip *zip, const tsr_zip_member **out, tsr_error *err)
{
    *out = tsr_zip_find(zip, TSR_STR("data.pkl"));
    TSR_FAIL_AT(tsr_zip_find(zip, TSR_STR("constants.pkl")), err, TSR_E_UNSUPPORTED, zip->byte_offset,
                "torch: a TorchScript archive (torch.jit.save), not a checkpoint");
    TSR_FAIL_AT(!*out, err, TSR_E_FORMAT, zip->byte_offset, "torch: a zip archive without a member <folder>/data.pkl");
    return TSR_OK;
}

static tsr_status open_item(tsr_zip_window *window, tsr_torch_build *build, tsr_torch_item *out, tsr_error *err)
{
    const tsr_host *host = build->host;
    const tsr_zip *zip = &out->zip;
    const tsr_zip_member *member;
    tsr_str bytes;
    bool big;
    TSR_TRY(tsr_zip_open(window, host, build->arena, &out->zip, err));
    TSR_TRY(find_pickle(zip, &member, err));
    TSR_TRY(judge_version(build, window, zip, err));
    TSR_TRY(judge_alignment(build, window, zip, err));
    TSR_TRY(read_byte_order(window, zip, &big, err));
    TSR_TRY(read_member(window, build, member, &bytes, err));
    tsr_pickle *pickle;
    size_t consumed;
    build->pickle_offset = member->byte_offset;
    build->pickle_bytes = bytes;
    out->pickle_bytes = bytes.size;
    tsr_status status = tsr_pickle_parse(bytes, host, &tsr_torch_names, &pickle, &consumed, err);
    if (status != TSR_OK) {
        if (err && err->byte_position != TSR_NO_POSITION) err->byte_position += member->byte_offset;
        tsr_error_context(err, "%.*s", TSR_STR_ARG(member->name));
        return status;
    }
    build->pickle = pickle;
    status = build_values(build, zip, big, out, err);
    if (status == TSR_OK) status = tsr_torch_verdict_on_end(build, consumed, bytes.size, err);
    tsr_torch_build_close(build);
    tsr_pickle_free(pickle);
    return status;
}

tsr_status tsr_torch_item_open(const tsr_torch_source *from, const tsr_host *host, tsr_arena *arena, tsr_findings *findings,
                               tsr_torch_item *out, tsr_error *err)
{
    tsr_store *store = from->range.store;
    tsr_torch_build build = {.host = host,
                             .arena = arena,
                             .findings = findings,
                             .file_name = store->files[from->range.file].name,
                             .file = from->range.file,
                             .rank = {.hinted = from->has_rank, .hint = from->rank},
                             .zstd = from->zstd};
    *out = (tsr_torch_item){0};
    tsr_zip_window window = tsr_zip_window_of(from->range, host->allocator);
    const tsr_status status = open_item(&window, &build, out, err);
    tsr_zip_window_free(&window);
    TSR_TRY(status);
    const bool absent = out->zip.crc_absent;
    if (!(absent || out->storages_unsummed) || !findings || store->unsummed) return TSR_OK;
    tsr_place place = {build.file_name, from->range.byte_offset, {NULL, 0}};
    return tsr_finding_add(findings, "zip/crc-absent", place, err,
                           absent ? "the archive carries no checksums (every CRC-32 is 0)"
                                  : "the archive carries no checksums of tensors (the CRC-32 of every storage is 0, as "
                                    "torch.serialization.skip_data leaves it)");
}
