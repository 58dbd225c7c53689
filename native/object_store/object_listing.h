/* The pages of a listing: in XML, as S3, Azure and Google's XML API give them, and in JSON, as Google does. */
#ifndef TSR_OBJECT_STORE_OBJECT_LISTING_H
#define TSR_OBJECT_STORE_OBJECT_LISTING_H

#include "object_store/service.h"

/* The names of what counts in a page; of `root` only how it begins (moto gives ListPartsResponse for S3's ListPartsResult). `size` NULL: the items have none. `cut`: the element that is "true" where more pages follow, of
 * servers that state `next` on the last page, too; NULL: `next` alone says it. */
typedef struct tsr_listing_form {
    const char *root, *item, *key, *size, *version, *next, *cut;
} tsr_listing_form;
extern const tsr_listing_form tsr_listing_of_s3, tsr_listing_of_azure;
/* Unfinished uploads (ids as versions) and their parts, by S3's protocol; the blocks of an object, by Azure's. */
extern const tsr_listing_form tsr_listing_of_uploads, tsr_listing_of_parts, tsr_listing_of_blocks;

/* Appends a page's objects to `out`. `*next`: what asks for the following page, in out->arena; empty: this was the last. Errors:
 * TSR_E_FORMAT for anything that is not such a page, TSR_E_IO for an <Error> (its code is named), TSR_E_LIMIT, TSR_E_NOMEM. */
tsr_status tsr_listing_read(const tsr_listing_form *form, tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err);

/* Likewise for Google's JSON: a page, and the description of one object. */
tsr_status tsr_listing_read_google(tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err);
tsr_status tsr_listing_read_google_object(tsr_str text, tsr_object_list *out, tsr_error *err);

#endif
