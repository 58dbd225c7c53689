"""What the safetensors library says about hand-built files → safetensors_verdicts.tsv (name, theirs, ours, error, file in hex).

Run it with a Python that has safetensors 0.8.0; it rewrites the table beside it. `theirs` is the library's verdict,
`ours` what Tessera states for what the library accepts: "read", "refuse", or the rule of the finding."""
import os
import struct

import safetensors


def image(header, data=b"", length=None):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + data


F32 = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'
T = '{"a":{%s}}' % F32
D4 = b"abcd"


def one(fields, data=D4):
    return image('{"a":{%s}}' % fields, data)


def dims(dtype, shape, size):
    return one('"dtype":"%s","shape":%s,"data_offsets":[0,%d]' % (dtype, shape, size), bytes(size))


def two(a, b, size):
    return image('{"a":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]},"b":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}}'
                 % (a[1] - a[0], *a, b[1] - b[0], *b), bytes(size))


def nested(depth):
    return one(F32 + ',"x":' + "[" * depth + "]" * depth)


CASES = [
    # the container
    ("empty_file", b"", "refuse"),
    ("seven_bytes", b"\x02\0\0\0\0\0\0", "refuse"),
    ("length_only", struct.pack("<Q", 0), "refuse"),
    ("length_beyond_file", image("{}", length=3), "refuse"),
    ("length_beyond_limit", image("{}", length=100_000_001), "refuse"),
    ("length_huge", image("{}", length=2**64 - 1), "refuse"),
    ("length_overflows", image("{}", length=2**64 - 8), "refuse"),
    ("empty_object", image("{}"), "read"),
    ("one_tensor", image(T, D4), "read"),
    ("trailing_byte", image(T, D4 + b"x"), "refuse"),
    ("truncated_data", image(T, b"abc"), "refuse"),
    ("no_data", image(T), "refuse"),
    # the JSON text
    ("not_json", image("hello"), "refuse"),
    ("array", image("[]"), "refuse"),
    ("null", image("null"), "refuse"),
    ("string", image('"a"'), "refuse"),
    ("unclosed", image(T[:-1], D4), "refuse"),
    ("trailing_comma", image(T[:-1] + ",}", D4), "refuse"),
    ("trailing_text", image(T + "x", D4), "refuse"),
    ("trailing_nul", image(T + "\0", D4), "refuse"),
    ("trailing_object", image(T + "{}", D4), "refuse"),
    ("trailing_spaces", image(T + "   ", D4), "read"),
    ("trailing_newline_tab", image(T + "\r\n\t ", D4), "read"),
    ("trailing_form_feed", image(T + "\f", D4), "refuse"),
    ("leading_space", image("  " + T, D4), "safetensors/leading-space"),
    ("leading_newline", image("\n" + T, D4), "safetensors/leading-space"),
    ("leading_bom", image(b"\xef\xbb\xbf" + T.encode(), D4), "refuse"),
    ("comment", image(T[:-1] + "/**/}", D4), "refuse"),
    ("single_quotes", image(T.replace('"', "'"), D4), "refuse"),
    ("missing_colon", image('{"a" {%s}}' % F32, D4), "refuse"),
    ("missing_comma", image('{"a":{%s} "b":{%s}}' % (F32, F32), D4), "refuse"),
    ("key_not_string", image("{1:{%s}}" % F32, D4), "refuse"),
    ("invalid_utf8", image(b'{"\xff":{%s}}' % F32.encode(), D4), "refuse"),
    ("overlong_utf8", image(b'{"\xc0\x80":{%s}}' % F32.encode(), D4), "refuse"),
    ("surrogate_utf8", image(b'{"\xed\xa0\x80":{%s}}' % F32.encode(), D4), "refuse"),
    ("beyond_unicode", image(b'{"\xf4\x90\x80\x80":{%s}}' % F32.encode(), D4), "refuse"),
    ("utf8_name", image('{"é😀":{%s}}' % F32, D4), "read"),
    ("escaped_name", image(r'{"\u00e9\ud83d\ude00\n\/\"\\\b\f\r\t":{%s}}' % F32, D4), "read"),
    ("lone_high_surrogate", image(r'{"\ud83d":{%s}}' % F32, D4), "refuse"),
    ("lone_low_surrogate", image(r'{"\ude00":{%s}}' % F32, D4), "refuse"),
    ("two_high_surrogates", image(r'{"\ud83d\ud83d":{%s}}' % F32, D4), "refuse"),
    ("bad_escape", image(r'{"\x41":{%s}}' % F32, D4), "refuse"),
    ("short_unicode_escape", image(r'{"\u12":{%s}}' % F32, D4), "refuse"),
    ("upper_case_escape", image(r'{"\u00E9":{%s}}' % F32, D4), "read"),
    ("raw_newline_in_name", image('{"a\nb":{%s}}' % F32, D4), "refuse"),
    ("raw_tab_in_name", image('{"a\tb":{%s}}' % F32, D4), "refuse"),
    ("delete_in_name", image('{"a\x7fb":{%s}}' % F32, D4), "read"),
    ("nul_in_name", image(r'{"a\u0000b":{%s}}' % F32, D4), "safetensors/nul-in-name"),
    ("raw_nul_in_name", image('{"a\0b":{%s}}' % F32, D4), "refuse"),
    ("empty_name", image('{"":{%s}}' % F32, D4), "safetensors/empty-name"),
    ("spaces_everywhere", image(' { "a" :\t{ "dtype" : "F32" , "shape" : [ 1 ] ,\n"data_offsets" : [ 0 , 4 ] } } ', D4), "safetensors/leading-space"),
    # names
    ("duplicate_names", image('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}', D4), "refuse"),
    ("duplicate_names_same_data", image('{"a":{%s},"a":{%s}}' % (F32, F32), D4), "refuse"),
    ("duplicate_by_escape", image(r'{"a":{%s},"\u0061":{%s}}' % (F32, F32), D4), "refuse"),
    # a tensor's fields
    ("tensor_null", image('{"a":null}'), "refuse"),
    ("tensor_number", image('{"a":1}'), "refuse"),
    ("tensor_array", image('{"a":["F32",[1],[0,4]]}', D4), "refuse"),
    ("tensor_empty_object", image('{"a":{}}'), "refuse"),
    ("no_dtype", one('"shape":[1],"data_offsets":[0,4]'), "refuse"),
    ("no_shape", one('"dtype":"F32","data_offsets":[0,4]'), "refuse"),
    ("no_offsets", one('"dtype":"F32","shape":[1]'), "refuse"),
    ("fields_reordered", one('"data_offsets":[0,4],"shape":[1],"dtype":"F32"'), "read"),
    ("escaped_field", one(r'"\u0064type":"F32","shape":[1],"data_offsets":[0,4]'), "read"),
    ("dtype_twice", one('"dtype":"F32",' + F32), "refuse"),
    ("shape_twice", one('"shape":[1],' + F32), "refuse"),
    ("offsets_twice", one('"data_offsets":[0,4],' + F32), "refuse"),
    ("dtype_unknown", one('"dtype":"F31","shape":[1],"data_offsets":[0,4]'), "refuse"),
    ("dtype_lower_case", one('"dtype":"f32","shape":[1],"data_offsets":[0,4]'), "refuse"),
    ("dtype_null", one('"dtype":null,"shape":[1],"data_offsets":[0,4]'), "refuse"),
    ("dtype_number", one('"dtype":4,"shape":[1],"data_offsets":[0,4]'), "refuse"),
    ("dtype_object", one('"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]'), "refuse"),
    ("dtype_empty", one('"dtype":"","shape":[1],"data_offsets":[0,4]'), "refuse"),
    ("dtype_escaped", one(r'"dtype":"F\u00332","shape":[1],"data_offsets":[0,4]'), "read"),
    ("shape_null", one('"dtype":"F32","shape":null,"data_offsets":[0,4]'), "refuse"),
    ("shape_number", one('"dtype":"F32","shape":1,"data_offsets":[0,4]'), "refuse"),
    ("shape_nested", one('"dtype":"F32","shape":[[1]],"data_offsets":[0,4]'), "refuse"),
    ("shape_string", one('"dtype":"F32","shape":["1"],"data_offsets":[0,4]'), "refuse"),
    ("shape_negative", one('"dtype":"F32","shape":[-1],"data_offsets":[0,4]'), "refuse"),
    ("shape_minus_zero", one('"dtype":"F32","shape":[-0],"data_offsets":[0,0]', b""), "refuse"),
    ("shape_float", one('"dtype":"F32","shape":[1.0],"data_offsets":[0,4]'), "refuse"),
    ("shape_exponent", one('"dtype":"F32","shape":[1e0],"data_offsets":[0,4]'), "refuse"),
    ("shape_leading_zero", one('"dtype":"F32","shape":[01],"data_offsets":[0,4]'), "refuse"),
    ("shape_plus", one('"dtype":"F32","shape":[+1],"data_offsets":[0,4]'), "refuse"),
    ("shape_hex", one('"dtype":"F32","shape":[0x1],"data_offsets":[0,4]'), "refuse"),
    ("shape_bool", one('"dtype":"F32","shape":[true],"data_offsets":[0,4]'), "refuse"),
    ("shape_trailing_comma", one('"dtype":"F32","shape":[1,],"data_offsets":[0,4]'), "refuse"),
    ("shape_beyond_64_bits", one('"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]'), "refuse"),
    ("shape_largest_times_zero", one('"dtype":"F32","shape":[18446744073709551615,0],"data_offsets":[0,0]', b""), "read"),
    ("shape_overflows", one('"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]', b""), "refuse"),
    ("shape_overflows_then_zero", one('"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]', b""), "refuse"),
    ("zero_then_overflow", one('"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]', b""), "read"),
    ("bits_overflow", one('"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,0]', b""), "refuse"),
    ("bytes_fit_bits_do_not", one('"dtype":"F64","shape":[288230376151711744],"data_offsets":[0,0]', b""), "refuse"),
    ("offsets_null", one('"dtype":"F32","shape":[1],"data_offsets":null'), "refuse"),
    ("offsets_one", one('"dtype":"F32","shape":[1],"data_offsets":[0]'), "refuse"),
    ("offsets_three", one('"dtype":"F32","shape":[1],"data_offsets":[0,4,4]'), "refuse"),
    ("offsets_empty", one('"dtype":"F32","shape":[1],"data_offsets":[]'), "refuse"),
    ("offsets_object", one('"dtype":"F32","shape":[1],"data_offsets":{"begin":0,"end":4}'), "refuse"),
    ("offsets_negative", one('"dtype":"F32","shape":[1],"data_offsets":[-4,0]'), "refuse"),
    ("offsets_float", one('"dtype":"F32","shape":[1],"data_offsets":[0.0,4.0]'), "refuse"),
    ("offsets_backwards", one('"dtype":"F32","shape":[1],"data_offsets":[4,0]'), "refuse"),
    ("offsets_too_short", one('"dtype":"F32","shape":[1],"data_offsets":[0,3]', b"abc"), "refuse"),
    ("offsets_too_long", one('"dtype":"F32","shape":[1],"data_offsets":[0,5]', b"abcde"), "refuse"),
    ("offsets_begin_late", one('"dtype":"F32","shape":[1],"data_offsets":[1,5]', b"abcde"), "refuse"),
    ("offsets_beyond_file", one('"dtype":"F32","shape":[2],"data_offsets":[0,8]'), "refuse"),
    ("offsets_largest", one('"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]', b""), "refuse"),
    ("unknown_field", one(F32 + ',"note":"x"'), "safetensors/unknown-field"),
    ("unknown_field_first", one('"note":{"deep":[1,2.5,null,true,false,"\\ud83d\\ude00"]},' + F32), "safetensors/unknown-field"),
    ("unknown_field_bad_literal", one(F32 + ',"note":nul'), "refuse"),
    ("unknown_field_bad_string", one(F32 + r',"note":"\ud800"'), "refuse"),
    ("unknown_field_number_range", one(F32 + ',"note":1e999'), "refuse"),
    ("unknown_field_nan", one(F32 + ',"note":NaN'), "refuse"),
    ("unknown_field_depth_100", nested(100), "safetensors/unknown-field"),
    ("unknown_field_depth_125", nested(125), "safetensors/unknown-field"),
    ("unknown_field_depth_126", nested(126), "refuse"),
    ("unknown_field_depth_500", nested(500), "refuse"),
    # headers that end or go wrong at every place
    ("end_in_escape", image('{"a\\'), "refuse"),
    ("end_after_backslash_u", image('{"a\\u00'), "refuse"),
    ("end_in_integer", image('{"a":{"shape":[1'), "refuse"),
    ("end_after_comma", image('{"a":{"shape":[1,'), "refuse"),
    ("end_in_null", image('{"__metadata__":nu'), "refuse"),
    ("end_after_name", image('{"a"'), "refuse"),
    ("end_after_brace", image("{"), "refuse"),
    ("null_misspelt", image('{"__metadata__":nuxl}'), "refuse"),
    ("offsets_second_text", one('"dtype":"F32","shape":[1],"data_offsets":[0,"4"]'), "refuse"),
    ("field_not_string", image('{"a":{1:2}}'), "refuse"),
    ("field_without_colon", image('{"a":{"dtype" "F32"}}'), "refuse"),
    ("fields_without_comma", image('{"a":{"dtype":"F32" "shape":[1]}}'), "refuse"),
    ("metadata_without_colon", image('{"__metadata__":{"a" "b"}}'), "refuse"),
    ("metadata_without_comma", image('{"__metadata__":{"a":"b" "c":"d"}}'), "refuse"),
    ("digit_then_letter", one('"dtype":"F32","shape":[1a],"data_offsets":[0,4]'), "refuse"),
    ("hole_by_an_empty_tensor", two((0, 4), (5, 5), 4), "refuse"),
    ("equal_begin_longer_first", two((0, 2), (0, 0), 2), "read"),
    # several tensors
    ("contiguous", two((0, 2), (2, 4), 4), "read"),
    ("header_order_reversed", two((2, 4), (0, 2), 4), "read"),
    ("hole", two((0, 1), (2, 4), 4), "refuse"),
    ("overlap", two((0, 3), (2, 4), 4), "refuse"),
    ("same_range", two((0, 4), (0, 4), 4), "refuse"),
    ("inside_another", two((0, 4), (1, 2), 4), "refuse"),
    ("empty_at_begin", two((0, 0), (0, 4), 4), "read"),
    ("empty_at_begin_listed_last", two((0, 4), (0, 0), 4), "read"),
    ("empty_at_end", two((0, 4), (4, 4), 4), "read"),
    ("empty_inside", two((0, 4), (2, 2), 4), "refuse"),
    ("empty_beyond", two((0, 4), (9, 9), 4), "refuse"),
    ("two_empty", two((0, 0), (0, 0), 0), "read"),
    # metadata
    ("metadata", image('{"__metadata__":{"format":"pt"},' + T[1:], D4), "read"),
    ("metadata_only", image('{"__metadata__":{"format":"pt"}}'), "read"),
    ("metadata_empty", image('{"__metadata__":{}}'), "read"),
    ("metadata_last", image(T[:-1] + ',"__metadata__":{"a":"b"}}', D4), "read"),
    ("metadata_escaped_key", image(r'{"\u005f_metadata__":{"a":"b"}}'), "read"),
    ("metadata_null", image('{"__metadata__":null}'), "safetensors/metadata-null"),
    ("metadata_number_value", image('{"__metadata__":{"a":1}}'), "refuse"),
    ("metadata_null_value", image('{"__metadata__":{"a":null}}'), "refuse"),
    ("metadata_nested", image('{"__metadata__":{"a":{}}}'), "refuse"),
    ("metadata_array", image('{"__metadata__":[]}'), "refuse"),
    ("metadata_string", image('{"__metadata__":"x"}'), "refuse"),
    ("metadata_twice", image('{"__metadata__":{},"__metadata__":{}}'), "refuse"),
    ("metadata_duplicate_key", image('{"__metadata__":{"a":"1","a":"2"}}'), "safetensors/duplicate-metadata-key"),
    ("metadata_as_tensor", image('{"__metadata__":{%s}}' % F32, D4), "refuse"),
    ("metadata_trailing_comma", image('{"__metadata__":{"a":"b",}}'), "refuse"),
    # dtypes
    *((f"dtype_{d}", dims(d, "[2,3]", 6 * bits // 8), "read") for d, bits in
      [("BOOL", 8), ("U8", 8), ("I8", 8), ("F8_E5M2", 8), ("F8_E4M3", 8), ("F8_E8M0", 8), ("F8_E4M3FNUZ", 8), ("F8_E5M2FNUZ", 8),
       ("I16", 16), ("U16", 16), ("F16", 16), ("BF16", 16), ("I32", 32), ("U32", 32), ("F32", 32), ("C64", 64), ("F64", 64), ("I64", 64), ("U64", 64),
       ("F4", 4)]),
    ("dtype_F6_E2M3", dims("F6_E2M3", "[2,2]", 3), "read"),
    ("dtype_F6_E3M2", dims("F6_E3M2", "[4]", 3), "read"),
    ("dtype_F6_partial_byte", dims("F6_E2M3", "[3]", 2), "refuse"),
    ("dtype_F4_odd", dims("F4", "[3]", 2), "refuse"),
    ("dtype_F4_odd_last_even_total", dims("F4", "[2,3]", 3), "read"),
    ("dtype_C128", dims("C128", "[1]", 16), "refuse"),
    ("zero_dim", dims("F32", "[]", 4), "read"),
    ("zero_size", dims("F32", "[0,5]", 0), "read"),
    ("many_dims", dims("F32", "[%s]" % ",".join(["1"] * 300), 4), "read"),
    ("misaligned", image(T + " " * ((3 - len(T)) % 8), D4), "safetensors/misaligned"),
]


def verdict(data):
    try:
        safetensors.deserialize(data)
        return "read", ""
    except Exception as e:
        return "refuse", str(e).replace("\t", " ").replace("\n", " ")


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "safetensors_verdicts.tsv"), "w") as out:
        out.write(f"# safetensors {safetensors.__version__}: name, theirs, ours, their error, file in hex\n")
        for name, data, ours in CASES:
            theirs, error = verdict(data)
            out.write("\t".join([name, theirs, ours, error, data.hex()]) + "\n")
