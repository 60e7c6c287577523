// Sockets between the ranks of a communicator of the stand-in of NCCL, for nccl.cc. Every wait ends: at its deadline, or
// when the communicator is aborted.
#pragma once
#include <stdint.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace fake {

constexpr int MOST_RANKS = 256;

// How long to wait: until a deadline, or until `stop` is set.
class Patience {
 public:
  explicit Patience(const std::atomic<bool>* stop = nullptr, double seconds = limit());
  bool over() const;
  int slice_ms() const;  // for one poll; 0 once it is over
  void rest() const;     // until it is over
  static double limit();  // FAKE_NCCL_DEADLINE, in seconds

 private:
  std::chrono::steady_clock::time_point end_;
  const std::atomic<bool>* stop_;
};

struct Address {
  uint32_t ip;  // both as the network has them
  uint16_t port;
};
// What a rank tells the root, and the root all ranks.
struct Seat {
  uint64_t number;  // of the communicator: who does not know it is turned away
  int32_t rank, ranks;
  Address at;
};

class Socket {
 public:
  explicit Socket(int file = -1) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int file() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }
  static Socket listen(Address* out);  // at FAKE_NCCL_ADDRESS, or this machine's own
  static Socket reach(Address, const Patience&);
  Socket accept(const Patience&) const;
  // Move all bytes; false: the peer is gone, or patience is over.
  bool send(const void* from, size_t size, const Patience& patience) const { return move((void*)from, size, true, patience); }
  bool receive(void* to, size_t size, const Patience& patience) const { return move(to, size, false, patience); }

 private:
  bool move(void* at, size_t size, bool out, const Patience&) const;
  int file_;
};

// Collect the seats of all ranks at the root's listener, and send each rank the list. Runs in a thread of its own.
void serve_root(Socket listener, uint64_t number);
// Ask the root for that list. Empty: it refused, is gone, or patience is over.
std::vector<Seat> ask_root(Address root, const Seat& own, const Patience&);

// What each message begins with. Two ranks whose labels differ call different operations: no byte of data is read then.
struct Label {
  uint64_t number, count, bytes;
  int32_t what, type, op, root;
};
std::string describe(const Label&);  // in nccl.cc, which knows the names
struct Part {
  int peer;
  char* at;
  size_t bytes;
};

// A connection to each other rank.
class Mesh {
 public:
  // Null: not all are there when patience is over.
  static std::unique_ptr<Mesh> join(const std::vector<Seat>&, int rank, const Socket& listener, const Patience&);
  // Send and receive at once; parts for one peer keep their order. Empty: all is there. Otherwise what is wrong: then
  // `receives` hold nothing that may be used, and the mesh cannot be used again.
  std::string exchange(const Label&, const std::vector<Part>& sends, const std::vector<Part>& receives, const Patience&);

 private:
  struct Way;
  bool advance(Way&, std::string* wrong);
  std::vector<Socket> to_;
  int rank_ = 0;
};

}  // namespace fake
