/* Objects of the classes that torch.save uses become the value that Python would build, their parts by name or, if the
 * arguments are not those that PyTorch writes, the class with its arguments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/torch_opening.h"
#include "support/torch_pickle.h"
#include "support/value_render.h"

static zip_image image;

static void open_pickle(torch_opening *o, const char *pickle)
{
    torch_image(&image, pickle, (const size_t[]){24, SIZE_MAX});
    torch_open(o, &image, NULL);
}

#define ENCODE(text, encoding)               "c_codecs\nencode\n(V" text "\nS'" encoding "'\ntR"
#define STORAGE(class_name, location, numel) "(S'storage'\n" class_name "S'0'\nS'" location "'\nI" numel "\ntQ"
#define FLOATS(numel)                        STORAGE("ctorch\nFloatStorage\n", "cpu", numel)
#define HOOKS                                "ccollections\nOrderedDict\n)R"
#define SIX                                  PICKLED_TENSOR("0", "6", PICKLED_2("2", "3"), PICKLED_2("3", "1"))
#define V2_ARGS(storage)                     storage "I0\n" PICKLED_2("2", "3") PICKLED_2("3", "1") "I00\n" HOOKS
#define QTENSOR(storage, quantizer) \
    "ctorch._utils\n_rebuild_qtensor\n(" storage "I0\n" PICKLED_2("2", "3") PICKLED_2("3", "1") quantizer "I00\n" HOOKS "t" \
                                                                                                          "R"
#define LAYOUT(name)         "ctorch.serialization\n_get_layout\n(S'" name "'\ntR"
#define SPARSE(layout, data) "ctorch._utils\n_rebuild_sparse_tensor\n(" layout "(" data "ttR"
#define FROM_TYPE(function, type, args, state) \
    "ctorch._tensor\n_rebuild_from_type_v2\n(" function type "(" args "t" state "tR"
#define DEVICE_TENSOR(data, dtype) "ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(" data dtype "S'xla:0'\nI00\ntR"
#define WRAPPER                    "ctorch._utils\n_rebuild_wrapper_subclass\n"
#define WRAPPER_ARGS(type)         type "ctorch\nfloat32\n" PICKLED_2("2", "3") PICKLED_2("3", "1") "I0\n"
#define SHARDED                    "ctorch.distributed._shard.sharded_tensor.api\nShardedTensor\n"
#define SHARD_WITH(tensor)         "ctorch.distributed._shard.sharded_tensor.shard\nShard\n)\x81(dS'tensor'\n" tensor "sb"

static const struct row {
    const char *pickle, *value;
} rows[] = {
    /* bytes, in the forms of different protocols */
    {ENCODE("\\u00ff\\u0000x", "latin1") ".", "b'\\xff\\x00x'"},
    {ENCODE("\\u00c0", "latin-1") ".", "b'\\xc0'"},
    {ENCODE("ab", "utf-8") ".", "_codecs.encode<('ab','utf-8',),>"},
    {ENCODE("\\u0100", "latin1") ".", "_codecs.encode<('\\xc4\\x80','latin1',),>"},
    {"c__builtin__\nbytes\n)R.", "b''"},
    {"C\2ab.", "b'ab'"},
    {"c__builtin__\nbytearray\n(C\2abtR.", "b'ab'"},
    {"c__builtin__\nbytearray\n(" ENCODE("ab", "latin1") "tR.", "b'ab'"},
    {"c__builtin__\nbytearray\n(" ENCODE("ab", "utf-8") "tR.", "builtins.bytearray<(_codecs.encode<('ab','utf-8',),>,),>"},
    {"c__builtin__\nbytearray\n(" ENCODE("ab", "latin1") "tR(dS'a'\nI1\nsb.", "builtins.bytearray<(b'ab',),{'a':1,},>"},
    {"c__builtin__\nbytearray\n(I5\ntR.", "builtins.bytearray<(5,),>"},
    /* plain values */
    {"c__builtin__\ncomplex\n(F1.5\nI-2\ntR.", "(1.5-2j)"},
    {"(L99999999999999999999L\nI01\nt.", "(<int of 9 bytes>,True,)"},
    {"c__builtin__\nset\n((lI1\natR.", "{1,}"},
    {"c__builtin__\nfrozenset\n((I1\nttR.", "{1,}"},
    {"c__builtin__\nset\n(\x8f(K\1\x90tR.", "{1,}"},
    {"c__builtin__\nset\n)R.", "{}"},
    {"c__builtin__\nset\n(I5\ntR.", "builtins.set<(5,),>"},
    {"ctorch\nSize\n((I2\nI3\nttR.", "size(2,3,)"},
    {"ctorch\nSize\n(S'x'\ntR.", "torch.Size<('x',),>"},
    {"ctorch\ndevice\n(S'cuda'\nI1\ntR.", "<device cuda:1>"},
    {"ctorch\ndevice\n(V\\u0063pu\ntR.", "<device cpu>"},
    {LAYOUT("torch.strided") ".", "<torch.strided>"},
    {"c__builtin__\ngetattr\n(ctorch.distributed._shard.sharded_tensor.api\nShardedTensor\nS'ProcessGroupState'\ntR.",
     "<torch.distributed._shard.sharded_tensor.api.ShardedTensor.ProcessGroupState>"},
    {"c__builtin__\ngetattr\n(ctorch\nTensor\nS'add'\ntR.", "builtins.getattr<(<torch.Tensor>,'add',),>"},
    {"c__builtin__\ngetattr\n(cos\npath\nS'join'\ntR.", "builtins.getattr<(<os.path>,'join',),>"},
    {"ctorch\nbfloat16\n.", "<dtype bfloat16>"},
    {"I5\n)R.", "(not a class)<(),>"},
    /* mappings */
    {"ccollections\nOrderedDict\n((l(S'a'\nI1\nI2\ntatR.", "collections.OrderedDict<([('a',1,2,),],),>"},
    {"ccollections\nOrderedDict\n(I5\ntR.", "{}"},
    {"ccollections\nOrderedDict\n)R(dS'x'\nI1\nsb.", "{}"},
    {"cmy\nList\n)\x81(I1\nI2\ne.", "[1,2,]"}, /* only instances of list and dict have items in addition to their
                                                * arguments */
    {"cmy\nDict\n)\x81S'a'\nI1\ns.", "{'a':1,}"},
    {"cmy\nList\n)R(I1\nI2\ne.", "my.List<(),None,[1,2,],>"},
    {"cmy\nDict\n)RS'a'\nI1\ns.", "{'a':1,}"},
    {"cmy\nDict\n(I7\nt\x81S'a'\nI1\ns.", "my.Dict<(7,),None,None,{'a':1,},>"},
    /* dense tensors */
    {SIX ".", "<tensor float32 2,3 @0>"},
    {"ctorch._utils\n_rebuild_tensor_v3\n(" V2_ARGS(
         STORAGE("ctorch.storage\nUntypedStorage\n", "cpu", "24")) "ctorch\nfloat32\ntR.",
     "<tensor float32 2,3 @0>"},
    {"ctorch._utils\n_rebuild_tensor_v2\n(" V2_ARGS(STORAGE("ctorch\nFloatStorage\n", "meta", "6")) "tR.",
     "torch.meta<{'size':(2,3,),'stride':(3,1,),},>"},
    {"ctorch._utils\n_rebuild_tensor_v2\n(" FLOATS("6") "I0\nctorch\nSize\n(" PICKLED_2("2", "3") "tR" PICKLED_2("3",
                                                                                                                 "1") "tR.",
     "<tensor float32 2,3 @0>"},
    {"ctorch\nFloatTensor\n)R(I1\ntb.", "torch.FloatTensor<(),(1,),>"},
    {"ctorch\nFloatTensor\n)R(I1\nI0\n(I1\nt(I1\nttb.", "torch.FloatTensor<(),(1,0,(1,),(1,),),>"},
    {"ctorch\nFloatTensor\n)R.", "torch.FloatTensor<(),>"},
    {"ctorch\nFloatTensor\n)R(" FLOATS("6") "I2\n(I4\nt(I1\nttb.", "<tensor float32 4 @8>"},
    {"ctorch._utils\n_rebuild_parameter\n(" SIX "I01\n" HOOKS "tR.", "<parameter float32 2,3 @0>"},
    {"ctorch._utils\n_rebuild_parameter\n)R.", "torch._utils._rebuild_parameter<(),>"},
    /* storages on their own */
    {FLOATS("6") ".", "torch.FloatStorage<<tensor float32 6 @0>,>"},
    {STORAGE("ctorch.storage\n_UntypedStorage\n", "cpu", "24") ".", "torch.storage._UntypedStorage<<tensor uint8 24 @0>,>"},
    {STORAGE("ctorch.cuda\nFloatStorage\n", "cuda:0", "6") ".", "torch.cuda.FloatStorage<<tensor float32 6 @0>,>"},
    {STORAGE("ctorch\nFloatStorage\n", "meta", "6") ".", "torch.FloatStorage<None,>"},
    {"(S'module'\ncmy\nNet\nS'net.py'\nS'class Net: pass'\ntQ.", "<my.Net>"},
    /* quantized */
    {QTENSOR(STORAGE("ctorch\nQInt8Storage\n", "cpu", "24"), "(ctorch\nper_tensor_affine\nF0.5\nI3\nt") ".",
     "torch.quantized<{'data':<tensor qint8 2,3 @0>,'qscheme':<torch.per_tensor_affine>,'scale':0.5,'zero_point':3,},>"},
    {QTENSOR(STORAGE("ctorch\nQInt8Storage\n", "cpu", "24"), "(ctorch\nper_channel_affine\nI1\nI2\nI0\nt") ".",
     "torch.quantized<{'data':<tensor qint8 2,3 "
     "@0>,'qscheme':<torch.per_channel_affine>,'scales':1,'zero_points':2,'axis':0,},>"},
    {QTENSOR(STORAGE("ctorch\nQUInt4x2Storage\n", "cpu", "24"), "(ctorch\nper_tensor_affine\nF0.5\nI3\nt") ".",
     "torch.quantized<{'data':<tensor quint4x2 24 "
     "@0>,'qscheme':<torch.per_tensor_affine>,'scale':0.5,'zero_point':3,'size':(2,3,),},>"},
    {QTENSOR(STORAGE("ctorch\nQUInt2x4Storage\n", "cpu", "24"), "(ctorch\nper_tensor_affine\nF0.5\nI3\nt") ".",
     "torch.quantized<{'data':<tensor quint2x4 24 "
     "@0>,'qscheme':<torch.per_tensor_affine>,'scale':0.5,'zero_point':3,'size':(2,3,),},>"},
    /* sparse */
    {SPARSE(LAYOUT("torch.sparse_coo"), SIX SIX PICKLED_2("4", "4") "I01\n") ".",
     "torch.sparse_coo<{'indices':<tensor float32 2,3 @0>,'values':<tensor float32 2,3 "
     "@0>,'size':(4,4,),'is_coalesced':True,},>"},
    {SPARSE(LAYOUT("torch.sparse_coo"), SIX SIX PICKLED_2("4", "4")) ".",
     "torch.sparse_coo<{'indices':<tensor float32 2,3 @0>,'values':<tensor float32 2,3 @0>,'size':(4,4,),},>"},
    {SPARSE(LAYOUT("torch.sparse_csr"), "I1\nI2\nI3\n" PICKLED_2("4", "4")) ".",
     "torch.sparse_csr<{'compressed_indices':1,'plain_indices':2,'values':3,'size':(4,4,),},>"},
    {SPARSE("N", "I1\nI2\nI3\nI4\n") ".", "torch.sparse<{'compressed_indices':1,'plain_indices':2,'values':3,'size':4,},>"},
    /* nested and meta tensors, and tensors that are moved to their device when they are loaded */
    {"ctorch._utils\n_rebuild_nested_tensor\n(" SIX "I1\nI2\nI3\ntR.",
     "torch.nested<{'values':<tensor float32 2,3 @0>,'sizes':1,'strides':2,'storage_offsets':3,},>"},
    {"ctorch.nested._internal.nested_tensor\n_rebuild_njt\n((dS'values'\n" SIX "sS'offsets'\nI1\nstR.",
     "torch.nested<{'values':<tensor float32 2,3 @0>,'offsets':1,'lengths':None,},>"},
    {"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\n" PICKLED_2("2", "3") PICKLED_2("3", "1") "I00\ntR.",
     "torch.meta<{'dtype':<dtype float32>,'size':(2,3,),'stride':(3,1,),},>"},
    {DEVICE_TENSOR(SIX, "ctorch\nfloat32\n") ".", "<tensor float32 2,3 @0>"},
    {DEVICE_TENSOR(SIX, "ctorch\nfloat16\n") ".",
     "torch.Tensor<{'data':<tensor float32 2,3 @0>,'dtype':<dtype float16>,'device':'xla:0',},>"},
    {DEVICE_TENSOR(SIX, "N") ".", "torch.Tensor<{'data':<tensor float32 2,3 @0>,'dtype':None,'device':'xla:0',},>"},
    {DEVICE_TENSOR("I1\n", "ctorch\nfloat32\n") ".", "torch.Tensor<{'data':1,'dtype':<dtype float32>,'device':'xla:0',},>"},
    /* the function that _rebuild_from_type would call */
    {FROM_TYPE("ctorch._utils\n_rebuild_tensor_v2\n", "ctorch.nn.parameter\nParameter\n", V2_ARGS(FLOATS("6")), "N") ".",
     "<parameter float32 2,3 @0>"},
    {FROM_TYPE("ctorch._utils\n_rebuild_tensor_v3\n", "cmy\nTensor\n",
               V2_ARGS(STORAGE("ctorch.storage\nUntypedStorage\n", "cpu", "24")) "ctorch\nfloat32\n", "N") ".",
     "<tensor float32 2,3 @0>"},
    {FROM_TYPE("ctorch._utils\n_rebuild_meta_tensor_no_storage\n", "cmy\nTensor\n", "ctorch\nint8\n(t(tI00\n", "N") ".",
     "torch.meta<{'dtype':<dtype int8>,'size':(),'stride':(),},>"},
    {FROM_TYPE("cmy\nrebuild\n", "cmy\nTensor\n", "", "N") ".",
     "torch._tensor._rebuild_from_type_v2<(<my.rebuild>,<my.Tensor>,(),None,),>"},
    {FROM_TYPE("ctorch._utils\n_rebuild_parameter\n", "cmy\nTensor\n", "", "N") ".",
     "torch._tensor._rebuild_from_type_v2<(<torch._utils._rebuild_parameter>,<my.Tensor>,(),None,),>"},
    {FROM_TYPE("ctorch._tensor\n_rebuild_from_type_v2\n", "cmy\nTensor\n", "", "N") ".",
     "torch._tensor._rebuild_from_type_v2<(<torch._tensor._rebuild_from_type_v2>,<my.Tensor>,(),None,),>"},
    {FROM_TYPE(WRAPPER, "cmy\nTensor\n", WRAPPER_ARGS("cmy\nTensor\n"), "(dS'inner'\n" SIX "s") ".",
     "my.Tensor<{'state':{'inner':<tensor float32 2,3 @0>,},'dtype':<dtype float32>,'size':(2,3,),'wrapper':(<my.Tensor>,<dtype float32>,(2,3,),(3,1,),0,),},>"},
    {FROM_TYPE(WRAPPER, "ctorch.distributed.tensor\nDTensor\n", WRAPPER_ARGS("ctorch.distributed.tensor\nDTensor\n"),
               "(dS'x'\nI1\ns") ".",
     "torch.distributed.tensor.DTensor<{'state':{'x':1,},'dtype':<dtype float32>,'size':(2,3,),},>"},
    {FROM_TYPE(WRAPPER, "ctorch.distributed.tensor\nDTensor\n", WRAPPER_ARGS("ctorch.distributed.tensor\nDTensor\n"),
               "(dS'_local_tensor'\nI1\ns") ".",
     "torch.distributed.tensor.DTensor<{'local_tensor':1,'dtype':<dtype float32>,'size':(2,3,),},>"},
    {FROM_TYPE(WRAPPER, SHARDED, WRAPPER_ARGS(SHARDED), "(dS'x'\nI1\ns") ".",
     "torch.distributed._shard.sharded_tensor.api.ShardedTensor<{'state':{'x':1,},'dtype':<dtype "
     "float32>,'size':(2,3,),},>"},
    {FROM_TYPE(WRAPPER, SHARDED, WRAPPER_ARGS(SHARDED), "(I1\nI2\nI3\nI4\nI5\nt") ".",
     "torch.distributed._shard.sharded_tensor.api.ShardedTensor<{'state':(1,2,3,4,5,),'dtype':<dtype "
     "float32>,'size':(2,3,),},>"},
    {FROM_TYPE(WRAPPER, SHARDED, WRAPPER_ARGS(SHARDED), "((lNt") ".",
     "torch.distributed._shard.sharded_tensor.api.ShardedTensor<{'state':([],None,),'dtype':<dtype "
     "float32>,'size':(2,3,),},>"},
    {FROM_TYPE(WRAPPER, SHARDED, WRAPPER_ARGS(SHARDED), "((l" SHARD_WITH(SIX) "a" SHARD_WITH("I1\n") "aNNNNt") ".",
     "torch.distributed._shard.sharded_tensor.api.ShardedTensor<<tensor float32 2,3 @0>,1,>"},
};

static void test_formats_torch_object__known_classes_become_what_they_stand_for(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        torch_opening o;
        char text[1024] = "";
        rendering r = {text, sizeof text, 0};
        open_pickle(&o, rows[i].pickle);
        if (o.status != TSR_OK) fail_msg("row %zu: %s", i, o.err.message);
        render_value(&r, o.item.root, 20, image.member[1].data);
        if (strcmp(text, rows[i].value) != 0) fail_msg("row %zu: %s, expected %s", i, text, rows[i].value);
        torch_opening_drop(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch_object__known_classes_become_what_they_stand_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
