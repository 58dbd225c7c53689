/* See service.h. */
#include "object_store/exchange.h"

tsr_status tsr_service_stat_by_range(tsr_service *base, tsr_str key, tsr_object_list *out, tsr_error *err)
{
    char byte;
    const tsr_request request = {.key = key, .is_ranged = true, .buffer = &byte, .capacity = 1};
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(base, &request, &x, 1, err);
    const bool is_empty = x.transfer.answer.status == 416 && x.transfer.answer.total == 0;
    if (status == TSR_OK && x.transfer.answer.status >= 300 && !is_empty) status = tsr_exchange_error(base, &x, err);
    if (status == TSR_OK && x.transfer.answer.total == UINT64_MAX)
        status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s/%.*s: the server does not state the object's size",
                           base->shown, TSR_STR_ARG(key));
    if (status == TSR_OK) {
        const tsr_object object = {
            tsr_arena_str(out->arena, key, err), x.transfer.answer.total,
            tsr_arena_str(out->arena, tsr_version_text(tsr_str_from(x.transfer.answer.version)), err)};
        status = object.key.data && object.version.data ? tsr_object_list_add(out, object, err) : TSR_E_NOMEM;
    }
    tsr_exchange_end(&x);
    return status;
}
