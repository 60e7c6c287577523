// What the files of the fake CUDA share. README.md says what it decides by itself.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "machine.h"

extern "C" {
void fake_cuda_trace(const char* format, ...);
cudaError_t fake_cuda_kernel(cudaStream_t, void (*play)(void*), void* operation, void (*drop)(void*));
int fake_cuda_broken();  // the error after which this process can do nothing more, or 0
}

namespace fake {

extern thread_local int device;      // as cudaSetDevice left it
const std::vector<long>& visible();  // the GPUs of the machine that this process may use, in its order
cudaError_t refuse(cudaError_t);     // and keep it for cudaGetLastError
// Make this process's context on a device, where its compute mode lets it; `call` asked for it.
cudaError_t enter(int index, const char* call);
bool has_context(int index);

// An error after which CUDA fails every call of this process: an illegal address, ECC, a GPU that is lost.
void break_context(cudaError_t);
cudaError_t broken();
#define LIVING \
  if (cudaError_t dead = fake::broken() ? fake::broken() : fake::enter(fake::device, __func__)) return fake::refuse(dead)

// ---- memory.cc
size_t used_memory(int device);
bool is_pageable(const void* at);

// ---- streams.cc, graphs.cc
using Work = std::function<void()>;

// A captured graph is the list of what was issued, in its order, which is one that its dependencies allow.
struct Graph {
  std::vector<Work> works;
  std::vector<std::shared_ptr<void>> held;
  std::vector<class Stream*> streams;
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id by;
  bool invalid = false, active = true;
  cudaError_t invalidate(const char* why, cudaError_t error = cudaErrorStreamCaptureUnsupported);
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(unsigned long long id, int device) : id(id), device(device) {}
  const unsigned long long id;
  const int device;
  std::shared_ptr<Graph> graph;  // into which it is captured
  void add(Work, bool now_if_idle);
  bool idle();
  void drain();
  void end();

 private:
  void loop();
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool busy_ = false, started_ = false, ended_ = false;
};

struct Event {
  std::atomic<uint64_t> asked{0}, done{0};
  std::atomic<double> at_ms{0};
  bool timed = true, recorded = false;
  unsigned long id = 0;
  std::weak_ptr<Graph> captured;
  void reach(uint64_t record);
  void await(uint64_t record);
};

Stream* stream_of(cudaStream_t);  // the default one of this thread's device, too
std::shared_ptr<Event>& event_of(cudaEvent_t);
void issue(cudaStream_t, Work, bool now_if_idle = false);
void compute(cudaStream_t, Work);  // a kernel or a graph of some: until its end the device is busy
constexpr int MOST_DEVICES = 64;
extern std::atomic<int> running[MOST_DEVICES];

// Whether CUDA forbids `call` while this thread, or in the global mode any, captures: then the capture is invalid.
bool forbidden(const char* call);
#define NOT_WHILE_CAPTURING(call) \
  if (fake::forbidden(call)) return fake::refuse(cudaErrorStreamCaptureUnsupported)

}  // namespace fake
