/* Reads a page of a listing as servers of object stores send it: the first byte chooses the kind, and the rest is the page.
 * An accepted listing must have a key for each object and no more objects than the page has room for, and reading the page
 * again must append the same objects. */
#include <stdlib.h>

#include "object_store/object_listing.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) abort(); \
    } while (0)

enum { KINDS = 7, LEAST_ITEM = 8 /* least number of bytes of a page for each object: "<Key/>" and what surrounds it */ };

static tsr_status read_page(unsigned kind, tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err)
{
    static const tsr_listing_form *const forms[] = {&tsr_listing_of_s3, &tsr_listing_of_azure, &tsr_listing_of_uploads,
                                                    &tsr_listing_of_parts, &tsr_listing_of_blocks};
    *next = (tsr_str){NULL, 0};
    if (kind < 5) return tsr_listing_read(forms[kind], page, out, next, err);
    return kind == 5 ? tsr_listing_read_google(page, out, next, err) : tsr_listing_read_google_object(page, out, err);
}

static void check_again(unsigned kind, tsr_str page, tsr_object_list *list, tsr_str next)
{
    const size_t count = list->items.count;
    tsr_str again;
    CHECK(count <= page.size / LEAST_ITEM);
    CHECK(read_page(kind, page, list, &again, NULL) == TSR_OK && list->items.count == 2 * count);
    CHECK(next.size == again.size && (!next.size || tsr_str_equal(next, again)));
    const tsr_object *objects = list->items.items;
    for (size_t i = 0; i < count; i++) {
        CHECK(objects[i].key.data && memchr(objects[i].key.data, '\0', objects[i].key.size + 1));
        CHECK(tsr_str_equal(objects[i].key, objects[count + i].key) && objects[i].size == objects[count + i].size);
        CHECK(tsr_str_equal(objects[i].version, objects[count + i].version));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_object_list list = {0};
    tsr_error err = {0};
    tsr_str next;
    if (!size || tsr_object_list_open(&tsr_allocator_libc, &list, NULL) != TSR_OK) return 0;
    const unsigned kind = (unsigned)(data[0] - '0') % KINDS;
    const tsr_str page = {(const char *)data + 1, size - 1};
    if (read_page(kind, page, &list, &next, &err) == TSR_OK) check_again(kind, page, &list, next);
    else CHECK(err.message[0]);
    tsr_object_list_close(&list);
    return 0;
}
