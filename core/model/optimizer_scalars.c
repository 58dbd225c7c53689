/* Recognizes the state of optimizers by where it is. The name of a value alone, such as "step", decides nothing: models have
 * buffers with such names. */
#include "tessera/sys/optimizer_scalars.h"

#include <string.h>

#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

typedef struct survey {
    const tsr_catalog *catalog;
    tsr_map *owners; /* what is before "param_groups" in names, with its dot */
    bool only_state; /* the root has nothing but "state" and "param_groups", and there are moments of parameters in it */
    tsr_error *err;
} survey;

/* Takes the next component of a name and its dot off *rest. Returns false after the last one. */
static bool next_component(tsr_str *rest, tsr_str *out)
{
    if (!rest->size) return false;
    const char *dot = memchr(rest->data, '.', rest->size);
    out->data = rest->data;
    out->size = dot ? (size_t)(dot - rest->data) : rest->size;
    const size_t taken = out->size + (dot != NULL);
    rest->data += taken, rest->size -= taken;
    return true;
}

static bool is_groups(tsr_str component)
{
    return tsr_str_equal(component, TSR_STR("param_groups"));
}

static bool is_state(tsr_str component)
{
    return tsr_str_equal(component, TSR_STR("state"));
}

/* Megatron-Core's distributed optimizer keeps its state apart from that of the optimizer inside it. */
static bool is_any_state(tsr_str component)
{
    return is_state(component) || is_groups(component) || tsr_str_equal(component, TSR_STR("param_state"));
}

/* Whether this is what frameworks call an optimizer: "optim", or "optimizer_0" of several. */
static bool names_optimizer(tsr_str component)
{
    static const char *const names[] = {
        "optim",           "optimizer",        "optimizers",       "optim_state",         "optim_states",
        "optimizer_state", "optimizer_states", "optim_state_dict", "optimizer_state_dict"};
    while (component.size && component.data[component.size - 1] >= '0' && component.data[component.size - 1] <= '9')
        component.size--;
    if (component.size && component.data[component.size - 1] == '_') component.size--;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tsr_str_equal(component, tsr_str_from(names[i]))) return true;
    return false;
}

/* Whether this is a name that PyTorch's optimizers give to what they remember of a parameter. */
static bool is_moment(tsr_str fqn)
{
    static const char *const names[] = {"exp_avg", "momentum_buffer", "square_avg"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tsr_str_equal(tsr_last_component(fqn), tsr_str_from(names[i]))) return true;
    return false;
}

static tsr_status find_owners(survey *s)
{
    bool moments = false;
    s->only_state = true;
    for (uint64_t i = 0; i < s->catalog->entry_count; i++) {
        const tsr_str fqn = s->catalog->entries[i].fqn;
        tsr_str rest = fqn, component = {NULL, 0};
        for (bool first = true; next_component(&rest, &component); first = false) {
            if (first && !is_state(component) && !is_groups(component)) s->only_state = false;
            if (!is_groups(component)) continue;
            const tsr_str owner = {fqn.data, (size_t)(component.data - fqn.data)};
            TSR_TRY(tsr_map_put(s->owners, owner, 0, NULL, NULL, s->err));
        }
        moments |= is_moment(fqn);
    }
    s->only_state &= moments;
    return TSR_OK;
}

static bool belongs_to_optimizer(const survey *s, tsr_str fqn)
{
    tsr_str rest = fqn, component;
    bool inside = s->only_state;
    while (next_component(&rest, &component)) {
        const tsr_str before = {fqn.data, (size_t)(component.data - fqn.data)};
        if (inside && is_any_state(component)) return true;
        if ((is_state(component) || is_groups(component)) && tsr_map_get(s->owners, before, UINT32_MAX) != UINT32_MAX)
            return true;
        inside |= names_optimizer(component);
    }
    return false;
}

static tsr_status mark(survey *s, bool *is)
{
    TSR_TRY(find_owners(s));
    for (uint64_t i = 0; i < s->catalog->entry_count; i++)
        is[i] = is[i] && belongs_to_optimizer(s, s->catalog->entries[i].fqn);
    return TSR_OK;
}

tsr_status tsr_optimizer_scalars(const tsr_catalog *catalog, const tsr_allocator *allocator, bool *is, tsr_error *err)
{
    survey s = {.catalog = catalog, .err = err};
    bool any = false;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        is[i] = catalog->entries[i].kind == TSR_ENTRY_TENSOR && !catalog->entries[i].ndim;
        any |= is[i];
    }
    if (!any) return TSR_OK;
    s.owners = tsr_map_new(allocator, 0, err);
    const tsr_status status = s.owners ? mark(&s, is) : TSR_E_NOMEM;
    tsr_map_free(s.owners);
    return status;
}
