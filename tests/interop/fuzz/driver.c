/* Tessera's side of the fuzzer that compares it with PyTorch: performs jobs that arrive on standard input, with as many
 * ranks (threads) as a job has.
 *
 *   request     u32 ranks, then per rank: u32 size, the job (wire.h)
 *   answer      per rank: u32 size, {"status": 0, "error": "", …}
 *
 * Exits at the end of its input. */
#include <stdio.h>
#include <stdlib.h>

#include "subject.h"
#include "tessera/comm_threads.h"
#include "tessera/fqn.h"
#include "tessera/state_keys.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/statedict.h"

enum { MOST_RANKS = 16 };

typedef struct request {
    uint32_t ranks;
    tsr_str jobs[MOST_RANKS];
    tsr_vec answers[MOST_RANKS];
} request;

/* The results of a job in addition to its status; NULL if there are none. */
typedef struct outcome {
    tsr_state_dict *model, *optimizer;
    tsr_unmatched_keys keys;
    bool opened, with_model, with_optimizer, with_keys, with_now;
} outcome;

static bool option(const subject *s, const char *key, bool otherwise)
{
    const tsr_value *options = subject_get(s, "options");
    const tsr_value *value = options->kind == TSR_VALUE_DICT ? tsr_value_get(options, tsr_str_from(key)) : NULL;
    return value ? value->as.boolean : otherwise;
}

static tsr_state_options options_of(const subject *s)
{
    return (tsr_state_options){
        .full_state_dict = option(s, "full_state_dict", false),
        .cpu_offload = option(s, "cpu_offload", false),
        .ignore_frozen_params = option(s, "ignore_frozen_params", false),
        .keep_submodule_prefixes = option(s, "keep_submodule_prefixes", true),
        .strict = option(s, "strict", true),
        .broadcast_from_rank0 = option(s, "broadcast_from_rank0", false),
        .flatten_optimizer_state_dict = option(s, "flatten_optimizer_state_dict", false),
    };
}

static tsr_status submodules_of(subject *s, tsr_module_ref **out, size_t *count, tsr_error *err)
{
    const tsr_value *names = subject_get(s, "submodules");
    tsr_named_module *named;
    size_t modules;
    TSR_TRY(tsr_fqn_named_modules(s->modules, &s->host, s->arena, &named, &modules, err));
    *out = tsr_arena_array(s->arena, names->count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (*count = 0; *count < names->count; ++*count) {
        (*out)[*count] = TSR_NO_MODULE;
        for (size_t i = 0; i < modules; i++)
            if (tsr_str_equal(named[i].raw, names->items[*count]->text)) (*out)[*count] = named[i].module;
    }
    return TSR_OK;
}

static tsr_status get_job(subject *s, const tsr_state_options *o, outcome *out, tsr_error *err)
{
    tsr_module_ref *submodules;
    size_t count;
    TSR_TRY(submodules_of(s, &submodules, &count, err));
    out->with_model = !subject_is(s->job, "op", "get_optimizer");
    out->with_optimizer = !subject_is(s->job, "op", "get_model");
    if (!out->with_optimizer)
        return tsr_get_model_state_dict(
            &s->model, &(tsr_state_call){.comm = s->comm, .options = o, .submodules = submodules, .submodule_count = count},
            out->model, err);
    out->with_now = true; /* initial states were created */
    if (!out->with_model)
        return tsr_get_optimizer_state_dict(&s->model, (tsr_optimizers){s->at, s->count},
                                            &(tsr_state_call){.comm = s->comm, .options = o}, out->optimizer, err);
    return tsr_get_state_dict(
        &s->model, (tsr_optimizers){s->at, s->count},
        &(tsr_state_call){.comm = s->comm, .options = o, .submodules = submodules, .submodule_count = count}, out->model,
        out->optimizer, err);
}

static tsr_status set_job(subject *s, const tsr_state_options *o, outcome *out, tsr_error *err)
{
    const tsr_value *model = subject_get(s, "state"), *optimizer = subject_get(s, "optimizer_state");
    out->with_now = true;
    out->with_keys = !subject_is(s->job, "op", "set_optimizer");
    if (!out->with_keys)
        return tsr_set_optimizer_state_dict(&s->model, (tsr_optimizers){s->at, s->count}, optimizer,
                                            &(tsr_state_call){.comm = s->comm, .options = o, .host = &s->host}, err);
    if (subject_is(s->job, "op", "set_model"))
        return tsr_set_model_state_dict(
            &s->model, model,
            &(tsr_state_call){.comm = s->comm, .options = o, .host = &s->host, .arena = s->arena, .unmatched = &out->keys},
            err);
    return tsr_set_state_dict(
        &s->model, (tsr_optimizers){s->at, s->count}, model, optimizer,
        &(tsr_state_call){.comm = s->comm, .options = o, .host = &s->host, .arena = s->arena, .unmatched = &out->keys}, err);
}

/* ---- FSDP1's calls ---- */

static tsr_fsdp_settings settings_of(const subject *s)
{
    return (tsr_fsdp_settings){.type = option(s, "full_state_dict", false) ? TSR_FSDP_FULL : TSR_FSDP_SHARDED,
                               .offload = option(s, "cpu_offload", false),
                               .rank0_only = option(s, "cpu_offload", false)};
}

/* For the first optimizer: its state with canonical names, or the state that its own load_state_dict makes of such a
 * state. */
static tsr_status raw_job(subject *s, outcome *out, tsr_error *err)
{
    const tsr_raw_optimizer raw = {.model = &s->model, .optimizer = s->at[0], .comm = s->comm};
    const tsr_fsdp_settings settings = settings_of(s);
    out->with_now = true;
    out->with_optimizer = subject_is(s->job, "op", "raw_get");
    if (out->with_optimizer) return tsr_fsdp_optim_state_dict(&raw, NULL, &settings, out->optimizer, err);
    TSR_TRY(tsr_fsdp_optim_state_dict_to_load(&raw, subject_get(s, "optimizer_state"), &settings, out->optimizer, err));
    return tsr_comm_agree(s->comm, tsr_optimizer_load_state_dict(&raw, tsr_state_dict_root(out->optimizer), &s->host, err),
                          err);
}

/* ---- only state dicts ---- */

static tsr_status gather_job(subject *s, outcome *out, tsr_error *err)
{
    const tsr_value *ranks = subject_get(s, "ranks_only");
    uint32_t *only = tsr_arena_array(s->arena, ranks->count, sizeof *only, err);
    if (!only) return TSR_E_NOMEM;
    for (size_t i = 0; i < ranks->count; i++) only[i] = (uint32_t)ranks->items[i]->as.integer;
    const tsr_gather_options options = {
        .ranks_only = only, .ranks_only_count = ranks->count, .offload = option(s, "cpu_offload", false)};
    return tsr_state_dict_gather(subject_get(s, "state"), s->comm, &options, out->model, err);
}

/* Flattens a state dict into `model`, and unflattens that into `optimizer`. */
static tsr_status flatten_job(subject *s, outcome *out, tsr_error *err)
{
    const tsr_value *state = subject_get(s, "state"), *again;
    tsr_state_key *keys;
    size_t count;
    if (subject_is(s->job, "op", "flatten")) TSR_TRY(tsr_state_keys(state, &s->host, s->arena, &keys, &count, err));
    else TSR_TRY(tsr_state_keys_dcp(state, &s->host, s->arena, &keys, &count, err));
    for (size_t i = 0; i < count; i++) TSR_TRY(tsr_state_dict_put(out->model, keys[i].name, keys[i].value, err));
    TSR_TRY(tsr_state_unflatten(keys, count, &s->host, s->arena, &again, err));
    tsr_state_dict_set_root(out->optimizer, again);
    out->with_optimizer = true;
    return TSR_OK;
}

static tsr_status state_job(subject *s, outcome *out, tsr_error *err)
{
    out->with_model = true;
    return subject_is(s->job, "op", "gather") ? gather_job(s, out, err) : flatten_job(s, out, err);
}

static tsr_status perform(subject *s, outcome *out, tsr_error *err)
{
    const tsr_state_options options = options_of(s);
    const tsr_value *op = subject_get(s, "op");
    if (op->kind != TSR_VALUE_STR) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "a job without an operation");
    if (tsr_str_starts(op->text, TSR_STR("get_"))) return get_job(s, &options, out, err);
    if (tsr_str_starts(op->text, TSR_STR("set_"))) return set_job(s, &options, out, err);
    if (tsr_str_starts(op->text, TSR_STR("raw_"))) return raw_job(s, out, err);
    if (subject_is(s->job, "op", "gather") || tsr_str_starts(op->text, TSR_STR("flatten"))) return state_job(s, out, err);
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "no operation '%.*s'", TSR_STR_ARG(op->text));
}

static const tsr_value *names_value(tsr_arena *arena, const tsr_str *names, size_t count)
{
    const tsr_value **items = tsr_arena_array(arena, count, sizeof *items, NULL);
    for (size_t i = 0; items && i < count; i++) items[i] = tsr_value_str(arena, names[i], NULL);
    return items ? tsr_value_items(arena, TSR_VALUE_LIST, items, count, NULL) : NULL;
}

static tsr_status write_answer(subject *s, const outcome *out, tsr_status status, const tsr_error *own, tsr_vec *bytes)
{
    tsr_error err = {0};
    const tsr_value *none = tsr_value_none(s->arena, NULL), *now = none;
    if (out->with_now) TSR_TRY(subject_now(s, &now, &err));
    const bool good = status == TSR_OK;
    const tsr_value *warnings =
        tsr_value_items(s->arena, TSR_VALUE_LIST, (const tsr_value *const *)s->warnings.items, s->warnings.count, NULL);
    const tsr_value *answer = tsr_value_dict(
        s->arena, 9, "opened", tsr_value_bool(s->arena, out->opened, NULL), "status", tsr_value_int(s->arena, status, NULL),
        "error", tsr_value_str(s->arena, tsr_str_from(own->message), NULL), "model",
        good && out->with_model ? tsr_state_dict_root(out->model) : none, "optimizer",
        good && out->with_optimizer ? tsr_state_dict_root(out->optimizer) : none, "missing",
        out->with_keys ? names_value(s->arena, out->keys.missing, out->keys.missing_count) : none, "unexpected",
        out->with_keys ? names_value(s->arena, out->keys.unexpected, out->keys.unexpected_count) : none, "now", now,
        "warnings", warnings);
    return answer ? wire_write(bytes, answer, s->arena, &err) : TSR_E_NOMEM;
}

static tsr_status run_rank(void *arg, tsr_comm *comm, tsr_error *err)
{
    request *r = arg;
    subject s;
    outcome out = {0};
    tsr_error own = {0};
    tsr_status status = subject_open(&s, r->jobs[comm->rank], comm, &own);
    out.opened = status == TSR_OK;
    status = tsr_comm_agree(comm, status, &own);
    if (status == TSR_OK) status = tsr_state_dict_new(&s.host, &out.model, &own);
    if (status == TSR_OK) status = tsr_state_dict_new(&s.host, &out.optimizer, &own);
    if (status == TSR_OK) status = perform(&s, &out, &own);
    tsr_vec *bytes = &r->answers[comm->rank];
    if (s.arena && write_answer(&s, &out, status, &own, bytes) != TSR_OK) bytes->count = 0;
    tsr_state_dict_free(out.optimizer);
    tsr_state_dict_free(out.model);
    subject_close(&s);
    (void)err;
    return TSR_OK;
}

static bool read_request(request *r)
{
    uint32_t size;
    if (fread(&r->ranks, 4, 1, stdin) != 1 || !r->ranks || r->ranks > MOST_RANKS) return false;
    for (uint32_t i = 0; i < r->ranks; i++) {
        if (fread(&size, 4, 1, stdin) != 1) return false;
        char *data = malloc((size_t)size + 1);
        if (!data || fread(data, 1, size, stdin) != size) return false;
        r->jobs[i] = (tsr_str){data, size};
        r->answers[i] = tsr_vec_of(&tsr_allocator_libc, 1);
    }
    return true;
}

int main(void)
{
    request r;
    while (read_request(&r)) {
        tsr_error err = {0};
        if (tsr_comm_threads_run(&tsr_allocator_libc, r.ranks, run_rank, &r, &err) != TSR_OK) {
            fprintf(stderr, "driver: %s\n", err.message);
            return 1;
        }
        for (uint32_t i = 0; i < r.ranks; i++) {
            const uint32_t size = (uint32_t)r.answers[i].count;
            if (fwrite(&size, 4, 1, stdout) != 1 || fwrite(r.answers[i].items, 1, size, stdout) != size) return 1;
            tsr_vec_free(&r.answers[i]);
            free((char *)(uintptr_t)r.jobs[i].data);
        }
        if (fflush(stdout) != 0) return 1;
    }
    return 0;
}
