/* libnccl.so.2 for tests: the functions of NCCL that native/live/cuda finds by name, between threads of one process, over the
 * hosted runtime's memory. It is strict where NCCL would hang or read what is not there: operations that do not match end in
 * ncclInvalidUsage, a peer that does not come in ncclSystemError. What is received arrives when its stream is waited for. */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <string.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

typedef enum { ncclSuccess = 0, ncclSystemError = 2, ncclInvalidArgument = 4, ncclInvalidUsage = 5 } ncclResult_t;
typedef enum { ncclUint8 = 1 } ncclDataType_t;
typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

namespace
{
typedef std::vector<char> bytes;

struct packet {
    int kind; /* 0: a message; else a collective's kind */
    int root;
    bytes data;
};

struct world {
    int size;
    int joined;
    std::map<std::pair<int, int>, std::deque<packet>> ways; /* by sender and receiver */
};
} // namespace

struct ncclComm {
    std::shared_ptr<world> ranks;
    int rank;
    std::vector<std::unique_ptr<bytes>> landed; /* read by copies that are under way */
};
typedef ncclComm *ncclComm_t;

namespace
{
std::mutex mutex; /* of all that follows, and of worlds */
std::condition_variable changed;
std::map<std::string, std::shared_ptr<world>> worlds;
std::map<std::string, int> failing;
std::map<std::string, unsigned long> counts;
unsigned long ids;

enum { MESSAGE, BROADCAST, GATHER };

struct operation {
    int kind, peer; /* the other side of a message, the root of a broadcast */
    bool sends;
    const void *from;
    void *to;
    size_t count;
    ncclComm_t comm;
    cudaStream_t stream;
};

thread_local int depth;
thread_local std::vector<operation> group;

/* Counts the call; the result that a test has ordered for it. */
ncclResult_t called(const char *name)
{
    std::lock_guard<std::mutex> held(mutex);
    counts[name]++;
    const auto found = failing.find(name);
    return found == failing.end() ? ncclSuccess : (ncclResult_t)found->second;
}

bool fetch(const operation &op, bytes &out)
{
    out.resize(op.count);
    return cudaMemcpyAsync(out.data(), op.from, op.count, cudaMemcpyDefault, op.stream) == cudaSuccess &&
           cudaStreamSynchronize(op.stream) == cudaSuccess;
}

ncclResult_t deliver(const operation &op, void *to, bytes &&data)
{
    op.comm->landed.push_back(std::make_unique<bytes>(std::move(data)));
    const bytes &kept = *op.comm->landed.back();
    return cudaMemcpyAsync(to, kept.data(), kept.size(), cudaMemcpyDefault, op.stream) == cudaSuccess ? ncclSuccess
                                                                                                      : ncclInvalidArgument;
}

void push(const operation &op, int to, const bytes &data)
{
    std::lock_guard<std::mutex> held(mutex);
    op.comm->ranks->ways[{op.comm->rank, to}].push_back({op.kind, op.kind == BROADCAST ? op.peer : 0, data});
    changed.notify_all();
}

ncclResult_t pull(const operation &op, int from, bytes &out)
{
    std::unique_lock<std::mutex> held(mutex);
    auto &way = op.comm->ranks->ways[{from, op.comm->rank}];
    if (!changed.wait_for(held, std::chrono::seconds(60), [&] { return !way.empty(); })) return ncclSystemError;
    packet next = std::move(way.front());
    way.pop_front();
    if (next.kind != op.kind || next.data.size() != op.count || next.root != (op.kind == BROADCAST ? op.peer : 0))
        return ncclInvalidUsage;
    out = std::move(next.data);
    return ncclSuccess;
}

/* What this rank gives in an operation. */
ncclResult_t give(const operation &op)
{
    const int size = op.comm->ranks->size, rank = op.comm->rank;
    bytes mine;
    if ((op.kind == MESSAGE && !op.sends) || (op.kind == BROADCAST && op.peer != rank)) return ncclSuccess;
    if (!fetch(op, mine)) return ncclInvalidArgument;
    if (op.kind == MESSAGE) {
        push(op, op.peer, mine);
        return ncclSuccess;
    }
    for (int r = 0; r < size; r++) push(op, r, mine);
    return ncclSuccess;
}

ncclResult_t take(const operation &op)
{
    bytes data;
    const int size = op.comm->ranks->size;
    if (op.kind == MESSAGE && op.sends) return ncclSuccess;
    for (int r = op.kind == GATHER ? 0 : op.peer; r < (op.kind == GATHER ? size : op.peer + 1); r++) {
        ncclResult_t result = pull(op, r, data);
        if (result == ncclSuccess)
            result = deliver(op, (char *)op.to + (op.kind == GATHER ? (size_t)r * op.count : 0), std::move(data));
        if (result != ncclSuccess) return result;
    }
    return ncclSuccess;
}

ncclResult_t run_group()
{
    ncclResult_t result = ncclSuccess;
    for (const operation &op : group) result = result == ncclSuccess ? give(op) : result;
    for (const operation &op : group) result = result == ncclSuccess ? take(op) : result;
    group.clear();
    return result;
}

ncclResult_t add(const operation &op, ncclDataType_t type)
{
    if (type != ncclUint8 || !op.comm || op.peer < 0 || op.peer >= op.comm->ranks->size) return ncclInvalidArgument;
    if ((op.count && !op.from && !op.to) || op.count == 0) return ncclInvalidArgument;
    group.push_back(op);
    return depth ? ncclSuccess : run_group();
}
} // namespace

/* ---- for tests ---- */

API void hosted_nccl_fail(const char *function, int result)
{
    std::lock_guard<std::mutex> held(mutex);
    failing.clear();
    if (function) failing[function] = result;
}

API unsigned long hosted_nccl_count(const char *function)
{
    std::lock_guard<std::mutex> held(mutex);
    return counts[function];
}

/* ---- NCCL ---- */

#define CALLED \
    do { \
        const ncclResult_t ordered_ = called(__func__); \
        if (ordered_ != ncclSuccess) return ordered_; \
    } while (0)

API ncclResult_t ncclGetVersion(int *version)
{
    CALLED;
    *version = 22100;
    return ncclSuccess;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    CALLED;
    std::lock_guard<std::mutex> held(mutex);
    memset(id, 0x5a, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "hosted %lu", ++ids);
    return ncclSuccess;
}

API ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank)
{
    *out = nullptr;
    CALLED;
    if (rank < 0 || rank >= size || memcmp(id.internal, "hosted ", 7) != 0) return ncclInvalidArgument;
    std::unique_lock<std::mutex> held(mutex);
    auto &found = worlds[id.internal];
    if (!found) found = std::make_shared<world>(world{size, 0, {}});
    auto mine = found;
    if (mine->size != size || mine->joined == size) return ncclInvalidUsage;
    mine->joined++;
    changed.notify_all();
    if (!changed.wait_for(held, std::chrono::seconds(60), [&] { return mine->joined == size; })) return ncclSystemError;
    *out = new ncclComm{mine, rank, {}};
    return ncclSuccess;
}

API ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    CALLED;
    delete comm;
    return ncclSuccess;
}

API ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    CALLED;
    delete comm;
    return ncclSuccess;
}

API const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSystemError    ? "unhandled system error"
           : result == ncclInvalidUsage ? "invalid usage"
                                        : "invalid argument";
}

API ncclResult_t ncclGroupStart(void)
{
    CALLED;
    depth++;
    return ncclSuccess;
}

API ncclResult_t ncclGroupEnd(void)
{
    const ncclResult_t ordered = called(__func__);
    if (depth == 0) return ncclInvalidUsage;
    if (--depth) return ordered;
    if (ordered == ncclSuccess) return run_group();
    group.clear();
    return ordered;
}

API ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                          cudaStream_t stream)
{
    CALLED;
    return add({MESSAGE, peer, true, from, nullptr, count, comm, stream}, type);
}

API ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    CALLED;
    return add({MESSAGE, peer, false, nullptr, to, count, comm, stream}, type);
}

API ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                               cudaStream_t stream)
{
    CALLED;
    return add({BROADCAST, root, false, from, to, count, comm, stream}, type);
}

API ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream)
{
    CALLED;
    return add({GATHER, 0, false, from, to, count, comm, stream}, type);
}
