/* A stand-in for libibverbs.so.1: RDMA devices that are none, for tests of what calls the verbs library.
 *
 * Compiled against rdma-core's own <infiniband/verbs.h>, so that every layout is the compiler's. Processes that share the
 * file FAKE_VERBS_FABRIC are on one network: an RDMA write really copies bytes into the other process (process_vm_writev),
 * by a thread that works off what was posted, as a NIC does; small messages at once, so that they are fast. What the
 * network would do with a packet (wrong GID, LID, P_Key or MTU, a port that is down) happens to the request.
 *
 * FAKE_VERBS_DEVICES describes this process's devices, one after another, separated by ';':
 *   NAME layer=1|2 state=4 mtu=5 lid=7 width=2 speed=128 gid3=<32 hex digits>/TYPE pkey0=ffff ece=7
 *        faults=FAULT,FAULT
 * (numbers as in verbs.h: layer 1 InfiniBand, 2 Ethernet; mtu 5 is 4096; GID types 0 IB, 1 RoCE v1, 2 RoCE v2).
 * Faults are those of the device that the process has opened, and before all those in FAKE_VERBS_FAULTS:
 *   hang=CALL refuse=CALL:ERRNO crash=CALL   of any function here, also ibv_post_send, ibv_post_recv, ibv_poll_cq
 *   status=N:VENDOR:AFTER   a completion with error N, once AFTER requests of this process have been done
 *   corrupt=AFTER           a byte of that request's data is changed on its way
 *   drop                    whatever leaves this process's ports is lost: its requests, and its acknowledgements
 *   path_mtu=BYTES          longer packets that leave are lost
 *   rate=GBPS               gigabytes per second
 *   vanish=AFTER            the device is gone: an event, and EIO
 *   port_error=AFTER        the port goes down: an event, and nothing is acknowledged
 *   memlock=BYTES           so much memory can be registered
 *   no_peer_memory          memory of a GPU (fake_cuda.c) cannot be registered by its address
 *   no_copy                 writes complete without copying: for timing what posts them */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fake_cuda.h"

#undef ibv_query_port
#undef ibv_reg_mr

enum { DEVICES = 16, GIDS = 16, PKEYS = 8, QPS = 1024, MRS = 1024, RING = 4096, RECEIVES = 64, FIRST_QP = 0x100 };
enum { SMALL = 256, LOST = -1 };

struct received {
    uint64_t wr_id;
    uint32_t bytes, imm;
};

/* What other processes must know of a queue pair: it lies in the shared file. */
struct shared_qp {
    atomic_int state; /* 0: free, else as ibv_qp_state */
    int pid, layer, path_mtu, port_state, loses, gid_types[GIDS], sgid_type;
    uint32_t dest;
    uint16_t lid, dlid, pkey;
    uint8_t gids[GIDS][16], dgid[16], sgid[16];
    atomic_uint posted, taken, arrived, reaped; /* of the rings below */
    uint64_t receives[RECEIVES];
    struct received arrivals[RECEIVES];
};

struct shared_mr {
    int pid, access;
    uint64_t address, length;
};

struct fabric {
    atomic_uint qps, mrs;
    struct shared_qp qp[QPS];
    struct shared_mr mr[MRS];
};

struct device {
    struct ibv_device ibv;
    int layer, state, mtu, width, speed, ece;
    char faults[256];
    uint16_t lid, pkeys[PKEYS];
    uint8_t gids[GIDS][16];
    int gid_types[GIDS];
};

struct request {
    uint64_t wr_id, local, remote;
    uint32_t length, lkey, rkey, imm;
    int opcode, signaled;
};

struct qp {
    struct ibv_qp ibv;
    struct shared_qp *shared;
    struct context *context;
    struct request requests[RING];
    struct ibv_wc done[RING];
    atomic_uint asked, served, completed, polled;
    pthread_mutex_t serving;
    struct ibv_ece ece;
    int timeout, retries, flushed;
};

struct context {
    struct ibv_context ibv;
    struct device *device;
    struct qp *qps[QPS];
    atomic_int count;
    int events[2], gone;
    pthread_t nic;
    pthread_mutex_t lock;
    pthread_cond_t work;
};

static struct fabric *fabric;
static struct device devices[DEVICES];
static atomic_long done_requests;
static long locked_bytes;

/* Faults. */

static char faults[1024]; /* of every device, then those of the one that is open, each with a comma behind it */

static void plant(const char *text) {
    size_t length = strlen(faults);
    if (text && *text) snprintf(faults + length, sizeof faults - length, "%s,", text);
}

__attribute__((constructor)) static void plant_for_all(void) { plant(getenv("FAKE_VERBS_FAULTS")); }

static const char *fault(const char *name) {
    size_t length = strlen(name);
    for (const char *at = faults; *at; at = strchr(at, ',') + 1)
        if (!strncmp(at, name, length) && (at[length] == '=' || at[length] == ','))
            return at + length + (at[length] == '=');
    return NULL;
}

static int of_call(const char *kind, const char *call, const char **rest) {
    const char *value = fault(kind);
    size_t length = strlen(call);
    if (!value || strncmp(value, call, length)) return 0;
    *rest = value + length;
    return **rest == ',' || **rest == ':';
}

/* Every function begins with this. Returns the errno that it is to fail with. */
static int entered(const char *call) {
    const char *rest;
    if (of_call("crash", call, &rest)) abort();
    while (of_call("hang", call, &rest)) pause();
    return of_call("refuse", call, &rest) ? atoi(rest + 1) : 0;
}

#define ENTER_POINTER(call)               \
    do {                                  \
        if ((errno = entered(call))) return NULL; \
    } while (0)
#define ENTER(call)                       \
    do {                                  \
        int refusal = entered(call);      \
        if (refusal) return errno = refusal; \
    } while (0)

static int due(const char *name) {
    const char *value = fault(name);
    return value && atomic_load(&done_requests) >= atol(value);
}

/* Devices. */

static void hex(const char *text, uint8_t *to) {
    for (int i = 0; i < 16; i++) sscanf(text + 2 * i, "%2hhx", &to[i]);
}

static void describe(struct device *device, char *text) {
    char *rest = NULL, *word = strtok_r(text, " ", &rest);
    snprintf(device->ibv.name, sizeof device->ibv.name, "%s", word);
    device->layer = IBV_LINK_LAYER_ETHERNET, device->state = IBV_PORT_ACTIVE, device->mtu = IBV_MTU_4096;
    device->width = 2, device->speed = 128, device->pkeys[0] = 0xffff;
    while ((word = strtok_r(NULL, " ", &rest))) {
        int number = 0, at = 0;
        if (sscanf(word, "layer=%d", &number) == 1) device->layer = number;
        if (sscanf(word, "state=%d", &number) == 1) device->state = number;
        if (sscanf(word, "mtu=%d", &number) == 1) device->mtu = number;
        if (sscanf(word, "lid=%d", &number) == 1) device->lid = (uint16_t)number;
        if (sscanf(word, "width=%d", &number) == 1) device->width = number;
        if (sscanf(word, "speed=%d", &number) == 1) device->speed = number;
        if (!strncmp(word, "faults=", 7)) snprintf(device->faults, sizeof device->faults, "%s", word + 7);
        if (sscanf(word, "ece=%d", &number) == 1) device->ece = number;
        if (sscanf(word, "pkey%d=%x", &at, (unsigned *)&number) == 2 && at < PKEYS) device->pkeys[at] = (uint16_t)number;
        if (sscanf(word, "gid%d=", &at) == 1 && at < GIDS) {
            hex(strchr(word, '=') + 1, device->gids[at]);
            device->gid_types[at] = atoi(strchr(word, '/') + 1);
        }
    }
}

static void share(void) {
    const char *path = getenv("FAKE_VERBS_FABRIC");
    int file = open(path ? path : "/dev/null", O_RDWR | O_CREAT, 0600);
    if (!path || ftruncate(file, sizeof *fabric)) abort();
    fabric = mmap(NULL, sizeof *fabric, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (fabric == MAP_FAILED) abort();
    close(file);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* where Yama lets only a parent write a process's memory */
}

struct ibv_device **ibv_get_device_list(int *count) {
    ENTER_POINTER("ibv_get_device_list");
    char *text = strdup(getenv("FAKE_VERBS_DEVICES") ? getenv("FAKE_VERBS_DEVICES") : ""), *rest = NULL;
    struct ibv_device **list = calloc(DEVICES + 1, sizeof *list);
    *count = 0;
    if (!fabric) share();
    for (char *one = strtok_r(text, ";", &rest); one && *count < DEVICES; one = strtok_r(NULL, ";", &rest)) {
        describe(&devices[*count], one);
        list[*count] = &devices[*count].ibv;
        ++*count;
    }
    free(text);
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

/* A request on its way. */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void wait_ns(uint64_t ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

static void report(struct context *context, enum ibv_event_type type) {
    struct ibv_async_event event = {.event_type = type};
    event.element.port_num = 1;
    if (write(context->events[1], &event, sizeof event) < 0) abort();
}

static struct shared_qp *found(uint32_t number) {
    return number >= FIRST_QP && number < FIRST_QP + QPS ? &fabric->qp[number - FIRST_QP] : NULL;
}

static int mtu_bytes(int mtu) { return 128 << mtu; }

static int knows(const struct shared_qp *at, const uint8_t *gid, int type) {
    for (int i = 0; i < GIDS; i++)
        if (!memcmp(at->gids[i], gid, 16) && at->gid_types[i] == type) return 1;
    return 0;
}

static int same_partition(uint16_t one, uint16_t other) {
    return one & 0x7fff && (one & 0x7fff) == (other & 0x7fff) && (one | other) & 0x8000;
}

/* Whether a packet from one queue pair reaches the other, as its address and the ports' state decide. */
static int reaches(const struct shared_qp *from, const struct shared_qp *to) {
    if (!to || atomic_load(&to->state) < IBV_QPS_RTR || atomic_load(&to->state) > IBV_QPS_RTS) return 0;
    if (from->port_state != IBV_PORT_ACTIVE || to->port_state != IBV_PORT_ACTIVE || from->layer != to->layer) return 0;
    if (found(to->dest) != from || !same_partition(from->pkey, to->pkey)) return 0;
    if (from->layer == IBV_LINK_LAYER_INFINIBAND) return from->dlid == to->lid;
    return knows(to, from->dgid, from->sgid_type) && !memcmp(to->dgid, from->sgid, 16) && to->sgid_type == from->sgid_type;
}

static int registered(uint32_t key, int pid, uint64_t address, uint32_t length, int access) {
    if (key >= MRS) return 0;
    struct shared_mr *mr = &fabric->mr[key];
    return mr->pid == pid && (mr->access & access) == access && address >= mr->address &&
           address + length <= mr->address + mr->length;
}

static int copied(const struct shared_qp *to, const struct request *request) {
    if (fault("no_copy") || !request->length) return 1;
    struct iovec here = {(void *)request->local, request->length}, there = {(void *)request->remote, request->length};
    const char *corrupt = fault("corrupt");
    char *changed = NULL;
    if (corrupt && atomic_load(&done_requests) == atol(corrupt)) {
        changed = malloc(request->length);
        memcpy(changed, here.iov_base, request->length);
        changed[request->length / 2] ^= 1;
        here.iov_base = changed;
    }
    ssize_t moved = process_vm_writev(to->pid, &here, 1, &there, 1, 0);
    free(changed);
    return moved == (ssize_t)request->length;
}

/* Hand immediate data to a receive that is posted. Returns 0 where there is none. */
static int handed_over(struct shared_qp *to, const struct request *request) {
    unsigned taken = atomic_load(&to->taken), arrived = atomic_load(&to->arrived);
    if (taken == atomic_load(&to->posted)) return 0;
    to->arrivals[arrived % RECEIVES] =
        (struct received){.wr_id = to->receives[taken % RECEIVES], .bytes = request->length, .imm = request->imm};
    atomic_store(&to->taken, taken + 1);
    atomic_store(&to->arrived, arrived + 1);
    return 1;
}

/* Do what a request asks. Returns a completion status, or LOST: nothing comes back. */
static int carried_out(struct qp *qp, const struct request *request) {
    struct shared_qp *from = qp->shared, *to = found(from->dest);
    const char *path_mtu = fault("path_mtu");
    uint32_t packet = request->length < (uint32_t)mtu_bytes(from->path_mtu) ? request->length : (uint32_t)mtu_bytes(from->path_mtu);
    if (request->length && !registered(request->lkey, getpid(), request->local, request->length, 0)) return IBV_WC_LOC_PROT_ERR;
    if (from->loses || !reaches(from, to) || due("port_error")) return LOST;
    if (path_mtu && packet > (uint32_t)atol(path_mtu)) return LOST;
    if (packet > (uint32_t)mtu_bytes(to->path_mtu)) return IBV_WC_REM_INV_REQ_ERR;
    if (request->length && !registered(request->rkey, to->pid, request->remote, request->length, IBV_ACCESS_REMOTE_WRITE))
        return IBV_WC_REM_ACCESS_ERR;
    if (!copied(to, request)) return kill(to->pid, 0) ? LOST : IBV_WC_REM_ACCESS_ERR;
    if (request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        for (int tries = 0; !handed_over(to, request); wait_ns(1000000))
            if (++tries > 5000) return IBV_WC_RNR_RETRY_EXC_ERR;
    return to->loses ? LOST : IBV_WC_SUCCESS;
}

static void complete(struct qp *qp, const struct request *request, int status, uint32_t vendor) {
    unsigned at = atomic_load(&qp->completed);
    qp->done[at % RING] = (struct ibv_wc){.wr_id = request->wr_id, .status = status, .opcode = IBV_WC_RDMA_WRITE,
                                          .vendor_err = vendor, .qp_num = qp->ibv.qp_num};
    atomic_store(&qp->completed, at + 1);
}

static void pace(const struct request *request) {
    static uint64_t free_at;
    const char *rate = fault("rate");
    if (!rate) return;
    uint64_t now = now_ns();
    if (free_at < now) free_at = now;
    free_at += (uint64_t)(request->length / atof(rate));
    if (free_at > now) wait_ns(free_at - now);
}

static void fail(struct qp *qp, const struct request *request, int status, uint32_t vendor) {
    struct shared_qp *to = found(qp->shared->dest);
    if (status == LOST) {
        status = IBV_WC_RETRY_EXC_ERR, vendor = 0x81;
        wait_ns((4096ull << qp->timeout) * (unsigned)(qp->retries + 1));
    }
    if (status == IBV_WC_REM_ACCESS_ERR && to) atomic_store(&to->state, IBV_QPS_ERR);
    atomic_store(&qp->shared->state, IBV_QPS_ERR);
    complete(qp, request, status, vendor);
}

static void vanish(struct context *context) {
    if (!__atomic_exchange_n(&context->gone, 1, __ATOMIC_SEQ_CST)) report(context, IBV_EVENT_DEVICE_FATAL);
}

static void serve(struct qp *qp, const struct request *request) {
    struct context *context = qp->context;
    int planted = 0;
    unsigned vendor = 0;
    long after = 0;
    const char *status = fault("status");
    if (due("vanish")) vanish(context);
    if (context->gone) return; /* no completion ever comes */
    if (due("port_error")) {
        if (!qp->flushed++) report(context, IBV_EVENT_PORT_ERR);
    }
    if (atomic_load(&qp->shared->state) != IBV_QPS_RTS) return complete(qp, request, IBV_WC_WR_FLUSH_ERR, 0xf9);
    if (status && sscanf(status, "%d:%x:%ld", &planted, &vendor, &after) == 3 && atomic_load(&done_requests) >= after)
        return fail(qp, request, planted, vendor);
    int result = carried_out(qp, request);
    pace(request);
    atomic_fetch_add(&done_requests, 1);
    if (result != IBV_WC_SUCCESS) return fail(qp, request, result, 0);
    if (request->signaled) complete(qp, request, result, 0);
}

static int served_one(struct qp *qp) {
    int some = 0;
    pthread_mutex_lock(&qp->serving);
    unsigned at = atomic_load(&qp->served);
    if (at != atomic_load(&qp->asked)) {
        some = 1;
        serve(qp, &qp->requests[at % RING]);
        atomic_store(&qp->served, at + 1);
    }
    pthread_mutex_unlock(&qp->serving);
    return some;
}

static void *nic(void *argument) {
    struct context *context = argument;
    for (;;) {
        int some = 0;
        for (int i = 0; i < atomic_load(&context->count); i++) some |= served_one(context->qps[i]);
        if (some) continue;
        pthread_mutex_lock(&context->lock);
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        if ((soon.tv_nsec += 1000000) >= 1000000000) soon.tv_sec++, soon.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&context->work, &context->lock, &soon);
        pthread_mutex_unlock(&context->lock);
    }
    return NULL;
}

/* Post and poll. */

static int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct qp *qp = (struct qp *)ibv;
    ENTER("ibv_post_send");
    if (qp->context->gone) return *bad = wr, EIO;
    unsigned length = 0;
    for (; wr; wr = wr->next) {
        unsigned at = atomic_load(&qp->asked);
        if (at - atomic_load(&qp->served) >= RING) return *bad = wr, ENOMEM;
        struct ibv_sge none = {0}, *sge = wr->num_sge ? wr->sg_list : &none;
        qp->requests[at % RING] = (struct request){
            .wr_id = wr->wr_id, .local = sge->addr, .length = sge->length, .lkey = sge->lkey, .imm = wr->imm_data,
            .remote = wr->wr.rdma.remote_addr, .rkey = wr->wr.rdma.rkey, .opcode = (int)wr->opcode,
            .signaled = !!(wr->send_flags & IBV_SEND_SIGNALED)};
        length += sge->length;
        atomic_store(&qp->asked, at + 1);
    }
    if (length <= SMALL && !fault("status") && !qp->shared->loses) {
        while (served_one(qp)) {
        }
        return 0;
    }
    pthread_mutex_lock(&qp->context->lock);
    pthread_cond_signal(&qp->context->work);
    pthread_mutex_unlock(&qp->context->lock);
    return 0;
}

static int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct shared_qp *shared = ((struct qp *)ibv)->shared;
    ENTER("ibv_post_recv");
    for (; wr; wr = wr->next) {
        unsigned at = atomic_load(&shared->posted);
        if (at - atomic_load(&shared->reaped) >= RECEIVES) return *bad = wr, ENOMEM;
        shared->receives[at % RECEIVES] = wr->wr_id;
        atomic_store(&shared->posted, at + 1);
    }
    return 0;
}

static int polled(struct qp *qp, struct ibv_wc *wc) {
    struct shared_qp *shared = qp->shared;
    unsigned at = atomic_load(&qp->polled);
    if (at != atomic_load(&qp->completed)) {
        *wc = qp->done[at % RING];
        atomic_store(&qp->polled, at + 1);
        return 1;
    }
    at = atomic_load(&shared->reaped);
    if (at != atomic_load(&shared->arrived)) {
        struct received *each = &shared->arrivals[at % RECEIVES];
        *wc = (struct ibv_wc){.wr_id = each->wr_id, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = each->bytes,
                              .imm_data = each->imm, .wc_flags = IBV_WC_WITH_IMM, .qp_num = qp->ibv.qp_num};
        atomic_store(&shared->reaped, at + 1);
        return 1;
    }
    if (atomic_load(&shared->state) == IBV_QPS_ERR && at != atomic_load(&shared->posted)) {
        *wc = (struct ibv_wc){.wr_id = shared->receives[at % RECEIVES], .status = IBV_WC_WR_FLUSH_ERR,
                              .opcode = IBV_WC_RECV, .vendor_err = 0xf9, .qp_num = qp->ibv.qp_num};
        atomic_store(&shared->taken, atomic_load(&shared->taken) + 1);
        atomic_store(&shared->arrived, atomic_load(&shared->arrived) + 1);
        atomic_store(&shared->reaped, at + 1);
        return 1;
    }
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc) {
    struct context *context = (struct context *)cq->context;
    int count = 0;
    if (entered("ibv_poll_cq")) return -EIO;
    for (int i = 0; i < atomic_load(&context->count); i++)
        while (count < most && context->qps[i]->ibv.send_cq == cq && polled(context->qps[i], wc + count)) count++;
    return count;
}

/* What is called by name. */

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    plant(((struct device *)device)->faults);
    ENTER_POINTER("ibv_open_device");
    struct context *context = calloc(1, sizeof *context);
    context->device = (struct device *)device;
    if (pipe2(context->events, O_NONBLOCK)) return NULL;
    context->ibv = (struct ibv_context){.device = device, .async_fd = context->events[0], .num_comp_vectors = 1};
    context->ibv.ops.post_send = post_send, context->ibv.ops.post_recv = post_recv, context->ibv.ops.poll_cq = poll_cq;
    pthread_mutex_init(&context->lock, NULL);
    pthread_cond_init(&context->work, NULL);
    pthread_create(&context->nic, NULL, nic, context);
    return &context->ibv;
}

int ibv_query_port(struct ibv_context *ibv, uint8_t port, struct _compat_ibv_port_attr *to) {
    struct ibv_port_attr *attr = (struct ibv_port_attr *)to;
    struct device *device = ((struct context *)ibv)->device;
    ENTER("ibv_query_port");
    if (port != 1) return EINVAL;
    attr->state = device->state, attr->max_mtu = IBV_MTU_4096, attr->active_mtu = device->mtu, attr->gid_tbl_len = GIDS;
    attr->max_msg_sz = 1u << 30, attr->pkey_tbl_len = PKEYS, attr->lid = device->lid, attr->link_layer = (uint8_t)device->layer;
    attr->active_width = (uint8_t)device->width, attr->active_speed = (uint8_t)device->speed, attr->phys_state = 5;
    return 0;
}

int ibv_query_gid(struct ibv_context *ibv, uint8_t port, int index, union ibv_gid *gid) {
    (void)port;
    ENTER("ibv_query_gid");
    memcpy(gid->raw, ((struct context *)ibv)->device->gids[index], 16);
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *ibv, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,
                      size_t size) {
    ENTER("_ibv_query_gid_ex");
    if (flags || size != sizeof *entry) return EINVAL;
    *entry = (struct ibv_gid_entry){.gid_index = index, .port_num = port};
    entry->gid_type = (uint32_t)((struct context *)ibv)->device->gid_types[index];
    return ibv_query_gid(ibv, (uint8_t)port, (int)index, &entry->gid);
}

int ibv_query_pkey(struct ibv_context *ibv, uint8_t port, int index, __be16 *pkey) {
    (void)port;
    ENTER("ibv_query_pkey");
    uint16_t host = ((struct context *)ibv)->device->pkeys[index];
    *pkey = (__be16)(host << 8 | host >> 8);
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    ENTER_POINTER("ibv_alloc_pd");
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

static struct ibv_mr *new_region(struct ibv_pd *pd, uint64_t at, size_t length, unsigned access) {
    const char *limit = fault("memlock");
    unsigned key = atomic_fetch_add(&fabric->mrs, 1);
    if (limit && (locked_bytes += (long)length) > atol(limit)) return errno = ENOMEM, NULL;
    if (key >= MRS) return errno = ENOMEM, NULL;
    fabric->mr[key] = (struct shared_mr){.pid = getpid(), .access = (int)access, .address = at, .length = length};
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = (void *)at, .length = length, .lkey = key, .rkey = key};
    return mr;
}

static int on_gpu(uint64_t at) { return at >= FAKE_GPU_MEMORY && at < FAKE_GPU_MEMORY + FAKE_GPU_BYTES; }

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t length, int access) {
    ENTER_POINTER("ibv_reg_mr");
    if (on_gpu((uint64_t)at) && fault("no_peer_memory")) return errno = EFAULT, NULL;
    return new_region(pd, (uint64_t)at, length, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t length, uint64_t iova, unsigned access) {
    (void)iova;
    ENTER_POINTER("ibv_reg_mr_iova2");
    if (on_gpu((uint64_t)at) && fault("no_peer_memory")) return errno = EFAULT, NULL;
    return new_region(pd, (uint64_t)at, length, access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    ENTER_POINTER("ibv_reg_dmabuf_mr");
    if (offset || !on_gpu(iova) || fcntl(fd, F_GETFD) < 0) return errno = EINVAL, NULL;
    return new_region(pd, iova, length, (unsigned)access);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *of, struct ibv_comp_channel *channel, int vector) {
    (void)channel, (void)vector;
    ENTER_POINTER("ibv_create_cq");
    struct ibv_cq *cq = calloc(1, sizeof *cq);
    cq->context = context, cq->cq_context = of, cq->cqe = cqe;
    return cq;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wish) {
    ENTER_POINTER("ibv_create_qp");
    struct context *context = (struct context *)pd->context;
    unsigned number = atomic_fetch_add(&fabric->qps, 1);
    if (wish->qp_type != IBV_QPT_RC || wish->cap.max_send_wr > RING || number >= QPS) return errno = EINVAL, NULL;
    struct qp *qp = calloc(1, sizeof *qp);
    qp->context = context, qp->shared = &fabric->qp[number];
    qp->ibv = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = wish->send_cq, .recv_cq = wish->recv_cq,
                              .qp_num = FIRST_QP + number, .qp_type = IBV_QPT_RC};
    qp->ece = (struct ibv_ece){.vendor_id = 0x15b3, .options = (uint32_t)context->device->ece};
    qp->shared->pid = getpid(), qp->shared->loses = !!fault("drop");
    pthread_mutex_init(&qp->serving, NULL);
    context->qps[atomic_load(&context->count)] = qp;
    atomic_fetch_add(&context->count, 1);
    return &qp->ibv;
}

static int initialised(struct qp *qp, const struct ibv_qp_attr *attr, int mask) {
    struct device *device = qp->context->device;
    struct shared_qp *shared = qp->shared;
    int needed = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    if ((mask & needed) != needed || attr->port_num != 1 || attr->pkey_index >= PKEYS) return EINVAL;
    shared->layer = device->layer, shared->lid = device->lid, shared->port_state = device->state;
    shared->pkey = device->pkeys[attr->pkey_index];
    memcpy(shared->gids, device->gids, sizeof shared->gids);
    memcpy(shared->gid_types, device->gid_types, sizeof shared->gid_types);
    return 0;
}

static int addressed(struct qp *qp, const struct ibv_qp_attr *attr, int mask) {
    struct device *device = qp->context->device;
    struct shared_qp *shared = qp->shared;
    const struct ibv_ah_attr *way = &attr->ah_attr;
    int needed = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if ((mask & needed) != needed || !attr->path_mtu || (int)attr->path_mtu > device->mtu || way->port_num != 1) return EINVAL;
    if (device->layer == IBV_LINK_LAYER_ETHERNET && (!way->is_global || way->grh.sgid_index >= GIDS)) return EINVAL;
    shared->path_mtu = attr->path_mtu, shared->dest = attr->dest_qp_num, shared->dlid = way->dlid;
    memcpy(shared->dgid, way->grh.dgid.raw, 16);
    memcpy(shared->sgid, device->gids[way->grh.sgid_index], 16);
    shared->sgid_type = device->gid_types[way->grh.sgid_index];
    return 0;
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask) {
    struct qp *qp = (struct qp *)ibv;
    int refusal = 0, state = atomic_load(&qp->shared->state);
    ENTER("ibv_modify_qp");
    if (qp->context->gone) return EIO;
    if (attr->qp_state == IBV_QPS_INIT) refusal = initialised(qp, attr, mask);
    if (attr->qp_state == IBV_QPS_RTR) refusal = state == IBV_QPS_INIT ? addressed(qp, attr, mask) : EINVAL;
    if (attr->qp_state == IBV_QPS_RTS) refusal = state == IBV_QPS_RTR ? 0 : EINVAL;
    if (refusal) return refusal;
    if (mask & IBV_QP_TIMEOUT) qp->timeout = attr->timeout, qp->retries = attr->retry_cnt;
    atomic_store(&qp->shared->state, (int)attr->qp_state);
    return 0;
}

/* It is kept, in no state, because the thread may still look at it. */
int ibv_destroy_qp(struct ibv_qp *ibv) {
    struct qp *qp = (struct qp *)ibv;
    ENTER("ibv_destroy_qp");
    pthread_mutex_lock(&qp->serving);
    atomic_store(&qp->shared->state, IBV_QPS_RESET);
    atomic_store(&qp->served, atomic_load(&qp->asked));
    pthread_mutex_unlock(&qp->serving);
    return 0; /* its completions stay in their queue, as rxe's do; mlx5 takes them out */
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    ENTER("ibv_destroy_cq");
    (void)cq; /* not freed: a new one at its address would have its completions */
    return 0;
}

int ibv_query_ece(struct ibv_qp *ibv, struct ibv_ece *ece) {
    struct qp *qp = (struct qp *)ibv;
    ENTER("ibv_query_ece");
    if (!qp->context->device->ece) return EOPNOTSUPP;
    *ece = qp->ece;
    return 0;
}

int ibv_set_ece(struct ibv_qp *ibv, struct ibv_ece *ece) {
    struct qp *qp = (struct qp *)ibv;
    ENTER("ibv_set_ece");
    qp->ece.options = ece->options & (uint32_t)qp->context->device->ece;
    return 0;
}

int ibv_get_async_event(struct ibv_context *ibv, struct ibv_async_event *event) {
    ENTER("ibv_get_async_event");
    return read(((struct context *)ibv)->events[0], event, sizeof *event) == sizeof *event ? 0 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

const char *ibv_event_type_str(enum ibv_event_type type) {
    return type == IBV_EVENT_DEVICE_FATAL ? "local catastrophic error" : type == IBV_EVENT_PORT_ERR ? "port error" : "unknown";
}
