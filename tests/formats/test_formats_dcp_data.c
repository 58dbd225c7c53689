/* Data files of DCP checkpoints that do not match their metadata: safetensors images, torch.save archives, and archives in
 * zstd streams (using a substitute for the codec, so that a test can make a stream end, fail or grow). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>

#include <cmocka.h>

#define ZIP_IMAGE_BYTES (20 << 20) /* more than the window of a stream keeps */

#include "support/checkpoint_opening.h"
#include "support/dcp_pickle.h"
#include "support/st_image.h"
#include "support/torch_pickle.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

static zip_image image;

typedef struct opened {
    tsr_memory_file files[2];
    tsr_host host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_error err;
    tsr_status status;
} opened;

/* Takes ownership of `data`. */
static void open_data(opened *o, const char *metadata, tsr_str data, const tsr_zstd_ops *zstd)
{
    *o = (opened){.files = {{TSR_STR(".metadata"), tsr_str_from(metadata)}, {TSR_STR("d"), data}},
                  .host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default(), .zstd = zstd}};
    assert_int_equal(tsr_store_from_memory(o->host.allocator, o->files, 2, &o->store, NULL), TSR_OK);
    o->status = tsr_checkpoint_open(o->store, &o->host, NULL, &o->checkpoint, &o->err);
    if (o->status != TSR_OK) fail_msg("%s", o->err.message);
    assert_int_equal(tsr_checkpoint_extents(o->checkpoint, pass_extent, NULL, &o->err), TSR_OK);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    o->store->close(o->store);
    free((char *)o->files[1].content.data);
}

static const tsr_finding *find(const opened *o, const char *part)
{
    const tsr_findings *findings = tsr_checkpoint_findings(o->checkpoint);
    for (size_t i = 0; i < tsr_findings_count(findings); i++)
        if (strstr(tsr_findings_at(findings, i)->message.data, part)) return tsr_findings_at(findings, i);
    return NULL;
}

/* Opens the checkpoint, walks it and locates its chunks. A finding about a failed read counts as an error. */
static tsr_status use_all(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err)
{
    tsr_checkpoint *checkpoint;
    (void)ctx;
    tsr_status status = tsr_checkpoint_open(store, host, NULL, &checkpoint, err);
    if (status == TSR_OK) status = tsr_checkpoint_extents(checkpoint, pass_extent, NULL, err);
    const tsr_findings *findings = status == TSR_OK ? tsr_checkpoint_findings(checkpoint) : NULL;
    for (size_t i = 0; findings && i < tsr_findings_count(findings); i++)
        if (strstr(tsr_findings_at(findings, i)->message.data, FIRE))
            status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, FIRE);
    tsr_checkpoint_close(checkpoint);
    return status;
}

static void must_bear(const opened *o)
{
    assert_int_equal(must_bear_failures(use_all, NULL, o->store, &o->host), TSR_OK);
}

static tsr_status locate_first(const opened *o, const char *fqn, tsr_view *view, tsr_error *err)
{
    const tsr_entry *entry = tsr_checkpoint_entry(o->checkpoint, tsr_str_from(fqn));
    tsr_arena *scratch = tsr_arena_new(o->host.allocator, 0, NULL);
    tsr_status status = tsr_checkpoint_locate(o->checkpoint, entry, &entry->chunks[0], scratch, view, err);
    tsr_arena_free(scratch);
    return status;
}

/* ---- safetensors images ---- */

#define PAIR(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"
#define ROWS(dtype, length) \
    METADATA(STR("w") TENSOR_OF(PROPERTIES_OF("ctorch\n" dtype "\n"), SIZE2("2", "2"), \
                                CHUNK(SIZE2("0", "0"), SIZE2("2", "2"))) STR("v") \
                 TENSOR_OF(PROPERTIES_OF("ctorch\n" dtype "\n"), SIZE2("2", "2"), CHUNK(SIZE2("0", "0"), SIZE2("2", "2"))), \
             "", AT("w", SIZE2("0", "0"), "N", "d", "0", length) AT("v", SIZE2("0", "0"), "N", "d", "0", length))
#define F32 ROWS("float32", "16")

static const struct {
    const char *metadata, *header;
    size_t data_size;
    const char *part; /* part of the finding's message; NULL for no finding */
    bool placed;      /* 'w' has a view */
} images[] = {
    {F32, "{" PAIR("w", "F32", "2,2", "0", "16") "," PAIR("v", "F32", "2,2", "16", "32") "}", 32, NULL, true},
    {F32, "{" PAIR("w", "F32", "2,2", "0", "16") "}", 16, "'v': the safetensors header of its file does not list it", true},
    {F32, "{" PAIR("w", "F32", "4", "0", "16") "," PAIR("v", "F32", "2,2", "16", "32") "}", 32,
     "'w': the safetensors header of its file has a different", false},
    {F32, "{" PAIR("w", "F32", "4,1", "0", "16") "," PAIR("v", "F32", "2,2", "16", "32") "}", 32,
     "'w': the safetensors header of its file has a different", false},
    {F32, "{" PAIR("w", "F32", "2,3", "0", "24") "," PAIR("v", "F32", "2,2", "24", "40") "}", 40,
     "'w': the safetensors header of its file has a different", false},
    {F32, "{" PAIR("w", "I32", "2,2", "0", "16") "," PAIR("v", "F32", "2,2", "16", "32") "}", 32,
     "a different dtype or shape than the metadata", false},
    {F32, "{" PAIR("w", "F32", "2,2", "0", "16") "," PAIR("v", "F32", "2,2", "16", "32") "}", 20,
     "'v': its bytes reach beyond the end of the file", true},
    {F32, "no header", 32, "safetensors", false},
    /* as PyTorch 2.13's FileSystemWriter with SAFETENSORS writes float4_e2m1fn_x2 of [2, 2] */
    {ROWS("float4_e2m1fn_x2", "4"), "{" PAIR("w", "F4", "2,4", "0", "4") "," PAIR("v", "F4", "2,4", "4", "8") "}", 8, NULL,
     true},
    {ROWS("float4_e2m1fn_x2", "4"), "{" PAIR("w", "F4", "8", "0", "4") "," PAIR("v", "F4", "2,4", "4", "8") "}", 8,
     "a different dtype or shape", false},
    {METADATA(STR("w") TENSOR(SIZE0, CHUNK(SIZE0, SIZE0)), "", AT("w", SIZE0, "N", "d", "0", "4")),
     "{" PAIR("w", "F32", "", "0", "4") "}", 4, NULL, true},
    {ROWS("float4_e2m1fn_x2", "4"), "{" PAIR("w", "F4", "4,2", "0", "4") "," PAIR("v", "F4", "2,4", "4", "8") "}", 8,
     "a different dtype or shape", false},
};

static void test_formats_dcp_data__safetensors_headers_are_held_against_the_metadata(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof images / sizeof images[0]; i++) {
        opened o;
        char header[256];
        snprintf(header, sizeof header, "%-240s", images[i].header); /* elements begin at multiples of their size */
        open_data(&o, images[i].metadata, st_image(header, images[i].data_size), NULL);
        const tsr_chunk *w = &tsr_checkpoint_entry(o.checkpoint, TSR_STR("w"))->chunks[0];
        const tsr_finding *found = images[i].part ? find(&o, images[i].part) : NULL;
        if (images[i].part && !found) fail_msg("row %zu: no such finding", i);
        if (found) assert_string_equal(found->rule->id, "dcp/item");
        if (!images[i].part && tsr_findings_count(tsr_checkpoint_findings(o.checkpoint)))
            fail_msg("row %zu: %s", i, tsr_findings_at(tsr_checkpoint_findings(o.checkpoint), 0)->message.data);
        if ((w->view != NULL) != images[i].placed) fail_msg("row %zu: view %d", i, w->view != NULL);
        if (w->view) assert_int_equal(w->view->byte_offset, 8 + strlen(header));
        else assert_int_equal(w->file, TSR_NO_FILE);
        must_bear(&o);
        drop(&o);
    }
}

/* ---- blobs ---- */

static tsr_str copy_image(void)
{
    char *copy = malloc(image.size);
    memcpy(copy, image.bytes, image.size);
    return (tsr_str){copy, image.size};
}

static const tsr_finding *open_blob(opened *o, const char *metadata_form, const char *pickle, const size_t *storages,
                                    const tsr_zstd_ops *zstd, const char *part)
{
    static char metadata[8192];
    torch_image(&image, pickle, storages);
    snprintf(metadata, sizeof metadata, metadata_form, image.size);
    open_data(o, metadata, copy_image(), zstd);
    const tsr_finding *found = part ? find(o, part) : NULL;
    if (part && !found) {
        const tsr_findings *all = tsr_checkpoint_findings(o->checkpoint);
        fail_msg("no finding '%s' but %s", part, tsr_findings_count(all) ? tsr_findings_at(all, 0)->message.data : "none");
    }
    if (found) assert_string_equal(found->rule->id, "dcp/item");
    else assert_int_equal(tsr_findings_count(tsr_checkpoint_findings(o->checkpoint)), 0);
    return found;
}

#define LENGTH                  "%zu"
#define ONE_AT(at, size, given) METADATA(STR("w") TENSOR(size, CHUNK(at, size)), "", given("w", at, "N", "d", "0", LENGTH))
#define OBJECT(given)           METADATA(STR("o") BYTE_ITEM, "", given("o", "N", "N", "d", "0", LENGTH))
#define FOUR                    PICKLED_TENSOR("0", "4", PICKLED_2("2", "2"), PICKLED_2("2", "1")) "."
#define AT_2_2(given)           ONE_AT(SIZE2("0", "0"), SIZE2("2", "2"), given)
static const size_t sixteen[] = {16, SIZE_MAX}, nothing[] = {SIZE_MAX};

static void test_formats_dcp_data__blobs_are_held_against_the_metadata(void **state)
{
    (void)state;
    static const struct {
        const char *metadata, *pickle, *part;
    } blobs[] = {
        {AT_2_2(AT), FOUR, NULL},
        {AT_2_2(AT), "I1\n.", "the item of 'w' does not contain a dense tensor"},
        {AT_2_2(AT), PICKLED_TENSOR("0", "4", PICKLED_1("4"), PICKLED_1("1")) ".",
         "contains a tensor [4] float32, but the metadata states [2, 2] float32"},
        {ONE_AT(SIZE1("0"), SIZE1("4"), AT),
         PICKLED_DTENSOR(PICKLED_1("4"), PICKLED_1("1"), PICKLED_TENSOR("0", "4", PICKLED_1("2"), PICKLED_1("1")),
                         PICKLED_MESH(PICKLED_1("2"), PICKLED_AT(PICKLED_1("0"))), PICKLED_STRIDED("0", "2"), "") ".",
         "contains a tensor [4] float32, but the metadata states [4] float32"}, /* a part of it, in two boxes */
        {OBJECT(AT), "I1\n.", NULL},
        {OBJECT(AT), FOUR, NULL},
    };
    for (size_t i = 0; i < sizeof blobs / sizeof blobs[0]; i++) {
        opened o;
        open_blob(&o, blobs[i].metadata, blobs[i].pickle, strstr(blobs[i].pickle, "storage") ? sixteen : nothing, NULL,
                  blobs[i].part);
        must_bear(&o);
        drop(&o);
    }
}

/* ---- zstd ---- */

static enum { PASS, DAMAGED, ENDS, ENDS_EARLY, SWELLS, NO_START } behaviour;

static void *zstd_start(void)
{
    return behaviour == NO_START ? NULL : &behaviour;
}

/* Copies its input to its output, or misbehaves as `behaviour` says. */
static int zstd_step(void *state, tsr_str *in, void *out, size_t out_size, size_t *written)
{
    (void)state;
    size_t size = in->size < out_size ? in->size : out_size;
    *written = 0;
    if (behaviour == DAMAGED) return -1;
    if (behaviour == ENDS_EARLY) size = 0;
    memcpy(out, in->data, size);
    *in = (tsr_str){in->data + size, in->size - size};
    *written = behaviour == SWELLS ? out_size : size;
    return behaviour == ENDS || behaviour == ENDS_EARLY;
}

static void zstd_end(void *state)
{
    assert_ptr_equal(state, &behaviour);
}

static const tsr_zstd_ops ops = {zstd_start, zstd_step, zstd_end};

static void test_formats_dcp_data__zstd_streams_are_read_to_their_end_and_no_further(void **state)
{
    (void)state;
    static const struct {
        int behaviour;
        const char *metadata, *pickle, *part;
    } streams[] = {
        {PASS, AT_2_2(ZSTD_AT), FOUR, NULL},
        {ENDS, AT_2_2(ZSTD_AT), FOUR, NULL},
        {DAMAGED, AT_2_2(ZSTD_AT), FOUR, "the zstd stream of an item is damaged"},
        {ENDS_EARLY, AT_2_2(ZSTD_AT), FOUR, "bytes follow the zstd stream"},
        {SWELLS, AT_2_2(ZSTD_AT), FOUR, "contains more than the 1048592 bytes that its item can have"},
        {NO_START, AT_2_2(ZSTD_AT), FOUR, NULL},
        {PASS, AT_2_2(ZSTD_AT), "I1\n.", "does not contain a dense tensor"},
        {PASS, OBJECT(ZSTD_AT), "I7\n.", NULL},
        {PASS, OBJECT(ZSTD_AT), FOUR, NULL},
        {PASS, ONE_AT(SIZE2("0", "0"), SIZE2("4294967296", "4294967296"), ZSTD_AT), FOUR,
         "the metadata states [4294967296, 4294967296]"},
        {PASS, ONE_AT(SIZE1("0"), SIZE1("9223372036854775807"), ZSTD_AT), FOUR, "the metadata states [9223372036854775807]"},
    };
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        opened o;
        behaviour = PASS;
        if (streams[i].behaviour == NO_START) {
            open_blob(&o, streams[i].metadata, streams[i].pickle, sixteen, &ops, NULL);
            behaviour = NO_START;
            tsr_view view;
            tsr_error err = {0};
            assert_int_equal(locate_first(&o, "w", &view, &err), TSR_E_NOMEM);
            assert_non_null(strstr(err.message, "out of memory while decompressing an item"));
        } else {
            behaviour = streams[i].behaviour;
            open_blob(&o, streams[i].metadata, streams[i].pickle, strstr(streams[i].pickle, "storage") ? sixteen : nothing,
                      &ops, streams[i].part);
            must_bear(&o);
        }
        drop(&o);
    }
}

/* The tensor in a compressed object: its bytes must be located inside the stream. */
static void test_formats_dcp_data__tensors_of_a_compressed_object_lie_in_its_stream(void **state)
{
    (void)state;
    opened o;
    behaviour = PASS;
    open_blob(&o, OBJECT(ZSTD_AT), FOUR, sixteen, &ops, NULL);
    const tsr_value *value = tsr_checkpoint_entry(o.checkpoint, TSR_STR("o"))->value;
    assert_int_equal(value->kind, TSR_VALUE_TENSOR);
    const tsr_chunk *chunk = value->as.tensor->chunks;
    assert_int_equal(chunk->file, 1);
    assert_int_equal(chunk->byte_offset, 0);
    assert_int_equal(chunk->byte_length, image.size);
    assert_true(chunk->view && chunk->view->zstd);
    assert_int_equal(chunk->view->byte_offset, image.member[1].data);
    assert_int_equal(chunk->view->stream_length, image.size);
    drop(&o);
}

/* Changes one byte of one member of a tensor or an object. Only this is reported, with the member's name. */
static void test_formats_dcp_data__crcs_inside_a_stream_are_checked(void **state)
{
    (void)state;
    static const char *const forms[] = {AT_2_2(ZSTD_AT), OBJECT(ZSTD_AT)};
    static const size_t three[] = {16, 0, 300, SIZE_MAX};
    behaviour = PASS;
    for (size_t i = 0; i < 2; i++) {
        for (size_t m = 1; m < 4; m++) {
            static char metadata[8192];
            char part[200];
            opened o;
            torch_image(&image, FOUR, three);
            zip_image_member *member = &image.member[m];
            if (member->size) image.bytes[member->data + member->size / 2] ^= 0x10;
            snprintf(metadata, sizeof metadata, forms[i], image.size);
            open_data(&o, metadata, copy_image(), &ops);
            const tsr_findings *findings = tsr_checkpoint_findings(o.checkpoint);
            assert_int_equal(tsr_findings_count(findings), member->size ? 1 : 0);
            snprintf(part, sizeof part, "the bytes of member '%s' have CRC-32", member->name);
            if (member->size) assert_non_null(find(&o, part));
            if (member->size) assert_string_equal(tsr_findings_at(findings, 0)->rule->id, "zip/crc");
            must_bear(&o);
            drop(&o);
        }
    }
}

static void add_zeros(const char *name, size_t size)
{
    void *zeros = calloc(1, size);
    zip_add(&image, name, zeros, size, ZIP_DESCRIPTOR);
    free(zeros);
}

static tsr_status stop(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    (void)ctx;
    (void)extent;
    return tsr_raise(err, TSR_E_CANCELLED, TSR_NO_POSITION, "stopped");
}

static void test_formats_dcp_data__extents_of_streams_stop_and_need_no_crc(void **state)
{
    (void)state;
    static char metadata[4096];
    opened o;
    behaviour = PASS;
    torch_image(&image, FOUR, sixteen);
    for (size_t i = 0; i < image.count; i++) {
        zip_poke(&image, image.member[i].central + ZIP_CENTRAL_CRC, 4, 0);
        zip_poke(&image, image.member[i].descriptor + 4, 4, 0);
    }
    snprintf(metadata, sizeof metadata, AT_2_2(ZSTD_AT), image.size);
    open_data(&o, metadata, copy_image(), &ops);
    assert_int_equal(tsr_checkpoint_extents(o.checkpoint, stop, NULL, &o.err), TSR_E_CANCELLED);
    must_bear(&o);
    drop(&o);
}

static void test_formats_dcp_data__bytes_of_no_item_are_found(void **state)
{
    (void)state;
    static char metadata[4096];
    opened o;
    torch_image(&image, FOUR, sixteen);
    snprintf(metadata, sizeof metadata, AT_2_2(AT), image.size);
    const size_t size = image.size;
    zip_put(&image, 8, 0); /* after the item */
    open_data(&o, metadata, copy_image(), NULL);
    const tsr_finding *found = find(&o, "belong to no item");
    assert_non_null(found);
    assert_string_equal(found->rule->id, "dcp/dead-bytes");
    assert_int_equal(found->byte_offset, size);
    must_bear(&o);
    drop(&o);
}

/* The middle of a long stream is not kept: what must be read from it is rejected, and what is at the ends can be read. */
static void test_formats_dcp_data__the_middle_of_a_long_stream_is_not_at_hand(void **state)
{
    (void)state;
    static const char one[] = PICKLED_TENSOR("0", "4456448", PICKLED_1("4456448"), PICKLED_1("1")) ".";
    static const char form[] = ONE_AT(SIZE1("0"), SIZE1("4456448"), ZSTD_AT);
    static const struct {
        size_t last; /* bytes of a member after the tensor's */
        const char *part;
    } rows[] = {{10, NULL}, {1 << 19, "bytes in the middle of a zstd stream of d"}};
    for (size_t i = 0; i < 2; i++) {
        static char metadata[4096];
        opened o;
        tsr_view view;
        tsr_error err = {0};
        behaviour = PASS;
        zip_start(&image, 0);
        zip_add(&image, "a/data.pkl", one, sizeof one - 1, ZIP_DESCRIPTOR);
        add_zeros("a/data/0", 17 << 20);
        add_zeros("a/z", rows[i].last);
        zip_add(&image, "a/version", "3\n", 2, ZIP_DESCRIPTOR);
        zip_finish(&image, true);
        snprintf(metadata, sizeof metadata, form, image.size);
        open_data(&o, metadata, copy_image(), &ops);
        if (rows[i].part) assert_non_null(find(&o, rows[i].part));
        else assert_int_equal(tsr_findings_count(tsr_checkpoint_findings(o.checkpoint)), 0);
        assert_int_equal(locate_first(&o, "w", &view, &err), rows[i].part ? TSR_E_UNSUPPORTED : TSR_OK);
        if (!rows[i].part) {
            assert_true(view.zstd);
            assert_int_equal(view.byte_offset, image.member[1].data);
            assert_int_equal(view.stream_length, image.size);
        }
        behaviour = ENDS; /* a frame that ends exactly where a read ends, followed by more bytes */
        assert_int_equal(locate_first(&o, "w", &view, &(tsr_error){0}), TSR_E_FORMAT);
        drop(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_dcp_data__safetensors_headers_are_held_against_the_metadata),
        cmocka_unit_test(test_formats_dcp_data__blobs_are_held_against_the_metadata),
        cmocka_unit_test(test_formats_dcp_data__zstd_streams_are_read_to_their_end_and_no_further),
        cmocka_unit_test(test_formats_dcp_data__tensors_of_a_compressed_object_lie_in_its_stream),
        cmocka_unit_test(test_formats_dcp_data__crcs_inside_a_stream_are_checked),
        cmocka_unit_test(test_formats_dcp_data__extents_of_streams_stop_and_need_no_crc),
        cmocka_unit_test(test_formats_dcp_data__bytes_of_no_item_are_found),
        cmocka_unit_test(test_formats_dcp_data__the_middle_of_a_long_stream_is_not_at_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
