/* The location of an object: s3://BUCKET/KEY, gs://BUCKET/KEY, az://ACCOUNT/CONTAINER/KEY,
 * hf://[datasets/]ORG/REPO[@REV][/PATH]. */
#ifndef TSR_OBJECT_STORE_LOCATION_H
#define TSR_OBJECT_STORE_LOCATION_H

#include "tessera/status.h"

typedef enum tsr_location_kind { TSR_AT_S3, TSR_AT_GCS, TSR_AT_AZURE, TSR_AT_HF } tsr_location_kind;

/* All parts borrow the URL. */
typedef struct tsr_location {
    tsr_location_kind kind;
    tsr_str account;  /* Azure only */
    tsr_str bucket;   /* Azure: the container; Hugging Face: "ORG/REPO" */
    tsr_str revision; /* Hugging Face only; empty: not given */
    bool is_dataset;  /* Hugging Face only */
    tsr_str key;      /* as given, except for one slash at its end; empty: the root */
} tsr_location;

/* Parses a URL. Keys are not decoded: '%', '?' and '#' are ordinary characters. Errors: TSR_E_USAGE that names what is
 * missing or not allowed. */
tsr_status tsr_location_parse(const char *url, tsr_location *out, tsr_error *err);

#endif
