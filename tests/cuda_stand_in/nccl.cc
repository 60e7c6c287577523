// A stand-in of libnccl.so.2: NCCL's public calls over TCP, on the memory of the stand-in of CUDA, which is the host's. It is
// not NCCL: no topology, transport, channel, tuning or sentence of NCCL is in it. An operation is one host function in its
// stream, so streams, events, graphs and FAKE_CUDA_FAULT are those of the stand-in of CUDA. What is absent refuses by name.
// FAKE_NCCL, of every rank or of FAKE_NCCL_RANK, separated by commas: at the N-th operation of this process hang@N (until it
// is aborted), abort@N (the communicator fails), lateSECONDS@N; version=CODE, as ncclGetVersion returns it.
// FAKE_NCCL_DEADLINE: how many seconds any wait takes at most (600). FAKE_NCCL_ADDRESS: of this machine (127.0.0.1).
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>

#include "fake_cuda.h"
#include "mesh.h"
#include "nccl_calls.h"

using namespace fake;

enum What { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, GATHER, SCATTER, POINT, SPLIT };
static const char* const NAMES[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce",
                                    "AlltoAll",  "Gather",    "Scatter",       "Send/Recv", "Split"};
static const struct {
  const char* name;
  size_t size;
} TYPES[] = {{"int8", 1},   {"uint8", 1},   {"int32", 4},   {"uint32", 4},  {"int64", 8},
             {"uint64", 8}, {"float16", 2}, {"float32", 4}, {"float64", 8}, {"bfloat16", 2}};
constexpr int TYPE_COUNT = sizeof TYPES / sizeof *TYPES, OPERATORS = ncclAvg + 1;
constexpr size_t PIECE = 1 << 20, MOST_BYTES = (size_t)1 << 40;
constexpr unsigned int CONFIG_MAGIC = 0xcafebeef;
static const char ID_MAGIC[8] = "fakenc1";

struct Id {  // what a unique id holds
  char magic[8];
  uint64_t number;
  Address root;
};

struct ncclComm {
  int rank = 0, ranks = 0, gpu = 0;
  uint64_t number = 0;
  std::unique_ptr<Mesh> mesh;
  std::atomic<bool> stop{false};
  std::atomic<int> state{ncclInProgress};
  std::atomic<uint64_t> issued{0}, finished{0};  // operations are played in the order of their issue
  std::mutex lock;                               // held by the one that plays
  std::condition_variable next;
  uint64_t collectives = 0;
  bool idle() const { return finished >= issued || stop || fake_cuda_broken(); }
};
using Comm = std::shared_ptr<ncclComm>;

struct Operation {
  Comm comm;
  cudaStream_t stream;
  What what;
  char *from, *to;
  size_t count;
  int type, op, root;
  std::vector<Part> sends, receives;
  uint64_t turn = 0;  // 0: a graph plays it, when its turn comes there
  size_t bytes() const { return count * TYPES[type].size; }
};

// ---- what is said, and what is planted

static std::mutex& registry = *new std::mutex;
static std::map<ncclComm_t, Comm>& comms = *new std::map<ncclComm_t, Comm>;
static std::string& last_error = *new std::string;

static void say(const std::string& text) {
  std::string line = "fake NCCL: rank " + std::string(word("RANK", "?")) + ": " + text + "\n";
  if (write(2, line.data(), line.size()) < 0) return;
  std::lock_guard<std::mutex> held(registry);
  last_error = line.substr(0, line.size() - 1);
}
static ncclResult_t refuse(ncclResult_t code, const std::string& text) { return say(text), code; }

struct Plan {
  long hang = 0, abort = 0, late = 0;
  double seconds = 0;
  int version = NCCL_VERSION_CODE / 100 * 100 + 99;  // of no release: reports say so
  Plan() {
    const char *struck = getenv("FAKE_NCCL_RANK"), *all = word("FAKE_NCCL", "");
    bool here = !struck || !strcmp(struck, word("RANK", ""));
    for (std::string rest = all, one; !rest.empty();) {
      one = rest.substr(0, rest.find(',')), rest.erase(0, one.size() + 1);
      double took = 0;
      long at = 0;
      if (sscanf(one.c_str(), "version=%d", &version) == 1) continue;
      bool known = (sscanf(one.c_str(), "hang@%ld", &at) == 1 && (hang = here ? at : 0, true)) ||
                   (sscanf(one.c_str(), "abort@%ld", &at) == 1 && (abort = here ? at : 0, true)) ||
                   (sscanf(one.c_str(), "late%lf@%ld", &took, &at) == 2 && (late = here ? at : 0, seconds = took, true));
      if (!known) fprintf(stderr, "fake NCCL: FAKE_NCCL=%s: %s is not known\n", all, one.c_str()), _exit(2);
    }
  }
};
static const Plan& plan() {
  static const Plan& made = *new Plan;
  return made;
}

std::string fake::describe(const Label& label) {
  if (label.what < 0 || label.what > SPLIT || label.type < 0 || label.type >= TYPE_COUNT) return "something else";
  std::string text = NAMES[label.what] + std::string(" of ") + std::to_string(label.count) + " " + TYPES[label.type].name;
  return text + " (number " + std::to_string(label.number) + ", operator " + std::to_string(label.op) + ", root " +
         std::to_string(label.root) + ", " + std::to_string(label.bytes) + " bytes)";
}

// ---- reduction: each element in the order of the ranks, so that all ranks get the same bits

template <class T>
struct Plain {
  using Sum = T;
  static Sum load(const char* at) {
    T value;
    return memcpy(&value, at, sizeof value), value;
  }
  static void store(char* at, Sum value) { memcpy(at, &value, sizeof value); }
};
struct Half {
  using Sum = float;
  static Sum load(const char* at) { return (float)Plain<_Float16>::load(at); }
  static void store(char* at, Sum value) { Plain<_Float16>::store(at, (_Float16)value); }
};
struct Brain {
  using Sum = float;
  static Sum load(const char* at) {
    uint32_t bits = (uint32_t)Plain<uint16_t>::load(at) << 16;
    return Plain<float>::load((char*)&bits);
  }
  static void store(char* at, Sum value) {  // rounded to the nearest, a tie to the even
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    Plain<uint16_t>::store(at, value != value ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
  }
};

template <class Number>
static void reduce_as(char* into, const std::vector<const char*>& parts, size_t count, size_t size, int op) {
  using Sum = typename Number::Sum;
  using Whole = std::conditional_t<std::is_signed_v<Sum>, int64_t, uint64_t>;
  using Divisor = std::conditional_t<std::is_integral_v<Sum>, Whole, Sum>;
  for (size_t at = 0; at < count * size; at += size) {
    Sum sum = Number::load(parts[0] + at);
    for (size_t p = 1; p < parts.size(); p++) {
      Sum one = Number::load(parts[p] + at);
      switch (op) {
        case ncclProd: sum = (Sum)(sum * one); break;
        case ncclMax: sum = std::max(sum, one); break;
        case ncclMin: sum = std::min(sum, one); break;
        default: sum = (Sum)(sum + one);
      }
    }
    Number::store(into + at, op == ncclAvg ? (Sum)(sum / (Divisor)parts.size()) : sum);
  }
}

static void reduce(char* into, const std::vector<const char*>& parts, size_t count, int type, int op) {
  static constexpr decltype(&reduce_as<Half>) EACH[] = {
      reduce_as<Plain<int8_t>>,  reduce_as<Plain<uint8_t>>,  reduce_as<Plain<int32_t>>, reduce_as<Plain<uint32_t>>,
      reduce_as<Plain<int64_t>>, reduce_as<Plain<uint64_t>>, reduce_as<Half>,           reduce_as<Plain<float>>,
      reduce_as<Plain<double>>,  reduce_as<Brain>};
  EACH[type](into, parts, count, TYPES[type].size, op);
}

// ---- who sends what, and where it goes

static bool reduces(What what) { return what == ALL_REDUCE || what == REDUCE_SCATTER || what == REDUCE; }
static bool sends_to(const Operation& o, int peer) {
  if (o.what == BROADCAST || o.what == SCATTER) return o.comm->rank == o.root;
  return (o.what != REDUCE && o.what != GATHER) || peer == o.root;
}
static bool receives_from(const Operation& o, int peer) {
  if (o.what == BROADCAST || o.what == SCATTER) return peer == o.root;
  return (o.what != REDUCE && o.what != GATHER) || o.comm->rank == o.root;
}
static char* from_for(const Operation& o, int peer) {
  bool shared = o.what == REDUCE_SCATTER || o.what == ALL_TO_ALL || o.what == SCATTER;
  return o.from + (shared ? (size_t)peer * o.bytes() : 0);
}
static char* to_of(const Operation& o, int peer) {
  bool gathers = o.what == ALL_GATHER || o.what == ALL_TO_ALL || o.what == GATHER;
  return o.to + (gathers ? (size_t)peer * o.bytes() : 0);
}

// Whether the buffers of this rank overlap otherwise than in NCCL's layout for a call in place.
static bool overlaps(const Operation& o) {
  size_t mine = (size_t)o.comm->rank, ranks = (size_t)o.comm->ranks;
  bool out = sends_to(o, o.comm->rank), in = receives_from(o, o.comm->rank);
  size_t sent = o.bytes() * (from_for(o, 1) == from_for(o, 0) ? 1 : ranks);
  size_t received = o.bytes() * (to_of(o, 1) == to_of(o, 0) ? 1 : ranks);
  if (!out || !in || o.what == POINT || o.from >= o.to + received || o.to >= o.from + sent) return false;
  return o.what == ALL_TO_ALL || from_for(o, (int)mine) != to_of(o, (int)mine);
}

static std::string move(const Operation& o, Label label, const Patience& patience) {
  std::vector<Part> sends, receives;
  int mine = o.comm->rank;
  for (int peer = 0; peer < o.comm->ranks; peer++) {
    if (peer == mine) continue;
    if (sends_to(o, peer)) sends.push_back({peer, from_for(o, peer), o.bytes()});
    if (receives_from(o, peer)) receives.push_back({peer, to_of(o, peer), o.bytes()});
  }
  if (sends_to(o, mine) && receives_from(o, mine)) memmove(to_of(o, mine), from_for(o, mine), o.bytes());
  return o.comm->mesh->exchange(label, sends, receives, patience);
}

static std::string move_and_reduce(const Operation& o, Label label, const Patience& patience) {
  int mine = o.comm->rank;
  size_t size = TYPES[o.type].size, most = std::min(o.bytes(), PIECE), at = 0;
  std::vector<std::vector<char>> rooms((size_t)o.comm->ranks);
  do {
    size_t bytes = std::min(o.bytes() - at, PIECE);
    std::vector<Part> sends, receives;
    std::vector<const char*> parts((size_t)o.comm->ranks, from_for(o, mine) + at);
    for (int peer = 0; peer < o.comm->ranks; peer++) {
      if (peer == mine) continue;
      if (sends_to(o, peer)) sends.push_back({peer, from_for(o, peer) + at, bytes});
      if (!receives_from(o, peer)) continue;
      rooms[(size_t)peer].resize(most);
      receives.push_back({peer, rooms[(size_t)peer].data(), bytes});
      parts[(size_t)peer] = rooms[(size_t)peer].data();
    }
    std::string wrong = o.comm->mesh->exchange(label, sends, receives, patience);
    if (!wrong.empty()) return wrong;
    if (receives_from(o, mine)) reduce(o.to + at, parts, bytes / size, o.type, o.op);
    at += bytes;
  } while (at < o.bytes());
  return "";
}

static std::string move_points(const Operation& o, Label label, const Patience& patience) {
  auto to_others = o.sends, from_others = o.receives;
  auto is_own = [&](const Part& part) { return part.peer == o.comm->rank; };
  auto own_sends = std::stable_partition(to_others.begin(), to_others.end(), std::not_fn(is_own));
  auto own_receives = std::stable_partition(from_others.begin(), from_others.end(), std::not_fn(is_own));
  for (auto out = own_sends, in = own_receives; out != to_others.end(); out++, in++) memmove(in->at, out->at, out->bytes);
  to_others.erase(own_sends, to_others.end()), from_others.erase(own_receives, from_others.end());
  return o.comm->mesh->exchange(label, to_others, from_others, patience);
}

// ---- operations

// What FAKE_NCCL has for this operation; then it is not played.
static std::string struck(ncclComm& c, const Patience& patience) {
  static std::atomic<long> played{0};
  long number = ++played;
  if (number == plan().late) Patience(&c.stop, plan().seconds).rest();
  if (number == plan().abort) c.state = ncclRemoteError;
  return patience.over() || number == plan().abort || number == plan().hang ? "FAKE_NCCL strikes here" : "";
}

static void await_turn(ncclComm& c, std::unique_lock<std::mutex>& held, uint64_t turn, const Patience& patience) {
  while (turn && c.finished + 1 < turn && !patience.over()) c.next.wait_for(held, std::chrono::milliseconds(50));
}
static void end_turn(ncclComm& c, uint64_t turn) {
  if (turn > c.finished) c.finished = turn;
  c.next.notify_all();
}

static void play(void* given) {  // in the thread of its stream
  auto& o = *(Operation*)given;
  ncclComm& c = *o.comm;
  Patience patience(&c.stop);
  std::unique_lock<std::mutex> held(c.lock);
  await_turn(c, held, o.turn, patience);
  std::string wrong = struck(c, patience);
  Label label{o.what == POINT ? 0 : ++c.collectives, o.what == POINT ? 0 : o.count, o.bytes(), o.what, o.type, o.op, o.root};
  if (wrong.empty()) wrong = (o.what == POINT ? move_points : reduces(o.what) ? move_and_reduce : move)(o, label, patience);
  if (!wrong.empty() && !c.stop) {  // it neither ends nor hands out data: as long as anybody waits
    say(std::string(NAMES[o.what]) + " does not end: " + wrong);
    patience.rest();
    if (!c.stop) c.state = ncclInternalError;
  }
  end_turn(c, o.turn);
}

static ncclResult_t launch(Operation* o) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(o->stream, &capturing);
  if (capturing == cudaStreamCaptureStatusNone) o->turn = ++o->comm->issued;
  cudaError_t error = fake_cuda_kernel(o->stream, play, o, [](void* done) { delete (Operation*)done; });
  return error ? refuse(ncclUnhandledCudaError, "CUDA error " + std::to_string(error) + " at a launch") : ncclSuccess;
}

static thread_local int depth;
static thread_local std::vector<Operation> queued;

// What a rank sends to itself in a group must be what it receives from itself.
static bool own_points_match(const Operation& o) {
  std::vector<size_t> sent, received;
  for (auto& part : o.sends)
    if (part.peer == o.comm->rank) sent.push_back(part.bytes);
  for (auto& part : o.receives)
    if (part.peer == o.comm->rank) received.push_back(part.bytes);
  return sent == received;
}

// Collectives in their order, then all sends and receives of a communicator at once.
static ncclResult_t end_group() {
  std::vector<Operation> all;
  std::map<ncclComm*, Operation> points;
  all.swap(queued);
  for (auto& each : all) {
    if (each.what != POINT) continue;
    auto [found, fresh] = points.try_emplace(each.comm.get(), each);
    Operation& merged = found->second;
    if (fresh) continue;
    if (merged.stream != each.stream) return refuse(ncclInvalidUsage, "a group over two streams of one communicator is not here");
    merged.sends.insert(merged.sends.end(), each.sends.begin(), each.sends.end());
    merged.receives.insert(merged.receives.end(), each.receives.begin(), each.receives.end());
  }
  for (auto& [comm, merged] : points)
    if (!own_points_match(merged)) return refuse(ncclInvalidUsage, "a send to the own rank without its receive in the same group");
  for (auto& each : all) {
    if (each.what == POINT) continue;
    if (ncclResult_t code = launch(new Operation(std::move(each)))) return code;
  }
  for (auto& [comm, merged] : points)
    if (ncclResult_t code = launch(new Operation(std::move(merged)))) return code;
  return ncclSuccess;
}

static Comm known(ncclComm_t given) {
  std::lock_guard<std::mutex> held(registry);
  auto found = comms.find(given);
  return found == comms.end() ? nullptr : found->second;
}
static ncclResult_t unknown() { return refuse(ncclInvalidArgument, "this is not a communicator of this process"); }
static bool wait_until_ready(ncclComm& c) {
  for (Patience patience(&c.stop); c.state == ncclInProgress && !patience.over();) usleep(1000);
  return c.state == ncclSuccess;
}

static ncclResult_t operation(What what, const void* from, void* to, size_t count, int type, int op, int root, ncclComm_t given,
                              cudaStream_t stream) {
  Operation o{known(given), stream, what, (char*)from, (char*)to, count, type, op, root, {}, {}};
  std::string name = NAMES[what];
  if (!o.comm) return unknown();
  if (!wait_until_ready(*o.comm)) return o.comm->stop ? ncclInvalidUsage : (ncclResult_t)o.comm->state.load();
  if (type < 0 || type >= TYPE_COUNT) return refuse(ncclInvalidArgument, name + ": type " + std::to_string(type) + " is not here");
  if (op < 0 || op >= OPERATORS) return refuse(ncclInvalidArgument, name + ": operator " + std::to_string(op) + " is not here");
  if (root < 0 || root >= o.comm->ranks) return refuse(ncclInvalidArgument, name + ": rank " + std::to_string(root) + " does not exist");
  if (count > MOST_BYTES / TYPES[type].size / (size_t)o.comm->ranks) return refuse(ncclInvalidArgument, name + ": too many elements");
  if (overlaps(o)) return refuse(ncclInvalidArgument, name + ": the buffers overlap, and not as for a call in place");
  fake_cuda_trace("call %s %lu %lu %lu %d %d", what != POINT ? NAMES[what] : from ? "Send" : "Recv", (unsigned long)from,
                  (unsigned long)to, o.bytes(), o.comm->rank, o.comm->ranks);
  if (what == POINT) (from ? o.sends : o.receives).push_back({root, from ? o.from : o.to, o.bytes()});
  if (what == POINT) o.root = 0;
  queued.push_back(std::move(o));
  return depth ? ncclSuccess : end_group();
}

// ---- communicators

// Let `work` make the communicator: here, or in a thread of its own if it is not to block.
template <class Work>
static ncclResult_t make(ncclComm_t* out, const Comm& c, const ncclConfig_t* how, Work work) {
  *out = nullptr;
  if (depth) return refuse(ncclInvalidUsage, "a communicator made within a group is not here");
  if (how && how->magic != CONFIG_MAGIC) return refuse(ncclInvalidArgument, "the configuration was not initialised");
  cudaError_t error = cudaGetDevice(&c->gpu);
  if (error) return refuse(ncclUnhandledCudaError, "CUDA error " + std::to_string(error) + " before a communicator is made");
  auto whole = [c, work] {
    std::string wrong = work();
    if (!wrong.empty()) say("the communicator was not made: " + wrong);
    c->state = wrong.empty() ? ncclSuccess : ncclSystemError;
    fake_cuda_trace("init");
  };
  bool waits = !how || how->blocking == NCCL_CONFIG_UNDEF_INT || how->blocking;
  if (waits) whole();
  if (waits && c->state) return (ncclResult_t)c->state.load();
  std::lock_guard<std::mutex> held(registry);
  comms[*out = c.get()] = c;
  if (!waits) std::thread(whole).detach();
  return waits ? ncclSuccess : ncclInProgress;
}

static std::string join(ncclComm& c, const std::vector<Seat>& seats, const Socket& listener) {
  Patience patience(&c.stop);
  c.mesh = Mesh::join(seats, c.rank, listener, patience);
  return c.mesh ? "" : "not all ranks have connected";
}

static std::string join_by_root(ncclComm& c, const Id& id) {
  Seat own{id.number, c.rank, c.ranks, {}};
  Socket listener = Socket::listen(&own.at);
  auto seats = ask_root(id.root, own, Patience(&c.stop));
  return seats.empty() ? "the root refused this rank, or is gone" : join(c, seats, listener);
}

static ncclResult_t init(ncclComm_t* out, int ranks, const ncclUniqueId& given, int rank, const ncclConfig_t* how) {
  Id id;
  memcpy(&id, &given, sizeof id);
  if (memcmp(id.magic, ID_MAGIC, sizeof id.magic)) return refuse(ncclInvalidArgument, "the unique id is not of this library");
  if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks)
    return refuse(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " is not here");
  auto c = std::make_shared<ncclComm>();
  c->rank = rank, c->ranks = ranks, c->number = id.number;
  return make(out, c, how, [c, id] { return join_by_root(*c, id); });
}

struct Wish {  // of one rank, when a communicator is split
  int32_t color, key;
  Seat seat;
};

// Tell all ranks of `parent` the own wish in its turn; empty: what went wrong was said.
static std::vector<Wish> exchange_wishes(ncclComm& parent, uint64_t turn, Wish own, std::string* wrong) {
  std::vector<Wish> all((size_t)parent.ranks, own);
  std::vector<Part> sends, receives;
  for (int peer = 0; peer < parent.ranks; peer++) {
    if (peer == parent.rank) continue;
    sends.push_back({peer, (char*)&own, sizeof own});
    receives.push_back({peer, (char*)&all[(size_t)peer], sizeof own});
  }
  Patience patience(&parent.stop);
  std::unique_lock<std::mutex> held(parent.lock);
  await_turn(parent, held, turn, patience);
  Label label{++parent.collectives, 1, sizeof own, SPLIT, 0, 0, 0};
  *wrong = parent.mesh->exchange(label, sends, receives, patience);
  end_turn(parent, turn);
  return all;
}

// Who has this rank's color, by key and rank: that makes the child, and its number is of its first rank.
static std::string split(ncclComm& parent, uint64_t turn, int color, int key, ncclComm& child) {
  Wish own{color, key, {child.number, parent.rank, parent.ranks, {}}};
  Socket listener = Socket::listen(&own.seat.at);
  std::string wrong;
  std::vector<Wish> all = exchange_wishes(parent, turn, own, &wrong);
  if (!wrong.empty() || color == NCCL_SPLIT_NOCOLOR) return wrong;
  all.erase(std::remove_if(all.begin(), all.end(), [=](const Wish& each) { return each.color != color; }), all.end());
  std::stable_sort(all.begin(), all.end(), [](const Wish& one, const Wish& other) { return one.key < other.key; });
  std::vector<Seat> seats;
  child.ranks = (int)all.size();
  for (auto& each : all) {
    if (each.seat.rank == parent.rank) child.rank = (int)seats.size();
    seats.push_back({all[0].seat.number, (int32_t)seats.size(), child.ranks, each.seat.at});
  }
  return join(child, seats, listener);
}

static uint64_t random_number() {
  uint64_t number = 0;
  return getrandom(&number, sizeof number, 0) == sizeof number ? number : 0;
}

static ncclResult_t leave(ncclComm_t given, bool aborts) {
  Comm c = known(given);
  if (!c) return unknown();
  for (Patience patience; !aborts && !c->idle() && !patience.over();) usleep(1000);
  c->stop = true;
  std::lock_guard<std::mutex> held(registry);
  comms.erase(given);
  return ncclSuccess;
}

extern "C" {

ncclResult_t ncclGetVersion(int* out) { return *out = plan().version, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* out) {
  Id id{{}, random_number(), {}};
  memcpy(id.magic, ID_MAGIC, sizeof id.magic);
  Socket listener = Socket::listen(&id.root);
  if (!listener || !id.number) return refuse(ncclSystemError, "no socket for a unique id");
  std::thread(serve_root, std::move(listener), id.number).detach();
  memset(out, 0, sizeof *out), memcpy(out, &id, sizeof id);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank, ncclConfig_t* how) {
  return init(out, ranks, id, rank, how);
}
ncclResult_t ncclCommInitRank(ncclComm_t* out, int ranks, ncclUniqueId id, int rank) {
  return init(out, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* out, int ranks, int rank, int count, ncclUniqueId* ids, ncclConfig_t* how) {
  if (count < 1) return refuse(ncclInvalidArgument, "no unique id was given");
  return init(out, ranks, ids[0], rank, how);  // one root is enough for all
}
ncclResult_t ncclCommSplit(ncclComm_t given, int color, int key, ncclComm_t* out, ncclConfig_t* how) {
  Comm parent = known(given), child = std::make_shared<ncclComm>();
  *out = nullptr;
  if (!parent) return unknown();
  if (!wait_until_ready(*parent)) return (ncclResult_t)parent->state.load();
  child->number = random_number();
  uint64_t turn = ++parent->issued;
  auto work = [=] { return split(*parent, turn, color, key, *child); };
  if (color != NCCL_SPLIT_NOCOLOR) return make(out, child, how, work);
  std::string wrong = work();
  return wrong.empty() ? ncclSuccess : refuse(ncclSystemError, "a communicator was not split: " + wrong);
}
ncclResult_t ncclCommFinalize(ncclComm_t given) {
  Comm c = known(given);
  if (!c) return unknown();
  for (Patience patience(&c->stop); !c->idle() && !patience.over();) usleep(1000);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t given) {
  fake_cuda_trace("destroy");
  return given ? leave(given, false) : ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t given) {
  fake_cuda_trace("abort");
  return given ? leave(given, true) : ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t given, ncclResult_t* out) {
  Comm c = known(given);
  return c ? *out = (ncclResult_t)c->state.load(), ncclSuccess : unknown();
}
ncclResult_t ncclCommCount(const ncclComm_t given, int* out) {
  Comm c = known(given);
  return c ? *out = c->ranks, ncclSuccess : unknown();
}
ncclResult_t ncclCommUserRank(const ncclComm_t given, int* out) {
  Comm c = known(given);
  return c ? *out = c->rank, ncclSuccess : unknown();
}
ncclResult_t ncclCommCuDevice(const ncclComm_t given, int* out) {
  Comm c = known(given);
  return c ? *out = c->gpu, ncclSuccess : unknown();
}
ncclResult_t ncclMemAlloc(void** out, size_t size) { return cudaMalloc(out, size) ? ncclUnhandledCudaError : ncclSuccess; }
ncclResult_t ncclMemFree(void* at) { return cudaFree(at) ? ncclUnhandledCudaError : ncclSuccess; }

ncclResult_t ncclGroupStart() { return depth++, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (!depth) return refuse(ncclInvalidUsage, "the end of a group that was not begun");
  return --depth ? ncclSuccess : end_group();
}

const char* ncclGetLastError(ncclComm_t) {
  static thread_local std::string text;
  std::lock_guard<std::mutex> held(registry);
  return (text = last_error).c_str();
}
const char* ncclGetErrorString(ncclResult_t code) {
  static const char* const TEXTS[] = {"fake NCCL: success", "fake NCCL: a CUDA error", "fake NCCL: a system error",
                                      "fake NCCL: an internal error", "fake NCCL: an invalid argument",
                                      "fake NCCL: an invalid usage", "fake NCCL: a remote error", "fake NCCL: in progress"};
  return (unsigned)code < sizeof TEXTS / sizeof *TEXTS ? TEXTS[code] : "fake NCCL: an unknown code";
}
void fake_nccl_refuses(const char* name) { say(std::string(name) + " does not exist here"); }  // for the made functions

using Type = ncclDataType_t;
using Op = ncclRedOp_t;
using Stream_t = cudaStream_t;
ncclResult_t ncclAllReduce(const void* from, void* to, size_t n, Type type, Op op, ncclComm_t c, Stream_t s) {
  return operation(ALL_REDUCE, from, to, n, type, op, 0, c, s);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t n, Type type, Op op, ncclComm_t c, Stream_t s) {
  return operation(REDUCE_SCATTER, from, to, n, type, op, 0, c, s);
}
ncclResult_t ncclReduce(const void* from, void* to, size_t n, Type type, Op op, int root, ncclComm_t c, Stream_t s) {
  return operation(REDUCE, from, to, n, type, op, root, c, s);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t n, Type type, ncclComm_t c, Stream_t s) {
  return operation(ALL_GATHER, from, to, n, type, 0, 0, c, s);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t n, Type type, int root, ncclComm_t c, Stream_t s) {
  return operation(BROADCAST, from, to, n, type, 0, root, c, s);
}
ncclResult_t ncclBcast(void* at, size_t n, Type type, int root, ncclComm_t c, Stream_t s) {
  return operation(BROADCAST, at, at, n, type, 0, root, c, s);
}
ncclResult_t ncclAlltoAll(const void* from, void* to, size_t n, Type type, ncclComm_t c, Stream_t s) {
  return operation(ALL_TO_ALL, from, to, n, type, 0, 0, c, s);
}
ncclResult_t ncclGather(const void* from, void* to, size_t n, Type type, int root, ncclComm_t c, Stream_t s) {
  return operation(GATHER, from, to, n, type, 0, root, c, s);
}
ncclResult_t ncclScatter(const void* from, void* to, size_t n, Type type, int root, ncclComm_t c, Stream_t s) {
  return operation(SCATTER, from, to, n, type, 0, root, c, s);
}
ncclResult_t ncclSend(const void* from, size_t n, Type type, int peer, ncclComm_t c, Stream_t s) {
  return operation(POINT, from, nullptr, n, type, 0, peer, c, s);
}
ncclResult_t ncclRecv(void* to, size_t n, Type type, int peer, ncclComm_t c, Stream_t s) {
  return operation(POINT, nullptr, to, n, type, 0, peer, c, s);
}
}
