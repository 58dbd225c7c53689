/* Recognizes stores by content, and checks the messages for those that are rejected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "formats/recognize/recognize.h"
#include "support/checkpoint_opening.h"
#include "support/directory.h"

#define FORTY     "a-name-of-forty-bytes-a-name-of-forty-byt"
#define LONG_NAME FORTY FORTY FORTY FORTY

typedef struct recognition {
    part parts[MAX_FILES];
    const char *primary;
    tsr_format format;    /* or NONE if it is rejected */
    const char *expected; /* the chosen files, separated by spaces; or a part of the message */
} recognition;

static const recognition recognitions[] = {
    {{{"any", EMPTY, SIZE_MAX, 0}}, NULL, TSR_FORMAT_SAFETENSORS, "any"},
    {{{"broken.safetensors", "hello", SIZE_MAX, 0}}, NULL, TSR_FORMAT_SAFETENSORS, "broken.safetensors"},
    {{{"m.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_TORCH_ZIP, "m.pt"},
    {{{"m.safetensors", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_TORCH_ZIP, "m.safetensors"},
    {{{"old.pth", LEGACY, 0, 0}}, NULL, TSR_FORMAT_TORCH_LEGACY, "old.pth"},
    {{{"old.pth", LEGACY_4, 0, LEGACY_4_SIZE}}, NULL, TSR_FORMAT_TORCH_LEGACY, "old.pth"},
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
    {{{"common.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_MEGATRON_DIST, ""},
    {{{"common.pt", TORCH, 0, TORCH_SIZE}}, "common.pt", TSR_FORMAT_TORCH_ZIP, "common.pt"},
    {{{"common.pt", TORCH, 0, TORCH_SIZE}, {"notes.txt", "x", 0, 0}}, NULL, TSR_FORMAT_TORCH_ZIP, "common.pt"},
    /* rejected */
    {{{"r.pt", "PK\3\4", 0, 4}}, NULL, TSR_FORMAT_NONE, "a zip archive"},
    {{{"x", "ab", 0, 0}}, NULL, TSR_FORMAT_NONE, "begins with the bytes 61 62 00 00"},
    {{{"rank1.pt", TORCH, 0, TORCH_SIZE}, {"rank01.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file per rank"},
    {{{"a.pt", TORCH, 0, TORCH_SIZE}, {"aa.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file per rank"},
    {{{"epoch1.pt", TORCH, 0, TORCH_SIZE}, {"epoch2.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file per rank"},
    {{{"iter1.pt", TORCH, 0, TORCH_SIZE}, {"iter2.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file per rank"},
    {{{"a.pt", TORCH, 0, TORCH_SIZE},
      {"b.pt", TORCH, 0, TORCH_SIZE},
      {"c.pt", TORCH, 0, TORCH_SIZE},
      {"d.pt", TORCH, 0, TORCH_SIZE},
      {"e.pt", TORCH, 0, TORCH_SIZE},
      {"f.pt", TORCH, 0, TORCH_SIZE},
      {"g.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "(7): a.pt (torch-zip), b.pt (torch-zip), c.pt (torch-zip), d.pt (torch-zip), e.pt (torch-zip), f.pt (torch-zip), g.pt "
     "(torch-zip); name"},
    {{{"saved_model.pb", "x", 0, 0}, {"variables", "x", 0, 0}}, NULL, TSR_FORMAT_NONE, "a TensorFlow checkpoint"},
    {{{"_CHECKPOINT_METADATA", "{}", 0, 0}, {"d", "x", 0, 0}}, NULL, TSR_FORMAT_NONE, "an Orbax checkpoint"},
    {{{"a.h5", "\x89HDF\r\n\x1a\n", 0, 0}, {"b.gguf", "GGUF", 0, 0}}, NULL, TSR_FORMAT_NONE, "a.h5 is an HDF5 file"},
    {{{NULL, NULL, 0, 0}}, NULL, TSR_FORMAT_NONE, "the directory is empty"},
    {{{"x.bin", "hello, world", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "x.bin is not in a recognized checkpoint format; it begins with the bytes 68 65 6c 6c"},
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
     "a NumPy archive (.npz), which is not supported: numpy.load reads it, or mlx.core.load where MLX wrote it"},
    {{{"m.zip", "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0a.txt", 0, 35}},
     NULL,
     TSR_FORMAT_NONE,
     "a zip archive that torch.save did not write"},
    {{{"m.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "Git LFS pointer"},
    {{{"__0_0.distcp", TORCH, 0, TORCH_SIZE}}, "__0_0.distcp", TSR_FORMAT_NONE, "data file of a DCP checkpoint"},
    {{{"__0_0.distcp", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_DCP, ""},
    {{{"__0_0.distcp", TORCH, 0, TORCH_SIZE}, {"common.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_DCP, ""},
    {{{"a-1-of-2.bin", TORCH, 0, TORCH_SIZE}, {"a-2-of-2.bin", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_TORCH_INDEX,
     "a-1-of-2.bin a-2-of-2.bin"},
    {{{"a.safetensors", "\20\0\0\0\0\0\0\0{", 0, 9}, {"a.safetensors.index.json", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "a.safetensors.index.json"},
    {{{"__0_0.distcp", TORCH, 0, TORCH_SIZE}, {"__1_0.distcp", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_DCP, ""},
    {{{"step-100/.metadata", "x", 0, 0},
      {"step-100/__0_0.distcp", "x", 0, 0},
      {"step-200/.metadata", "x", 0, 0},
      {"notes.txt", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): step-100 (dcp), step-200 (dcp); use --step, or name its path"},
    {{{"iter_1/__0_0.distcp", "x", 0, 0}, {"latest_checkpointed_iteration.txt", "1", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "a checkpoint in a directory below (1): iter_1 (interrupted save)"},
    {{{"iter_1/.metadata", "x", 0, 0}, {"latest_checkpointed_iteration.txt", "1", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "a checkpoint in a directory below (1): iter_1 (dcp)"},
    {{{"optimizer_0/.metadata", "x", 0, 0}, {"model_0/.metadata", "x", 0, 0}, {"scheduler.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (3): scheduler.pt (torch-zip), model_0 (dcp), optimizer_0 (dcp)"},
    {{{"m_0/.metadata", "x", 0, 0}, {"rng.pth", TORCH, 0, TORCH_SIZE}, {"scheduler.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (3): rng.pth (torch-zip), scheduler.pt (torch-zip), m_0 (dcp)"},
    {{{"step-1.pt", TORCH, 0, TORCH_SIZE}, {"step-2.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "several torch.save files that are not one file per rank (2): step-1.pt (torch-zip), step-2.pt (torch-zip)"},
    {{{"model.pt", TORCH, 0, TORCH_SIZE}, {"optimizer.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "model.pt (torch-zip), optimizer.pt (torch-zip); name one"},
    {{{"7.pt", TORCH, 0, TORCH_SIZE}, {"9.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file per rank"},
    {{{"m-00001-of-00002.bin", TORCH, 0, TORCH_SIZE}, {"n-00002-of-00002.bin", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file per rank"},
    {{{"model.safetensors", EMPTY, SIZE_MAX, 0}, {"optimizer.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): model.safetensors (safetensors), optimizer.pt (torch-zip)"},
    {{{"damaged.safetensors", "hello", SIZE_MAX, 0}, {"optimizer.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): damaged.safetensors (safetensors), optimizer.pt (torch-zip)"},
    {{{"a.index.json", "{\"weight_map\":{}}", 0, 0}, {"b.index.json", "{\"weight_map\":{}}", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): a.index.json (index), b.index.json (index)"},
    {{{"mp_rank_00_model_states.pt", TORCH, 0, TORCH_SIZE},
      {"zero_pp_rank_0_mp_rank_00_optim_states.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_DEEPSPEED,
     ""},
    {{{"bf16_zero_pp_rank_12_mp_rank_01_optim_states.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_DEEPSPEED, ""},
    {{{"mp_rank_00_model_states.pt", TORCH, 0, TORCH_SIZE}, {"zero/norm.weight/fp32.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_DEEPSPEED_UNIVERSAL,
     ""},
    {{{"zero/optimizer_state.pt", TORCH, 0, TORCH_SIZE}, {"notes.txt", "x", 0, 0}},
     NULL,
     TSR_FORMAT_DEEPSPEED_UNIVERSAL,
     ""},
    {{{"global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", TORCH, 0, TORCH_SIZE},
      {"latest", "global_step5", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "global_step5 (deepspeed)"},
    {{{"latest_checkpointed_iteration.txt", "5", 0, 0}, {"iter_5/mp_rank_00/model_optim_rng.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "iter_5/mp_rank_00 (torch-zip)"},
    {{{"model.ckpt.data-00000-of-00001", "x", 0, 0}, {"model.ckpt.index", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "a TensorFlow checkpoint"},
    {{{"w/.zarray", "{}", 0, 0}}, NULL, TSR_FORMAT_NONE, "a Zarr store"},
    {{{".snapshot_metadata", "x", 0, 0}, {"0/model/w", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "torchsnapshot.Snapshot loads it"},
    {{{"m.keras", "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\15\0\0\0metadata.json", 0, 43}},
     NULL,
     TSR_FORMAT_NONE,
     "keras.models.load_model loads it"},
    {{{"notes.txt", "x", 0, 0}, {"m.onnx", "\x08\x07\x12\x07pytorch", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "m.onnx is an ONNX model"},
    {{{"notes.txt", "x", 0, 0}, {"readme.md", "y", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "none of the directory's 2 files is in a recognized checkpoint format"},
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
     "none of the directory's 3 files is in a recognized checkpoint format"},
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
    {{{"mp_rank_00_model_states.pt", TORCH, 0, TORCH_SIZE}, {"b.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_DEEPSPEED, ""},
    {{{"mp_rank_00_x.pt", TORCH, 0, TORCH_SIZE}, {"b.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "not one file per rank"},
    {{{"2.pt", TORCH, 0, TORCH_SIZE}, {"3.pt", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file per rank"},
    {{{"rank1", TORCH, 0, TORCH_SIZE}, {"rank12", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_TORCH_RANKS, "rank1 rank12"},
    {{{"1rank", TORCH, 0, TORCH_SIZE}, {"21rank", TORCH, 0, TORCH_SIZE}}, NULL, TSR_FORMAT_NONE, "not one file per rank"},
    {{{"step-1/.metadata", "x", 0, 0}, {"step-1/__0.metadata", "x", 0, 0}, {"step-2/.metadata", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): step-1 (dcp), step-2 (dcp); use --step, or name its path"},
    {{{LONG_NAME "a/.metadata", "x", 0, 0}, {LONG_NAME "b/.metadata", "x", 0, 0}, {LONG_NAME "c/.metadata", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (3): " LONG_NAME "a (dcp), " LONG_NAME "b (dcp), " LONG_NAME "c (dcp); use --st"},
    {{{"a.safetensors", "\377\377\377\377\377\377\377\377{", 0, 9}, {"b.safetensors", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_SAFETENSORS,
     "a.safetensors b.safetensors"},
    {{{"a.safetensors", "\20\0\0\0\0\0\0\0{", 0, 9}, {"b.safetensors", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_SAFETENSORS,
     "a.safetensors b.safetensors"},
    {{{".metadata", "x", 0, 0}}, NULL, TSR_FORMAT_DCP, ".metadata"},
    {{{"m-rank-0-part-0.safetensors", EMPTY, SIZE_MAX, 0},
      {"m-rank-10-part-0.safetensors", EMPTY, SIZE_MAX, 0},
      {"m-rank-2-part-1.safetensors", EMPTY, SIZE_MAX, 0},
      {"m-rank-2-part-0.safetensors", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_SHARDS,
     "m-rank-0-part-0.safetensors m-rank-2-part-0.safetensors m-rank-2-part-1.safetensors m-rank-10-part-0.safetensors"},
    /* up to three levels below, but not inside a directory that is a checkpoint itself */
    {{{"out/ck/step-1/.metadata", "x", 0, 0},
      {"out/ck/step-1/more/.metadata", "x", 0, 0},
      {"out/ck/step-2/__0_0.distcp", "x", 0, 0},
      {"out/m/a.safetensors", EMPTY, SIZE_MAX, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (3): out/ck/step-1 (dcp), out/ck/step-2 (interrupted save), out/m (safetensors); use --step"},
    {{{"config.json", "{\"a\":1}", 0, 0},
      {"a/b/run/rank0.pt", TORCH, 0, TORCH_SIZE},
      {"a/b/run/rank1.pt", TORCH, 0, TORCH_SIZE},
      {"a/t/x.pt", TORCH, 0, TORCH_SIZE},
      {"a/t/y.pt", TORCH, 0, TORCH_SIZE}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): a/b/run (torch-ranks), a/t (several files); use --step"},
    {{{"a/b/c/d/.metadata", "x", 0, 0}, {"a/notes.txt", "x", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "none of the directory's 2 files is in a recognized checkpoint format"},
    {{{"a/b/x.bin", "nothing", 0, 0},
      {"a/i/m.index.json", "{", 0, 0},
      {"a/j/m.safetensors", EMPTY, SIZE_MAX, 0},
      {"a/j/m.index.json", "{", 0, 0}},
     NULL,
     TSR_FORMAT_NONE,
     "several checkpoints (2): a/i (index), a/j (index)"},
};

static void test_formats_recognize__stores_are_taken_for_their_content(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof recognitions / sizeof recognitions[0]; i++) {
        const recognition *r = &recognitions[i];
        directory f;
        char chosen[512] = "";
        const tsr_reader *reader = NULL;
        tsr_error err = {0};
        make_directory(&f, r->parts, r->primary);
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
        drop_directory(&f);
    }
}

static void test_formats_recognize__an_old_tar_is_named(void **state)
{
    (void)state;
    char tar[1024] = "pickle";
    memcpy(tar + 257, "ustar", 5);
    directory f;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    make_directory(&f, (part[]){{"m.tar", tar, 0, sizeof tar}, {NULL, NULL, 0, 0}}, NULL);
    assert_int_equal(tsr_checkpoint_open(f.store, &f.host, NULL, &checkpoint, &err), TSR_E_UNSUPPORTED);
    assert_null(checkpoint);
    assert_non_null(strstr(err.message, "a tar archive"));
    drop_directory(&f);
}

/* Counts the reads of a store. */
static struct {
    tsr_status (*read_at)(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);
    unsigned count;
} reads;

static tsr_status read_counted(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    reads.count++;
    return reads.read_at(store, file, offset, buffer, size, err);
}

/* Returns how often a directory was read until it was recognized, or refused as an HDF5 file. */
static unsigned reads_of(const part *parts, bool is_hdf5)
{
    directory f;
    const tsr_reader *reader;
    tsr_error err = {0};
    make_directory(&f, parts, NULL);
    reads.read_at = f.store->read_at;
    reads.count = 0;
    f.store->read_at = read_counted;
    tsr_checkpoint checkpoint = {.store = f.store, .host = &f.host, .arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL)};
    const tsr_status status = tsr_recognize(&checkpoint, &reader, &err);
    if (is_hdf5 ? status == TSR_OK || !strstr(err.message, "an HDF5 file") : status != TSR_OK) fail_msg("%s", err.message);
    f.store->read_at = reads.read_at;
    tsr_arena_free(checkpoint.arena);
    drop_directory(&f);
    return reads.count;
}

static void test_formats_recognize__files_are_searched_only_before_a_refusal(void **state)
{
    (void)state;
    static char file[3 << 20], behind[4096];
    memset(file, 'x', sizeof file);
    memset(behind, 'x', sizeof behind);
    memcpy(behind + 2048, "\x89HDF\r\n\x1a\n", 8);
    const part model = {"model.safetensors", EMPTY, SIZE_MAX, 0}, last = {NULL, NULL, 0, 0};
    const unsigned small = reads_of((part[]){model, {"notes", "xxxx", 0, 0}, last}, false);
    assert_int_equal(reads_of((part[]){model, {"notes", file, 0, sizeof file}, last}, false), small);
    assert_true(reads_of((part[]){{"a", file, 0, sizeof file}, {"b", behind, 0, sizeof behind}, last}, true) > 12);
    assert_int_equal(reads_of((part[]){{"alone", behind, 0, sizeof behind}, last}, true), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_recognize__stores_are_taken_for_their_content),
        cmocka_unit_test(test_formats_recognize__an_old_tar_is_named),
        cmocka_unit_test(test_formats_recognize__files_are_searched_only_before_a_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
