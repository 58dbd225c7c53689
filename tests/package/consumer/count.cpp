// Counts the tensors of a checkpoint, in C++, and says how many of them are biases.
#include <iostream>

#include <tessera/sys/directory.h>
#include <tessera/native_host.h>
#include <tessera/tessera.h>

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_error err{};
    tsr_store *store = nullptr;
    tsr_checkpoint *checkpoint = nullptr;
    if (argc != 2) return 2;
    tsr_native_host_open(&native, 1);
    if (tsr_directory_store_open(nullptr, native.host.allocator, argv[1], &store, &err) != TSR_OK ||
        tsr_checkpoint_open(store, &native.host, nullptr, &checkpoint, &err) != TSR_OK) {
        std::cerr << err.message << "\n";
        return 1;
    }
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    uint64_t tensors = 0, biases = 0;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        tensors += catalog->entries[i].kind == TSR_ENTRY_TENSOR;
        biases += tsr_str_ends(catalog->entries[i].fqn, TSR_STR("bias"));
    }
    std::cout << tensors << " " << biases << "\n";
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    tsr_native_host_close(&native);
}
