/* Reads the options of calls. */
#include "request.h"

#include "tessera/sys/try.h"

static tsr_str str_of(const tessera_text *text)
{
    return (tsr_str){(const char *)(uintptr_t)text->data, text->size};
}

/* What calls pass besides the options of the command. Returns the member for `name`, or NULL. */
static const char **member_of(request *r, tsr_str name)
{
    const struct {
        const char *name, **member;
    } members[] = {{"path", &r->path},
                   {"manifest", &r->manifest},
                   {"against-names", &r->against_names},
                   {"against-checkpoint", &r->against_checkpoint},
                   {"names", &r->names}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (tsr_str_equal(name, tsr_str_from(members[i].name))) return members[i].member;
    return NULL;
}

tsr_status tessera_request_read(const char *command, const tessera_option *items, uint32_t count, tsr_arena *arena,
                                request *out, tsr_error *err)
{
    const tsr_command *row = tsr_command_find(tsr_str_from(command));
    *out = (request){.path = NULL};
    TSR_FAIL_IF(!row || !row->options, err, TSR_E_USAGE, "there is no call '%s'", command);
    for (uint32_t i = 0; i < count; i++) {
        const tsr_str name = str_of(&items[i].name), value = tsr_arena_str(arena, str_of(&items[i].value), err);
        const char **member = member_of(out, name);
        const tsr_option *option = member ? NULL : tsr_option_find(row->options, name);
        if (!value.data) return TSR_E_NOMEM;
        if (member) *member = value.data;
        else if (option) TSR_TRY(tsr_option_set(option, value.data, arena, &out->options, err));
        else return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "%s has no option '%.*s'", command, TSR_STR_ARG(name));
    }
    return TSR_OK;
}

tsr_status tessera_call_start(call *c, const char *command, const tessera_option *items, uint32_t count, tsr_error *err)
{
    c->arena = tsr_arena_new(tessera_host().allocator, 0, err);
    return c->arena ? tessera_request_read(command, items, count, c->arena, &c->request, err) : TSR_E_NOMEM;
}

tsr_status tessera_name_choice(const call *c, const tsr_target_texts *target, tsr_name_choice *out, tsr_error *err)
{
    TSR_TRY(tsr_choice_of(tsr_checkpoint_catalog(c->checkpoint), &c->request.options, target, c->arena, out, err));
    return tsr_name_choice_check(out, c->arena, err);
}
