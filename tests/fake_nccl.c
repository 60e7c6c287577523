/* A stand-in for libnccl.so.2, for rehearsing scripts/gpu_hour.py without a GPU: version, communicators that talk to
 * nothing, and ncclGroupSimulateEnd with a time of its own making, 10 us and one per 10,000 bytes. Numbers and layouts
 * follow nccl.h of 2.30. A size or a magic number that NCCL would refuse is refused here too. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, VERSION = 22907, MAGIC = 0x74685283 };

typedef struct {
    char internal[128];
} unique_id;

typedef struct {
    size_t size;
    unsigned int magic, version;
    float estimated_time;
} sim_info;

struct comm {
    int ranks, rank;
};

static size_t grouped_bytes;

int ncclGetVersion(int *version) {
    *version = VERSION;
    return SUCCESS;
}

const char *ncclGetErrorString(int result) { return result ? "refused by the stand-in" : "no error"; }

int ncclGetUniqueId(unique_id *id) {
    memset(id, 7, sizeof *id);
    return SUCCESS;
}

int ncclCommInitRank(struct comm **comm, int ranks, unique_id id, int rank) {
    if (id.internal[127] != 7 || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    *comm = malloc(sizeof **comm);
    (*comm)->ranks = ranks;
    (*comm)->rank = rank;
    printf("stand-in:%d:%d [0] NCCL INFO ncclCommInitRank comm %p rank %d nranks %d - Init COMPLETE\n", 1, 1, (void *)*comm,
           rank, ranks);
    fflush(stdout);
    return SUCCESS;
}

int ncclCommAbort(struct comm *comm) {
    free(comm);
    return SUCCESS;
}

static int taken(size_t count, int type, struct comm *comm) {
    if (!comm || type != 7) return INVALID_ARGUMENT;
    grouped_bytes = count * 4;
    return SUCCESS;
}

int ncclGroupStart(void) {
    grouped_bytes = 0;
    return SUCCESS;
}

int ncclGroupSimulateEnd(sim_info *info) {
    if (info->size != sizeof(sim_info) || info->magic != MAGIC) return INVALID_ARGUMENT;
    info->estimated_time = 10.0f + (float)grouped_bytes / 1e4f;
    return SUCCESS;
}

int ncclAllReduce(const void *send, void *receive, size_t count, int type, int op, struct comm *comm, void *stream) {
    (void)send, (void)receive, (void)op, (void)stream;
    return taken(count, type, comm);
}

int ncclAllGather(const void *send, void *receive, size_t count, int type, struct comm *comm, void *stream) {
    (void)send, (void)receive, (void)stream;
    return taken(count * (size_t)comm->ranks, type, comm);
}

int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int op, struct comm *comm, void *stream) {
    (void)send, (void)receive, (void)op, (void)stream;
    return taken(count * (size_t)comm->ranks, type, comm);
}

int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, struct comm *comm, void *stream) {
    (void)send, (void)receive, (void)root, (void)stream;
    return taken(count, type, comm);
}

int ncclReduce(const void *send, void *receive, size_t count, int type, int op, int root, struct comm *comm, void *stream) {
    (void)send, (void)receive, (void)op, (void)root, (void)stream;
    return taken(count, type, comm);
}
