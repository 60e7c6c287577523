// The sockets of mesh.h: TCP, none of them blocking; whoever waits looks at its patience ten times a second.
#include "mesh.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

namespace fake {

using Clock = std::chrono::steady_clock;
constexpr int SLICE_MS = 100, STRANGERS = 64;
constexpr double GREETING_S = 10;

double Patience::limit() {
  static const double seconds = getenv("FAKE_NCCL_DEADLINE") ? atof(getenv("FAKE_NCCL_DEADLINE")) : 600;
  return seconds;
}
Patience::Patience(const std::atomic<bool>* stop, double seconds)
    : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))), stop_(stop) {}
bool Patience::over() const { return (stop_ && *stop_) || Clock::now() >= end_; }
int Patience::slice_ms() const { return over() ? 0 : SLICE_MS; }

void Patience::rest() const {
  while (!over()) usleep(SLICE_MS * 100);
}

// ---- sockets

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}
Socket::~Socket() {
  if (file_ >= 0) close(file_);
}

static void send_at_once(int file) {
  int yes = 1;
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

// Whether `file` may be read, or written, before patience is over.
static bool ready(int file, bool out, const Patience& patience) {
  while (!patience.over()) {
    pollfd one{file, (short)(out ? POLLOUT : POLLIN), 0};
    if (poll(&one, 1, patience.slice_ms()) > 0) return true;
  }
  return false;
}

Socket Socket::listen(Address* out) {
  const char* address = getenv("FAKE_NCCL_ADDRESS");
  sockaddr_in name{};
  name.sin_family = AF_INET, name.sin_addr.s_addr = inet_addr(address ? address : "127.0.0.1");
  socklen_t length = sizeof name;
  Socket made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made || bind(made.file_, (sockaddr*)&name, sizeof name) || ::listen(made.file_, MOST_RANKS)) return Socket();
  getsockname(made.file_, (sockaddr*)&name, &length);
  *out = {name.sin_addr.s_addr, name.sin_port};
  return made;
}

Socket Socket::reach(Address to, const Patience& patience) {
  sockaddr_in name{};
  name.sin_family = AF_INET, name.sin_port = to.port, name.sin_addr.s_addr = to.ip;
  while (!patience.over()) {
    Socket made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int failed = connect(made.file_, (sockaddr*)&name, sizeof name) && errno != EINPROGRESS;
    socklen_t length = sizeof failed;
    if (!failed && ready(made.file_, true, patience)) getsockopt(made.file_, SOL_SOCKET, SO_ERROR, &failed, &length);
    if (!failed && !patience.over()) return send_at_once(made.file_), std::move(made);
    usleep(SLICE_MS * 100);
  }
  return Socket();
}

Socket Socket::accept(const Patience& patience) const {
  while (ready(file_, false, patience)) {
    Socket found(accept4(file_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (found) return send_at_once(found.file_), std::move(found);
  }
  return Socket();
}

bool Socket::move(void* at, size_t size, bool out, const Patience& patience) const {
  for (char* next = (char*)at; size;) {
    ssize_t done = out ? ::send(file_, next, size, MSG_NOSIGNAL) : recv(file_, next, size, 0);
    if (done > 0) {
      next += done, size -= (size_t)done;
      continue;
    }
    bool waits = done < 0 && (errno == EAGAIN || errno == EINTR);
    if (!waits || !ready(file_, out, patience)) return false;
  }
  return true;
}

// ---- the root

void serve_root(Socket listener, uint64_t number) {
  std::vector<Seat> all;
  std::vector<Socket> from;
  int strangers = 0;
  Patience patience;
  for (size_t seated = 0; all.empty() || seated < all.size();) {
    Socket next = listener.accept(patience);
    if (!next) return;
    Seat seat;
    bool known = next.receive(&seat, sizeof seat, Patience(nullptr, GREETING_S)) && seat.number == number;
    if (known && all.empty() && seat.ranks > 0 && seat.ranks <= MOST_RANKS)
      all.resize((size_t)seat.ranks), from.resize((size_t)seat.ranks);
    known = known && seat.ranks == (int)all.size() && seat.rank >= 0 && seat.rank < seat.ranks;
    if (!known || from[(size_t)seat.rank]) {  // it is turned away: its connection ends here
      if (++strangers > STRANGERS) return;
      continue;
    }
    all[(size_t)seat.rank] = seat, from[(size_t)seat.rank] = std::move(next);
    seated++;
  }
  for (auto& each : from) each.send(all.data(), all.size() * sizeof(Seat), Patience(nullptr, GREETING_S));
}

std::vector<Seat> ask_root(Address root, const Seat& own, const Patience& patience) {
  std::vector<Seat> all((size_t)own.ranks);
  Socket there = Socket::reach(root, patience);
  if (!there || !there.send(&own, sizeof own, patience) || !there.receive(all.data(), all.size() * sizeof own, patience)) return {};
  return all;
}

// ---- the mesh

struct Greeting {
  uint64_t number;
  int32_t rank;
};

std::unique_ptr<Mesh> Mesh::join(const std::vector<Seat>& seats, int rank, const Socket& listener, const Patience& patience) {
  auto made = std::make_unique<Mesh>();
  uint64_t number = seats[(size_t)rank].number;
  made->rank_ = rank, made->to_.resize(seats.size());
  for (int peer = 0; peer < rank; peer++) {
    Greeting own{number, rank};
    Socket there = Socket::reach(seats[(size_t)peer].at, patience);
    if (!there || !there.send(&own, sizeof own, patience)) return nullptr;
    made->to_[(size_t)peer] = std::move(there);
  }
  int strangers = 0;
  for (int missing = (int)seats.size() - rank - 1; missing;) {
    Socket next = listener.accept(patience);
    Greeting theirs;
    if (!next) return nullptr;
    bool known = next.receive(&theirs, sizeof theirs, Patience(nullptr, GREETING_S)) && theirs.number == number;
    if (!known || theirs.rank <= rank || theirs.rank >= (int)seats.size() || made->to_[(size_t)theirs.rank]) {
      if (++strangers > STRANGERS) return nullptr;
      continue;
    }
    made->to_[(size_t)theirs.rank] = std::move(next);
    missing--;
  }
  return made;
}

struct Mesh::Way {  // one part, in one direction
  int peer;
  bool out;
  Label wanted, label;  // `label` is what comes in
  char* at;
  size_t done = 0;
  size_t all() const { return sizeof(Label) + wanted.bytes; }
};

// As much of the way as goes without waiting; false: something is wrong.
bool Mesh::advance(Way& way, std::string* wrong) {
  int file = to_[(size_t)way.peer].file();
  std::string who = "rank " + std::to_string(way.peer);
  while (way.done < way.all()) {
    bool top = way.done < sizeof(Label);
    char* at = top ? (char*)(way.out ? &way.wanted : &way.label) + way.done : way.at + (way.done - sizeof(Label));
    size_t left = (top ? sizeof(Label) : way.all()) - way.done;
    ssize_t moved = way.out ? ::send(file, at, left, MSG_NOSIGNAL) : recv(file, at, left, 0);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (moved <= 0) return *wrong = who + " is gone", false;
    way.done += (size_t)moved;
    if (way.out || way.done != sizeof(Label) || !memcmp(&way.label, &way.wanted, sizeof(Label))) continue;
    return *wrong = who + " calls " + describe(way.label) + ", this rank " + describe(way.wanted), false;
  }
  return true;
}

std::string Mesh::exchange(const Label& label, const std::vector<Part>& sends, const std::vector<Part>& receives,
                           const Patience& patience) {
  std::vector<Way> ways;
  for (bool out : {true, false}) {
    for (auto& part : out ? sends : receives) {
      Way way{part.peer, out, label, {}, part.at};
      way.wanted.bytes = part.bytes;
      ways.push_back(way);
    }
  }
  for (;;) {
    std::vector<pollfd> files;
    std::vector<Way*> next;  // the first part of each peer and direction: they keep their order
    std::set<std::pair<int, bool>> taken;
    for (auto& way : ways) {
      if (way.done == way.all() || !taken.insert({way.peer, way.out}).second) continue;
      files.push_back({to_[(size_t)way.peer].file(), (short)(way.out ? POLLOUT : POLLIN), 0});
      next.push_back(&way);
    }
    if (next.empty()) return "";
    if (patience.over()) return "it was aborted, or its deadline is over";
    if (poll(files.data(), files.size(), patience.slice_ms()) <= 0) continue;
    std::string wrong;
    for (size_t i = 0; i < files.size(); i++)
      if (files[i].revents && !advance(*next[i], &wrong)) return wrong;
  }
}

}  // namespace fake
