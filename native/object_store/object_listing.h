/* Parses the pages of a listing: XML from S3, Azure and Google's XML API, and JSON from Google. */
#ifndef TSR_OBJECT_STORE_OBJECT_LISTING_H
#define TSR_OBJECT_STORE_OBJECT_LISTING_H

#include "object_store/service.h"

/* The names of the relevant elements of a page. Of `root`, only the beginning is compared (moto sends ListPartsResponse for
 * S3's ListPartsResult). `size`, `modified`, `checksum` NULL: items have
 * none. `cut`: the element that is "true" if more pages follow, for
 * servers that send `next` on the last page, too; NULL: `next` alone decides. */
struct tsr_listing_form {
    const char *root, *item, *key, *size, *version, *next, *cut, *modified, *checksum;
};
extern const tsr_listing_form tsr_listing_of_s3, tsr_listing_of_azure;
/* Unfinished uploads (with their ids as versions) and their parts in S3's protocol, and the blocks of an object in
 * Azure's. */
extern const tsr_listing_form tsr_listing_of_uploads, tsr_listing_of_parts, tsr_listing_of_blocks;

/* When an object was changed, in seconds since 1970, from "2026-10-21T07:28:00.000Z" or the date of an HTTP header; 0 if it is neither. */
int64_t tsr_listed_time(tsr_str text);

/* Appends the objects of a page to `out`. `*next` is the token with which to request the following page, in out->arena;
 * empty: this was the last page. Errors: TSR_E_FORMAT if it is not such a page, TSR_E_IO for an <Error>, with its code,
 * TSR_E_LIMIT, TSR_E_NOMEM. */
tsr_status tsr_listing_read(const tsr_listing_form *form, tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err);

/* The same for Google's JSON: a page, and the description of one object. */
tsr_status tsr_listing_read_google(tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err);
tsr_status tsr_listing_read_google_object(tsr_str text, tsr_object_list *out, tsr_error *err);

#endif
