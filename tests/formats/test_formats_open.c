/* Opening: what each store is taken for, what every refusal says, and catalogs of safetensors of every arrangement. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "formats/recognize.h"
#include "support/checkpoint_opening.h"
#include "support/st_image.h"

#define MAX_FILES 8

typedef struct part {
    const char *name;
    const char *text;
    size_t data_size; /* > 0: a safetensors image of `text` and so many data bytes; SIZE_MAX: an image without data */
    size_t text_size; /* 0: strlen */
} part;

typedef struct folder {
    tsr_memory_file files[MAX_FILES];
    uint32_t count;
    tsr_store *store;
    tsr_host host;
} folder;

static void make_folder(folder *f, const part *parts, const char *primary)
{
    memset(f, 0, sizeof *f);
    f->host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    for (; f->count < MAX_FILES && parts[f->count].name; f->count++) {
        const part *p = &parts[f->count];
        size_t size = p->text_size ? p->text_size : strlen(p->text);
        tsr_str content;
        if (p->data_size) {
            content = st_image(p->text, p->data_size == SIZE_MAX ? 0 : p->data_size);
        } else {
            char *copy = malloc(size + 1);
            memcpy(copy, p->text, size);
            content = (tsr_str){copy, size};
        }
        f->files[f->count] = (tsr_memory_file){tsr_str_from(p->name), content};
    }
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, f->files, f->count, &f->store, NULL), TSR_OK);
    f->store->primary = primary ? tsr_store_find(f->store, tsr_str_from(primary)) : TSR_NO_FILE;
}

static void drop_folder(folder *f)
{
    f->store->close(f->store);
    for (uint32_t i = 0; i < f->count; i++) free((char *)f->files[i].content.data);
}

#define EMPTY                    "{}"
#define U8(name, size, from, to) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" size "],\"data_offsets\":[" from "," to "]}"
#define TORCH                    "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0archive/data.pkl"
#define TORCH_SIZE               46
#define LEGACY                   "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

#define FORTY     "a-name-of-forty-bytes-a-name-of-forty-byt"
#define LONG_NAME FORTY FORTY FORTY FORTY

typedef struct recognition {
    part parts[MAX_FILES];
    const char *primary;
    tsr_format format;    /* or NONE: refused */
    const char *expected; /* the chosen files, joined by blanks; or a part of the message */
} recognition;

static const recognition recognitions[] = {
    {{{"any", EMPTY, SIZE_MAX, 0}}, NULL, TSR_FORMAT_SAFETENSORS, "any"},
    {{{"broken.safetensors", "hello", SIZE_MAX, 0}}, NULL, TSR_FORMAT_SAFETENSORS, "broken.safetensors"},
    {{{"m.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_TORCH_ZIP, "m.pt"},
    {{{"m.safetensors", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_TORCH_ZIP, "m.safetensors"},
    {{{"old.pth", LEGACY, 0, 0}}, NULL, TSR_FORMAT_TORCH_LEGACY, "old.pth"},
    {{{".metadata", "\x80\4.", 0, 0}, {"__0_0.distcp", TORCH, 0, TORCH_SIZE}, {"m.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_DCP,
     ".metadata"},
    {{{".metadata", "\x80\4.", 0, 0}, {"__0_0.distcp", TORCH, 0, TORCH_SIZE}}, ".metadata", TSR_FORMAT_DCP, ".metadata"},
    {{{"__10.metadata", "x", 0, 0}, {"__2.metadata", "x", 0, 0}, {"__0.metadata", "x", 0, 0}},
     NULL,
     TSR_FORMAT_DCP,
     "__0.metadata __2.metadata __10.metadata"},
    {{{"config.json", "{\"a\":1}", 0, 0}, {"m.safetensors", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_SAFETENSORS,
     "m.safetensors"},
    {{{"config.json", "{\"a\":1}", 0, 0}, {"m.bin", TORCH, 0, TORCH_SIZE}, {"sub/x.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_TORCH_ZIP,
     "m.bin"},
    {{{"a.safetensors", EMPTY, SIZE_MAX, 0}, {"b.safetensors", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_SAFETENSORS,
     "a.safetensors b.safetensors"},
    {{{"shard-00001-model-00001-of-00001.safetensors", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", SIZE_MAX, 0},
      {"shard-00002-model-00001-of-00001.safetensors", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_DCP_SAFETENSORS,
     "shard-00001-model-00001-of-00001.safetensors shard-00002-model-00001-of-00001.safetensors"},
    {{{"model.safetensors.index.json", "{\"weight_map\":{\"a\":\"x\"}}", 0, 0},
      {"x", EMPTY, SIZE_MAX, 0},
      {"optimizer.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_SAFETENSORS_INDEX,
     "model.safetensors.index.json"},
    {{{"my.json", "{\"weight_map\":{\"a\":\"x.bin\"}}", 0, 0}, {"x.bin", TORCH, 0, TORCH_SIZE}},
     "my.json",
     TSR_FORMAT_TORCH_INDEX,
     "my.json"},
    {{{"pytorch_model.bin.index.json", "{\"weight_map\":{\"a\":\"gone.bin\"}}", 0, 0}},
     NULL,
     TSR_FORMAT_TORCH_INDEX,
     "pytorch_model.bin.index.json"},
    {{{"rank10.pt", TORCH, 0, TORCH_SIZE}, {"rank2.pt", LEGACY, 0, 0}, {"expect.json", "{\"a\":1}", 0, 0}},
     NULL,
     TSR_FORMAT_TORCH_RANKS,
     "rank2.pt rank10.pt"},
    {{{"0.optim.pt", TORCH, 0, TORCH_SIZE}, {"1.optim.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_TORCH_RANKS,
     "0.optim.pt 1.optim.pt"},
    {{{"step9_rank0.pt", TORCH, 0, TORCH_SIZE}, {"step9_rank1.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_TORCH_RANKS,
     "step9_rank0.pt step9_rank1.pt"},
    {{{"1.pt", TORCH, 0, TORCH_SIZE}, {"2.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_TORCH_RANKS, "1.pt 2.pt"},
    {{{"__x.metadata", "x", 0, 0}, {"m.safetensors", EMPTY, SIZE_MAX, 0}}, NULL, TSR_FORMAT_SAFETENSORS, "m.safetensors"},
    {{{"old.pt", LEGACY, 0, 0}, {"notes.txt", "x", 0, 0}}, NULL, TSR_FORMAT_TORCH_LEGACY, "old.pt"},
    {{{"a.safetensors", "not a header", 0, 0}, {"notes.txt", "x", 0, 0}}, NULL, TSR_FORMAT_SAFETENSORS, "a.safetensors"},
    {{{"a.safetensors", "x", 0, 0}, {"notes.txt", "x", 0, 0}}, NULL, TSR_FORMAT_SAFETENSORS, "a.safetensors"},
    /* refusals */
    {{{"r.pt", "PK\3\4", 0, 4}}, NULL, TSR_FORMAT_NONE, "a zip archive"},
    {{{"x", "ab", 0, 0}}, NULL, TSR_FORMAT_NONE, "begins with the bytes 61 62 00 00"},
    {{{"rank1.pt", TORCH, 0, TORCH_SIZE}, {"rank01.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file a rank"},
    {{{"a.pt", TORCH, 0, TORCH_SIZE}, {"aa.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file a rank"},
    {{{"epoch1.pt", TORCH, 0, TORCH_SIZE}, {"epoch2.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file a rank"},
    {{{"iter1.pt", TORCH, 0, TORCH_SIZE}, {"iter2.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file a rank"},
    {{{"a.pt", TORCH, 0, TORCH_SIZE},
      {"b.pt", TORCH, 0, TORCH_SIZE},
      {"c.pt", TORCH, 0, TORCH_SIZE},
      {"d.pt", TORCH, 0, TORCH_SIZE},
      {"e.pt", TORCH, 0, TORCH_SIZE},
      {"f.pt", TORCH, 0, TORCH_SIZE},
      {"g.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "(7): a.pt, b.pt, c.pt, d.pt, e.pt, f.pt, …; name one of them"},
    {{{"saved_model.pb", "x", 0, 0}, {"variables", "x", 0, 0}}, NULL, TSR_FORMAT_NONE, "a TensorFlow checkpoint"},
    {{{"_CHECKPOINT_METADATA", "{}", 0, 0}, {"d", "x", 0, 0}}, NULL, TSR_FORMAT_NONE, "Zarr or Orbax"},
    {{{"a.h5", "\x89HDF\r\n\x1a\n", 0, 0}, {"b.gguf", "GGUF", 0, 0}}, NULL, TSR_FORMAT_NONE, "a.h5 is an HDF5 file"},
    {{{NULL, NULL, 0, 0}}, NULL, TSR_FORMAT_NONE, "the folder is empty"},
    {{{"x.bin", "hello, world", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "x.bin is no checkpoint that is known here: it begins with the bytes 68 65 6c 6c"},
    {{{"x.pt", "", 0, 0}}, NULL, TSR_FORMAT_NONE, "x.pt is empty"},
    {{{"x.json", "{\"a\":1}", 0, 0}}, NULL, TSR_FORMAT_NONE, "without a weight_map"},
    {{{"x.json", "{\"a\":1", 0, 0}}, NULL, TSR_FORMAT_NONE, "expected ',' or '}', found the end, in x.json"},
    {{{"m.h5", "\x89HDF\r\n\x1a\n", 0, 0}}, NULL, TSR_FORMAT_NONE, "m.h5 is an HDF5 file"},
    {{{"m", "GGUF\3\0\0\0", 0, 8}}, NULL, TSR_FORMAT_NONE, "GGUF"},
    {{{"m", "\x1f\x8b\x08", 0, 0}}, NULL, TSR_FORMAT_NONE, "gzip"},
    {{{"m.pt", "\x80\4}.", 0, 0}}, NULL, TSR_FORMAT_NONE, "bare pickle"},
    {{{"m.npz", "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0a.npy", 0, 35}},
     NULL,
     TSR_FORMAT_NONE,
     "a zip archive that torch.save did not write"},
    {{{"m.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "Git LFS pointer"},
    {{{"__0_0.distcp", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "data file of a DCP checkpoint"},
    {{{"__0_0.distcp", TORCH, 0, TORCH_SIZE}, {"__1_0.distcp", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "(__0_0.distcp) and no .metadata"},
    {{{"step-100/.metadata", "x", 0, 0},
      {"step-100/__0_0.distcp", "x", 0, 0},
      {"step-200/.metadata", "x", 0, 0},
      {"notes.txt", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): step-100, step-200; name one of them"},
    {{{"iter_1/.metadata", "x", 0, 0}, {"latest_checkpointed_iteration.txt", "1", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "a checkpoint in a folder below (1): iter_1"},
    {{{"step-1.pt", TORCH, 0, TORCH_SIZE}, {"step-2.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "several torch.save files that are not one file a rank (2): step-1.pt, step-2.pt"},
    {{{"model.pt", TORCH, 0, TORCH_SIZE}, {"optimizer.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "model.pt, optimizer.pt; name one"},
    {{{"7.pt", TORCH, 0, TORCH_SIZE}, {"9.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file a rank"},
    {{{"m-00001-of-00002.bin", TORCH, 0, TORCH_SIZE}, {"m-00002-of-00002.bin", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file a rank"},
    {{{"model.safetensors", EMPTY, SIZE_MAX, 0}, {"optimizer.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): model.safetensors, optimizer.pt"},
    {{{"a.index.json", "{\"weight_map\":{}}", 0, 0}, {"b.index.json", "{\"weight_map\":{}}", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): a.index.json, b.index.json"},
    {{{"mp_rank_00_model_states.pt", TORCH, 0, TORCH_SIZE},
      {"zero_pp_rank_0_mp_rank_00_optim_states.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "a DeepSpeed checkpoint"},
    {{{"global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", TORCH, 0, TORCH_SIZE},
      {"latest", "global_step5", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "a DeepSpeed checkpoint"},
    {{{"latest_checkpointed_iteration.txt", "5", 0, 0}, {"iter_5/mp_rank_00/model_optim_rng.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "a Megatron-LM checkpoint"},
    {{{"model.ckpt.data-00000-of-00001", "x", 0, 0}, {"model.ckpt.index", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "a TensorFlow checkpoint"},
    {{{"w/.zarray", "{}", 0, 0}}, NULL, TSR_FORMAT_NONE, "Zarr or Orbax"},
    {{{"notes.txt", "x", 0, 0}, {"m.onnx", "\x08\x07\x12\x07pytorch", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "m.onnx is an ONNX model"},
    {{{"notes.txt", "x", 0, 0}, {"readme.md", "y", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "none of the folder's 2 files is a checkpoint"},
    {{{"x.json", " \n\r\t{\"a\":1}", 0, 0}}, NULL, TSR_FORMAT_NONE, "without a weight_map"},
    {{{"m.pt", "\x80\6}.", 0, 0}}, NULL, TSR_FORMAT_NONE, "begins with the bytes 80 06"},
    {{{"m.pt", "\x80\1}.", 0, 0}}, NULL, TSR_FORMAT_NONE, "begins with the bytes 80 01"},
    {{{"m.bin", "\x08\x40\x12\7pytorch", 0, 0}}, NULL, TSR_FORMAT_NONE, "begins with the bytes 08 40"},
    {{{"m.bin", "\x08\7\x13\7pytorch", 0, 0}}, NULL, TSR_FORMAT_NONE, "begins with the bytes 08 07"},
    {{{"m.pt", "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0f\0\0\0a/constants.pkl", 0, 45}},
     NULL,
     TSR_FORMAT_NONE,
     "a TorchScript archive"},
    {{{"__-.metadata", "x", 0, 0}, {"__.metadata", "x", 0, 0}, {"__1234567890123456789.metadata", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "none of the folder's 3 files is a checkpoint"},
    {{{"my.index.json", "{\"weight_map\":{\"a\":\"gone.safetensors\",\"b\":\"gone.bin\",\"c\":7}}", 0, 0}},
     NULL,
     TSR_FORMAT_SAFETENSORS_INDEX,
     "my.index.json"},
    {{{"my.index.json", "{\"weight_map\":{\"a\":\"x\"}}", 0, 0}, {"x", LEGACY, 0, 0}},
     NULL,
     TSR_FORMAT_TORCH_INDEX,
     "my.index.json"},
    {{{"zero_pp_rank_0_optim_states.pt", TORCH, 0, TORCH_SIZE}, {"b.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "a DeepSpeed checkpoint"},
    {{{"mp_rank_00_model_states.pt", TORCH, 0, TORCH_SIZE}, {"b.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "a DeepSpeed checkpoint"},
    {{{"mp_rank_00_x.pt", TORCH, 0, TORCH_SIZE}, {"b.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file a rank"},
    {{{"2.pt", TORCH, 0, TORCH_SIZE}, {"3.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file a rank"},
    {{{"rank1", TORCH, 0, TORCH_SIZE}, {"rank12", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_TORCH_RANKS, "rank1 rank12"},
    {{{"1rank", TORCH, 0, TORCH_SIZE}, {"21rank", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file a rank"},
    {{{"step-1/.metadata", "x", 0, 0}, {"step-1/__0.metadata", "x", 0, 0}, {"step-2/.metadata", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): step-1, step-2; name one of them"},
    {{{LONG_NAME "a/.metadata", "x", 0, 0}, {LONG_NAME "b/.metadata", "x", 0, 0}, {LONG_NAME "c/.metadata", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (3): " LONG_NAME "a, " LONG_NAME "b; name one"},
    {{{"a.safetensors", "\377\377\377\377\377\377\377\377{", 0, 9}, {"b.safetensors", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_SAFETENSORS,
     "a.safetensors b.safetensors"},
    {{{"a.safetensors", "\20\0\0\0\0\0\0\0{", 0, 9}, {"b.safetensors", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_SAFETENSORS,
     "a.safetensors b.safetensors"},
    {{{".metadata", "x", 0, 0}}, NULL, TSR_FORMAT_DCP, ".metadata"},
};

static void test_formats_open__recognition_goes_by_content(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof recognitions / sizeof recognitions[0]; i++) {
        const recognition *r = &recognitions[i];
        folder f;
        char chosen[512] = "";
        const tsr_reader *reader = NULL;
        tsr_error err = {0};
        make_folder(&f, r->parts, r->primary);
        must_bear_failures(open_and_walk, NULL, f.store, &f.host);
        tsr_checkpoint checkpoint = {
            .store = f.store, .host = &f.host, .arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL)};
        tsr_status status = tsr_recognize(&checkpoint, &reader, &err);
        if (r->format == TSR_FORMAT_NONE) {
            if (status == TSR_OK || !strstr(err.message, r->expected))
                fail_msg("%zu: expected %s: %s", i, r->expected, err.message);
        } else {
            if (status != TSR_OK) fail_msg("%zu: %s", i, err.message);
            for (uint32_t k = 0; k < checkpoint.file_count; k++) {
                if (k) strcat(chosen, " ");
                strncat(chosen, f.store->files[checkpoint.files[k]].name.data,
                        f.store->files[checkpoint.files[k]].name.size);
            }
            assert_string_equal(chosen, r->expected);
            assert_string_equal(tsr_format_name(reader->format), tsr_format_name(r->format));
        }
        tsr_arena_free(checkpoint.arena);
        drop_folder(&f);
    }
}

static void test_formats_open__an_old_tar_is_named(void **state)
{
    (void)state;
    char tar[1024] = "pickle";
    memcpy(tar + 257, "ustar", 5);
    folder f;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    make_folder(&f, (part[]){{"m.tar", tar, 0, sizeof tar}, {NULL, NULL, 0, 0}}, NULL);
    assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_UNSUPPORTED);
    assert_null(checkpoint);
    assert_non_null(strstr(err.message, "a tar archive"));
    drop_folder(&f);
}

static tsr_checkpoint *open_folder(folder *f, const part *parts)
{
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    make_folder(f, parts, NULL);
    if (tsr_checkpoint_open(f->store, &f->host, NULL, &checkpoint, &err) != TSR_OK) fail_msg("%s", err.message);
    return checkpoint;
}

static void close_folder(folder *f, tsr_checkpoint *checkpoint)
{
    tsr_checkpoint_close(checkpoint);
    drop_folder(f);
}

/* The rules found, in order, joined by blanks. */
static const char *rules_of(tsr_checkpoint *checkpoint, char *text)
{
    const tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
    *text = 0;
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        sprintf(text + strlen(text), "%s%s:%c", i ? " " : "", f->rule->id, "nwe"[f->level]);
    }
    return text;
}

static void test_formats_open__one_file_gives_entries_chunks_and_views(void **state)
{
    (void)state;
    folder f;
    char rules[512];
    tsr_view view;
    tsr_checkpoint *c = open_folder(
        &f, (part[]){{"m", "{" U8("b", "2,2", "3", "7") "," U8("a", "3", "0", "3") "," U8("cut", "2", "7", "9") "}  ", 8, 0},
                     {NULL, NULL, 0, 0}});
    const tsr_catalog *catalog = tsr_checkpoint_catalog(c);
    assert_int_equal(catalog->entry_count, 3);
    assert_int_equal(catalog->format, TSR_FORMAT_SAFETENSORS);
    const tsr_entry *b = tsr_checkpoint_entry(c, TSR_STR("b"));
    assert_ptr_equal(b, &catalog->entries[0]);
    assert_null(tsr_checkpoint_entry(c, TSR_STR("none")));
    assert_int_equal(b->chunk_count, 1);
    assert_int_equal(b->chunks[0].sizes[1], 2);
    assert_int_equal(b->chunks[0].offsets[1], 0);
    assert_int_equal(b->chunks[0].byte_length, 4);
    assert_int_equal(tsr_checkpoint_locate(c, b, b->chunks, tsr_checkpoint_arena(c), &view, NULL), TSR_OK);
    uint8_t byte;
    assert_int_equal(tsr_store_read(tsr_checkpoint_store(c), view.file, view.byte_offset, &byte, 1, NULL), TSR_OK);
    assert_int_equal(byte, 3);
    const tsr_entry *cut = tsr_checkpoint_entry(c, TSR_STR("cut"));
    tsr_error err = {0};
    assert_int_equal(tsr_checkpoint_locate(c, cut, cut->chunks, tsr_checkpoint_arena(c), &view, &err), TSR_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "'cut'"));
    assert_string_equal(rules_of(c, rules), "safetensors/truncated:e");
    close_folder(&f, c);
}

static tsr_status record_extent(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    (void)err;
    char *text = ctx;
    sprintf(text + strlen(text), "%.*s@%u+%u ", TSR_STR_ARG(extent->entry->fqn), (unsigned)extent->file,
            (unsigned)extent->byte_length);
    return strlen(text) > 100 ? TSR_E_CANCELLED : TSR_OK;
}

static void test_formats_open__extents_come_in_order_of_file_and_byte(void **state)
{
    (void)state;
    folder f;
    char text[200] = "";
    tsr_checkpoint *c = open_folder(
        &f, (part[]){{"x.safetensors",
                      "{" U8("b", "2", "3", "5") "," U8("a", "3", "0", "3") "," U8("empty", "0", "5", "5") "}", 5, 0},
                     {"y.safetensors", "{" U8("z", "1", "0", "1") "}", 1, 0},
                     {NULL, NULL, 0, 0}});
    assert_int_equal(tsr_checkpoint_extents(c, record_extent, text, NULL), TSR_OK);
    assert_string_equal(text, "a@0+3 b@0+2 empty@0+0 z@1+1 ");
    close_folder(&f, c);
}

static void test_formats_open__colliding_names_are_an_error_that_names_both_files(void **state)
{
    (void)state;
    folder f;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    make_folder(&f,
                (part[]){{"x.safetensors", "{" U8("w", "1", "0", "1") "}", 1, 0},
                         {"y.safetensors", "{" U8("w", "1", "0", "1") "}", 1, 0},
                         {NULL, NULL, 0, 0}},
                NULL);
    assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
    assert_string_equal(err.message, "two entries have the name 'w': one in x.safetensors, one in y.safetensors");
    drop_folder(&f);
}

typedef struct index_case {
    const char *index;
    const char *x, *y; /* headers of x and y, or NULL: not there; 4 data bytes each */
    const char *rules;
    const char *names; /* of the entries: '!' marks opaque ones, '*' those with replicas */
} index_case;

#define A_IN(header) "{" U8(header, "4", "0", "4") "}"
static const index_case index_cases[] = {
    {"{\"metadata\":{\"total_size\":8},\"weight_map\":{\"b\":\"y.safetensors\",\"a\":\"x.safetensors\"}}", A_IN("a"),
     A_IN("b"), "", "b a"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", A_IN("a"), NULL, "index/missing-file:e", "a b!"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\"}}", A_IN("a"), NULL, "index/missing-key:e", "a b!"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\"}}", A_IN("a"), A_IN("s"), "index/unreferenced-file:w", "a"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\"}}", "{" U8("a", "2", "0", "2") "," U8("e", "2", "2", "4") "}", NULL,
     "index/extra-key:w", "a e"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", A_IN("a"),
     "{" U8("b", "0", "0", "0") "," U8("a", "4", "0", "4") "}", "index/key-in-two-files:w", "a* b"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", A_IN("a"),
     "{" U8("b", "1", "0", "1") "," U8("a", "3", "1", "4") "}", "index/key-in-two-files:e", "a b"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}}", A_IN("a"),
     "{" U8("b", "1", "0", "1") "," U8("c", "3", "1", "4") "}", "index/missing-key:e", "a b c"},
    {"{\"metadata\":{\"total_size\":9},\"weight_map\":{\"a\":\"x.safetensors\"}}", A_IN("a"), NULL, "index/total-size:w",
     "a"},
    {"{\"metadata\":{\"total_size\":\"4\"},\"weight_map\":{\"a\":\"x.safetensors\"}}", A_IN("a"), NULL, "index/total-size:w",
     "a"},
    {"{\"weight_map\":{}}", NULL, NULL, "", ""},
};

static void test_formats_open__an_index_and_its_files_are_checked_against_each_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof index_cases / sizeof index_cases[0]; i++) {
        const index_case *k = &index_cases[i];
        part parts[4] = {{"m.index.json", k->index, 0, 0}};
        size_t count = 1;
        folder f;
        char rules[512], names[128] = "";
        if (k->x) parts[count++] = (part){"x.safetensors", k->x, 4, 0};
        if (k->y) parts[count++] = (part){"y.safetensors", k->y, 4, 0};
        tsr_checkpoint *c = open_folder(&f, parts);
        const tsr_catalog *catalog = tsr_checkpoint_catalog(c);
        for (uint64_t e = 0; e < catalog->entry_count; e++) {
            const tsr_entry *entry = &catalog->entries[e];
            sprintf(names + strlen(names), "%s%.*s%s%s", e ? " " : "", TSR_STR_ARG(entry->fqn),
                    entry->kind == TSR_ENTRY_OPAQUE ? "!" : "", entry->replica_count ? "*" : "");
            assert_int_equal(entry->chunk_count, entry->kind == TSR_ENTRY_TENSOR);
        }
        assert_string_equal(rules_of(c, rules), k->rules);
        assert_string_equal(names, k->names);
        close_folder(&f, c);
    }
}

static void test_formats_open__an_index_names_bare_files_only(void **state)
{
    (void)state;
    static const char *const bad[] = {"../x.safetensors", "/etc/x", "a/b", "a\\\\b", "C:x", "..", ".", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char index[100];
        folder f;
        tsr_checkpoint *checkpoint;
        tsr_error err = {0};
        sprintf(index, "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"%s\"}}", bad[i]);
        make_folder(
            &f,
            (part[]){{"m.safetensors.index.json", index, 0, 0}, {"x.safetensors", EMPTY, SIZE_MAX, 0}, {NULL, NULL, 0, 0}},
            NULL);
        assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
        assert_non_null(strstr(err.message, "weight_map sends 'b' to"));
        assert_non_null(
            strstr(err.message, "only the bare name of a file in the same folder is allowed, in m.safetensors.index.json"));
        drop_folder(&f);
    }
}

static void test_formats_open__a_malformed_index_says_where(void **state)
{
    (void)state;
    static const struct {
        const char *index, *message;
    } bad[] = {
        {"{\"weight_map\":[]}", "expected an object at weight_map, found an array"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":7}}", "expected a string at weight_map.b, found a number"},
        {"{\"weight_map\":{\"a\":null}}", "expected a string at weight_map.a, found null"},
        {"{\"metadata\":[],\"weight_map\":{}}", "expected an object at metadata, found an array"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}", "duplicate key 'a'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        folder f;
        tsr_checkpoint *checkpoint;
        tsr_error err = {0};
        part parts[] = {{"m.index.json", bad[i].index, 0, 0}, {"x.safetensors", A_IN("a"), 4, 0}, {NULL, NULL, 0, 0}};
        make_folder(&f, parts, NULL);
        assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
        if (!strstr(err.message, bad[i].message) || !strstr(err.message, ", in m.index.json")) fail_msg("%s", err.message);
        drop_folder(&f);
    }
}

#define SHARD(info, tensor) "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"" info "\"}," tensor "}"
#define AT(name, offsets)   "{\\\"" name "\\\":{\\\"saved_offsets\\\":[" offsets "]}}"

static void test_formats_open__shards_join_by_their_saved_offsets(void **state)
{
    (void)state;
    folder f;
    char rules[512];
    tsr_checkpoint *c = open_folder(
        &f, (part[]){{"shard-00001-model-00001-of-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "1,2", "0", "2")), 2, 0},
                     {"shard-00002-model-00001-of-00001.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0},
                     {"shard-00003-model-00001-of-00001.safetensors", SHARD(AT("w", "3,0"), U8("w", "0,2", "0", "0")),
                      SIZE_MAX, 0},
                     {"shard-00005-model-00001-of-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "1,2", "0", "2")), 2, 0},
                     {NULL, NULL, 0, 0}});
    const tsr_catalog *catalog = tsr_checkpoint_catalog(c);
    assert_int_equal(catalog->format, TSR_FORMAT_DCP_SAFETENSORS);
    assert_int_equal(catalog->entry_count, 1);
    const tsr_entry *w = &catalog->entries[0];
    assert_int_equal(w->shape[0], 3);
    assert_int_equal(w->shape[1], 2);
    assert_int_equal(w->chunk_count, 3); /* the empty share of the third rank is listed as it stands */
    assert_int_equal(w->replica_count, 1);
    assert_int_equal(w->chunks[0].offsets[0], 0);
    assert_int_equal(w->chunks[0].file, 1);
    assert_int_equal(w->chunks[1].offsets[0], 2);
    assert_int_equal(w->chunks[1].file, 0);
    assert_int_equal(w->replicas[0].file, 3);
    assert_string_equal(rules_of(c, rules), "dcp-safetensors/shard-gap:w dcp-safetensors/no-global-shape:w");
    close_folder(&f, c);
}

/* Scalars are copies of each other; two boxes that begin at one place are two chunks, whatever the layout check will say. */
static void test_formats_open__shards_of_several_tensors_are_told_apart(void **state)
{
    (void)state;
    folder f;
#define SAVED(name, offsets) "\\\"" name "\\\":{\\\"saved_offsets\\\":[" offsets "]}"
    part parts[] = {
        {"shard-00001.safetensors",
         SHARD("{" SAVED("w", "0") "," SAVED("s", "") "}", U8("w", "2", "0", "2") "," U8("s", "", "2", "3")), 3, 0},
        {"shard-00002.safetensors",
         SHARD("{" SAVED("s", "") "," SAVED("w", "0") "}", U8("s", "", "0", "1") "," U8("w", "1", "1", "2")), 2, 0},
        {"shard-00003.safetensors", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", SIZE_MAX, 0},
        {NULL, NULL, 0, 0}};
    tsr_checkpoint *c = open_folder(&f, parts);
    const tsr_entry *w = tsr_checkpoint_entry(c, TSR_STR("w")), *s = tsr_checkpoint_entry(c, TSR_STR("s"));
    assert_int_equal(w->chunk_count, 2);
    assert_int_equal(w->chunks[0].sizes[0], 1);
    assert_int_equal(w->chunks[1].sizes[0], 2);
    assert_int_equal(w->replica_count, 0);
    assert_int_equal(s->chunk_count, 1);
    assert_int_equal(s->chunks[0].file, 0);
    assert_int_equal(s->replica_count, 1);
    assert_int_equal(s->replicas[0].file, 1);
    close_folder(&f, c);
}

static void test_formats_open__sharding_info_must_fit_the_header(void **state)
{
    (void)state;
    static const struct {
        const char *header, *message;
    } bad[] = {
        {SHARD(AT("w", "0"), U8("w", "2,2", "0", "4")), "'w' has 2 dimensions and 1 saved_offsets"},
        {SHARD(AT("w", "0,0,0"), U8("w", "2,2", "0", "4")), "'w' has 2 dimensions and 3 saved_offsets"},
        {SHARD(AT("w", "0,-1"), U8("w", "2,2", "0", "4")), "at least 0"},
        {SHARD(AT("w", "0,0.5"), U8("w", "2,2", "0", "4")), "an integer below 2^53"},
        {SHARD(AT("v", "0,0"), U8("w", "2,2", "0", "4")), "names 'v', which is not in the file"},
        {SHARD("{}", U8("w", "2,2", "0", "4")), "names 0 of 1 tensors"},
        {SHARD("[]", U8("w", "2,2", "0", "4")), "expected an object at DCP_SHARDING_INFO"},
        {SHARD("{\\\"w\\\":{}}", U8("w", "2,2", "0", "4")), "lacks 'saved_offsets'"},
        {SHARD("{", U8("w", "2,2", "0", "4")), "found the end"},
        {SHARD(AT("w", "0,9007199254740991"),
               "\"w\":{\"dtype\":\"U8\",\"shape\":[0,18446744073709551615],\"data_offsets\":[0,0]}"),
         "a shard of 'w' ends beyond 64 bits"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        folder f;
        tsr_checkpoint *checkpoint;
        tsr_error err = {0};
        make_folder(&f,
                    (part[]){{"shard-00001-model-00001-of-00001.safetensors", bad[i].header, 4, 0},
                             {"README", "x", 0, 0},
                             {NULL, NULL, 0, 0}},
                    NULL);
        assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
        if (!strstr(err.message, bad[i].message) || !strstr(err.message, ", in shard-00001"))
            fail_msg("%s: %s", bad[i].message, err.message);
        drop_folder(&f);
    }
}

static void test_formats_open__shards_of_one_tensor_must_agree(void **state)
{
    (void)state;
    static const char *const others[] = {
        SHARD(AT("w", "0"), U8("w", "4", "0", "4")),
        SHARD(AT("w", "0,0"), "\"w\":{\"dtype\":\"I8\",\"shape\":[2,2],\"data_offsets\":[0,4]}"), A_IN("w")};
    static const char *const messages[] = {"this shard of 'w' is uint8 of 1 dimensions, an earlier one uint8 of 2",
                                           "this shard of 'w' is int8 of 2 dimensions, an earlier one uint8 of 2",
                                           "no DCP_SHARDING_INFO"};
    for (size_t i = 0; i < 3; i++) {
        folder f;
        tsr_checkpoint *checkpoint;
        tsr_error err = {0};
        part parts[] = {{"shard-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "2,2", "0", "4")), 4, 0},
                        {"shard-00002.safetensors", others[i], 4, 0},
                        {NULL, NULL, 0, 0}};
        make_folder(&f, parts, NULL);
        assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_FORMAT);
        assert_non_null(strstr(err.message, messages[i]));
        assert_non_null(strstr(err.message, ", in shard-00002.safetensors"));
        drop_folder(&f);
    }
}

/* torch counts float4 in pairs, and so do saved_offsets; headers count single elements. */
static void test_formats_open__saved_offsets_of_float4_count_pairs(void **state)
{
    (void)state;
    folder f;
#define F4_SHARD(offsets) SHARD(AT("q", offsets), "\"q\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[0,4]}")
    part parts[] = {{"shard-00001.safetensors", F4_SHARD("0,0"), 4, 0},
                    {"shard-00002.safetensors", F4_SHARD("0,2"), 4, 0},
                    {NULL, NULL, 0, 0}};
    tsr_checkpoint *c = open_folder(&f, parts);
    const tsr_entry *q = tsr_checkpoint_entry(c, TSR_STR("q"));
    uint64_t bytes;
    assert_int_equal(q->shape[0], 2);
    assert_int_equal(q->shape[1], 8);
    assert_int_equal(q->chunks[1].offsets[1], 4);
    assert_true(tsr_entry_bytes(q, &bytes) && bytes == 8);
    close_folder(&f, c);
}

static void test_formats_open__one_shard_alone_is_a_warning(void **state)
{
    (void)state;
    folder f;
    char rules[200];
    part parts[] = {{"shard-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "2,2", "0", "4")), 4, 0}, {NULL, NULL, 0, 0}};
    tsr_checkpoint *c = open_folder(&f, parts);
    assert_int_equal(tsr_checkpoint_catalog(c)->format, TSR_FORMAT_SAFETENSORS);
    assert_string_equal(rules_of(c, rules), "dcp-safetensors/lone-shard:w");
    close_folder(&f, c);
}

/* Arrangements that walk every path of the readers, findings of every kind included. */
static const part sets[][5] = {
    {{"m.index.json", "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"z\"}}", 0, 0},
     {"x.safetensors", A_IN("a"), 4, 0},
     {"y.safetensors", A_IN("a"), 4, 0}},
    {{"m.index.json",
      "{\"metadata\":{\"total_size\":\"9\"},\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\",\"c\":\"y."
      "safetensors\"}}",
      0, 0},
     {"x.safetensors", "{" U8("a", "", "0", "1") "," U8("new", "3", "1", "4") "}", 4, 0},
     {"y.safetensors", "{" U8("a", "", "0", "1") "," U8("c", "3", "1", "4") "}", 4, 0},
     {"w.safetensors", "{" U8("a", "", "0", "1") "}", 1, 0}},
    {{"m.index.json", "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\",\"c\":\"z.safetensors\"}}", 0, 0},
     {"x.safetensors", A_IN("a"), 4, 0},
     {"y.safetensors", "{" U8("a", "4", "0", "4") "," U8("b", "0", "4", "4") "}", 4, 0},
     {"z.safetensors", "{" U8("a", "4", "0", "4") "," U8("c", "0", "4", "4") "}", 4, 0}},
    {{"shard-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "2,2", "0", "4")), 4, 0},
     {"shard-00002.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0},
     {"shard-00004.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0}},
    {{"x.safetensors", A_IN("a"), 4, 0},
     {"y.safetensors",
      " {\"__metadata__\":{\"k\":\"v\",\"k\":\"w\"}," U8("\\u0000b", "2", "2", "4") "," U8("", "2", "0", "2") "}", 5, 0}},
    {{"shard-00001.safetensors", SHARD(AT("w", "2,0"), U8("w", "2,2", "0", "4")), 4, 0}},
    {{"shard-00001.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0},
     {"shard-00002.safetensors", SHARD(AT("w", "0,0"), U8("w", "4,1", "0", "4")), 4, 0},
     {"shard-99999999999.safetensors", SHARD(AT("w", "0,0"), U8("w", "2,2", "0", "4")), 4, 0}},
    {{"x", SHARD(AT("s", ""), U8("s", "", "0", "1")), 1, 0}, {"shard-2", SHARD(AT("s", ""), U8("s", "", "0", "1")), 1, 0}},
    {{"x", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", SIZE_MAX, 0},
     {"y", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", SIZE_MAX, 0}},
    {{"m.index.json", "{\"weight_map\":{\"a\":\"gone\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}}", 0, 0},
     {"x.safetensors", "{" U8("a", "4", "0", "4") "," U8("b", "0", "4", "4") "}", 4, 0},
     {"y.safetensors", "{" U8("a", "2,2", "0", "4") "," U8("b", "0,1", "4", "4") "," U8("c", "0", "4", "4") "}", 4, 0}},
    {{"rank0.pt", TORCH, 0, TORCH_SIZE}, {"notes.txt", "x", 0, 0}, {"rank0x.pt", TORCH, 0, TORCH_SIZE}},
};

static void test_formats_open__every_failed_allocation_and_read_ends_clean(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        folder f;
        make_folder(&f, sets[i], NULL);
        must_bear_failures(open_and_walk, NULL, f.store, &f.host);
        drop_folder(&f);
    }
}

static void test_formats_open__limits_bound_the_entries(void **state)
{
    (void)state;
    static const size_t counts[] = {2, 2, 3, 1, 3};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        folder f;
        make_folder(&f, sets[i], NULL);
        f.host.limits.entries = counts[i] - 1;
        assert_int_equal(open_and_walk(NULL, f.store, &f.host, NULL), TSR_E_LIMIT);
        drop_folder(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_open__recognition_goes_by_content),
        cmocka_unit_test(test_formats_open__an_old_tar_is_named),
        cmocka_unit_test(test_formats_open__one_file_gives_entries_chunks_and_views),
        cmocka_unit_test(test_formats_open__extents_come_in_order_of_file_and_byte),
        cmocka_unit_test(test_formats_open__colliding_names_are_an_error_that_names_both_files),
        cmocka_unit_test(test_formats_open__an_index_and_its_files_are_checked_against_each_other),
        cmocka_unit_test(test_formats_open__an_index_names_bare_files_only),
        cmocka_unit_test(test_formats_open__a_malformed_index_says_where),
        cmocka_unit_test(test_formats_open__shards_join_by_their_saved_offsets),
        cmocka_unit_test(test_formats_open__shards_of_several_tensors_are_told_apart),
        cmocka_unit_test(test_formats_open__sharding_info_must_fit_the_header),
        cmocka_unit_test(test_formats_open__shards_of_one_tensor_must_agree),
        cmocka_unit_test(test_formats_open__saved_offsets_of_float4_count_pairs),
        cmocka_unit_test(test_formats_open__one_shard_alone_is_a_warning),
        cmocka_unit_test(test_formats_open__every_failed_allocation_and_read_ends_clean),
        cmocka_unit_test(test_formats_open__limits_bound_the_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
