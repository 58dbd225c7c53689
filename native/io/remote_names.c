/* See remote_names.h. */
#include "io/remote_names.h"

#include <stdlib.h>
#include <string.h>

#include "tessera/sys/try.h"

const char *const tsr_remote_first[] = {
    ".metadata", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    NULL};
const char *const tsr_remote_of_trainer[] = {"trainer_state.json", "training_args.bin", "random_states_0.pkl", NULL};
const char *const tsr_remote_of_adapter[] = {"trainer_state.json", "training_args.bin", NULL};
const char *const tsr_remote_adapters[] = {"adapter_model.safetensors", "adapter_model.bin", NULL};
const char *const tsr_remote_markers[] = {"latest", "latest_universal", "latest_checkpointed_iteration.txt", NULL};

#define OF_ZERO "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero/optimizer_state.pt"
const char *const tsr_remote_other[] = {"latest",
                                        "latest_universal",
                                        "latest_checkpointed_iteration.txt",
                                        OF_ZERO,
                                        "pytorch_model_fsdp_0/.metadata",
                                        "fsdp_config.json",
                                        "pytorch_model_fsdp.bin",
                                        "random_states_0.pkl",
                                        NULL};
static const char *const of_tag[] = {OF_ZERO, NULL};
static const char *const of_iteration[] = {".metadata", "metadata.json", NULL};
static const char *const of_verl[] = {"fsdp_config.json", NULL};

bool tsr_remote_is_model(const char *name)
{
    return strcmp(name, ".metadata") != 0;
}

typedef struct naming {
    tsr_arena *arena;
    tsr_str *out;
    size_t *count;
    tsr_error *err;
} naming;

static tsr_status add(const naming *n, tsr_str directory, const char *const *names)
{
    for (; *names; names++) {
        const tsr_str name = tsr_arena_format(n->arena, n->err, "%.*s/%s", TSR_STR_ARG(directory), *names);
        if (!name.data) return TSR_E_NOMEM;
        n->out[(*n->count)++] = name;
    }
    return TSR_OK;
}

/* Megatron and verl write a number, from which each forms the name of a directory; DeepSpeed writes the name itself. */
static tsr_status add_numbered(const naming *n, unsigned long long number)
{
    const tsr_str megatron = tsr_arena_format(n->arena, n->err, "iter_%07llu", number);
    const tsr_str verl = tsr_arena_format(n->arena, n->err, "global_step_%llu/actor", number);
    if (!megatron.data || !verl.data) return TSR_E_NOMEM;
    TSR_TRY(add(n, megatron, of_iteration));
    return add(n, verl, of_verl);
}

tsr_status tsr_remote_marked(tsr_str bytes, tsr_arena *arena, tsr_str out[TSR_REMOTE_MARKED], size_t *count, tsr_error *err)
{
    const naming n = {arena, out, count, err};
    bool is_number = true;
    char digits[19] = "";
    *count = 0;
    while (bytes.size && strchr("\n\r ", bytes.data[bytes.size - 1])) bytes.size--;
    for (size_t i = 0; i < bytes.size; i++) {
        const char c = bytes.data[i];
        if ((unsigned char)c < ' ' || c == '/') return TSR_OK;
        is_number = is_number && c >= '0' && c <= '9';
    }
    if (bytes.size == 0 || tsr_str_equal(bytes, TSR_STR(".")) || tsr_str_equal(bytes, TSR_STR(".."))) return TSR_OK;
    if (tsr_str_equal(bytes, TSR_STR("release"))) return add(&n, bytes, of_iteration);
    if (!is_number || bytes.size >= sizeof digits) return add(&n, bytes, of_tag);
    memcpy(digits, bytes.data, bytes.size);
    TSR_TRY(add_numbered(&n, strtoull(digits, NULL, 10)));
    return add(&n, bytes, of_tag);
}
