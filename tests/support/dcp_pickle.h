/* `.metadata` files built field by field. */
#ifndef TESTS_SUPPORT_DCP_PICKLE_H
#define TESTS_SUPPORT_DCP_PICKLE_H

/* Pickles as text: GLOBAL, MARK … TUPLE/LIST/DICT, STRING, INT, EMPTY_TUPLE NEWOBJ, BUILD, REDUCE. */
#define MODULE                   "torch.distributed.checkpoint.metadata\n"
#define FILES                    "torch.distributed.checkpoint.filesystem\n"
#define NEW(module, name, state) "c" module name "\n)\x81" state "b"
#define STR(text)                "S'" text "'\n"
#define INT(text)                "I" text "\n"
#define SIZE0                    "ctorch\nSize\n((ttR"
#define SIZE1(a)                 "ctorch\nSize\n((" INT(a) "ttR"
#define SIZE2(a, b)              "ctorch\nSize\n((" INT(a) INT(b) "ttR"
#define CHUNK(offsets, sizes)    NEW(MODULE, "ChunkStorageMetadata", "(" STR("offsets") offsets STR("sizes") sizes "d")
#define PROPERTIES_OF(dtype) \
    NEW(MODULE, "TensorProperties", "(" dtype "NI00\nc" MODULE "_MEM_FORMAT_ENCODING\n(I0\ntRI00\nt")
#define PROPERTIES PROPERTIES_OF("ctorch\nfloat32\n")
#define TENSOR_OF(properties, size, chunks) \
    NEW(MODULE, "TensorStorageMetadata", "(" STR("properties") properties STR("size") size STR("chunks") "(" chunks "ld")
#define TENSOR(size, chunks)     TENSOR_OF(PROPERTIES, size, chunks)
#define BYTE_ITEM                "c" MODULE "BytesStorageMetadata\n)\x81"
#define INDEX(fqn, offset, hint) NEW(MODULE, "MetadataIndex", "(" STR("fqn") fqn STR("offset") offset STR("index") hint "d")
#define STORAGE(path, offset, length) \
    NEW(FILES, "_StorageInfo", "(" STR("relative_path") path STR("offset") offset STR("length") length "d")
#define METADATA(tensors, paths, storage) \
    NEW(MODULE, "Metadata", \
        "(" STR("state_dict_metadata") "(" tensors "d" STR("planner_data") "(" paths "d" STR("storage_data") "(" storage \
                                                                                                             "dd") \
    "."
#define AT(fqn, offset, hint, path, at, length) INDEX(STR(fqn), offset, hint) STORAGE(STR(path), INT(at), INT(length))
#define ZSTD_AT(fqn, offset, hint, path, at, length) \
    INDEX(STR(fqn), offset, hint) \
    NEW(FILES, "_StorageInfo", \
        "(" STR("relative_path") STR(path) STR("offset") INT(at) STR("length") INT(length) \
            STR("transform_descriptors") "(" STR("stream.zstd/1") "ld")

#endif
