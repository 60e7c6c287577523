// Streams are queues, with a thread of their own once something must wait; events count what was recorded and reached.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "fake_cuda.h"

namespace fake {

static std::mutex& registry = *new std::mutex;
static std::map<cudaStream_t, std::shared_ptr<Stream>>& streams = *new std::map<cudaStream_t, std::shared_ptr<Stream>>;
static std::map<int, Stream*>& defaults = *new std::map<int, Stream*>;

std::atomic<int> running[MOST_DEVICES];

static void nap(int turn) { usleep(turn < 100 ? 20 : 200); }

static Stream* create_locked(unsigned long long id) {
  auto made = std::make_shared<Stream>(id, device);
  streams[(cudaStream_t)made.get()] = made;
  return made.get();
}

Stream* stream_of(cudaStream_t given) {
  if (given && given != cudaStreamLegacy && given != cudaStreamPerThread) return (Stream*)given;
  std::lock_guard<std::mutex> held(registry);
  Stream*& found = defaults[device];
  return found ? found : found = create_locked(1);
}

void Stream::add(Work work, bool now_if_idle) {
  std::lock_guard<std::mutex> held(lock_);
  if (now_if_idle && queue_.empty() && !busy_) {
    if (!broken()) work();
    return;
  }
  if (!started_) {
    started_ = true;
    std::thread([self = shared_from_this()] {
      fake::device = self->device;
      self->loop();
    }).detach();
  }
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

void Stream::loop() {
  std::unique_lock<std::mutex> held(lock_);
  for (;;) {
    changed_.wait(held, [this] { return ended_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    held.unlock();
    if (!broken()) work();  // a broken context does nothing any more
    work = nullptr;
    held.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

bool Stream::idle() {
  std::lock_guard<std::mutex> held(lock_);
  return queue_.empty() && !busy_;
}

void Stream::drain() {
  std::unique_lock<std::mutex> held(lock_);
  changed_.wait(held, [this] { return queue_.empty() && !busy_; });
}

void Stream::end() {
  std::lock_guard<std::mutex> held(lock_);
  ended_ = true;
  changed_.notify_all();
}

void issue(cudaStream_t given, Work work, bool now_if_idle) {
  Stream* stream = stream_of(given);
  if (stream->graph)
    stream->graph->works.push_back(std::move(work));
  else
    stream->add(std::move(work), now_if_idle);
}

void compute(cudaStream_t given, Work work) {
  if (stream_of(given)->graph) return issue(given, std::move(work));
  auto& count = running[stream_of(given)->device];
  count++;
  issue(given, [&count, work = std::move(work)] { work(), count--; });
}

std::shared_ptr<Event>& event_of(cudaEvent_t given) { return *(std::shared_ptr<Event>*)given; }

void Event::reach(uint64_t record) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  at_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
  for (uint64_t before = done; before < record && !done.compare_exchange_weak(before, record);) continue;
}

void Event::await(uint64_t record) {
  for (int turn = 0; done < record && !broken(); turn++) nap(turn);
}

static cudaError_t state() { return broken() ? refuse(broken()) : cudaSuccess; }

}  // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned int) {
  LIVING;
  static unsigned long long ids = 10;
  std::lock_guard<std::mutex> held(registry);
  *out = (cudaStream_t)create_locked(++ids);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned int flags, int) {
  return cudaStreamCreateWithFlags(out, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t given) {
  Stream* stream = stream_of(given);
  if (auto graph = stream->graph) {
    graph->streams.erase(std::remove(graph->streams.begin(), graph->streams.end(), stream), graph->streams.end());
    stream->graph = nullptr;
  }
  stream->end();
  std::lock_guard<std::mutex> held(registry);
  streams.erase(given);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t given) {
  if (auto graph = stream_of(given)->graph) return graph->invalidate(__func__);
  NOT_WHILE_CAPTURING("cudaStreamSynchronize");
  stream_of(given)->drain();
  return state();
}
cudaError_t cudaStreamQuery(cudaStream_t given) {
  LIVING;
  if (auto graph = stream_of(given)->graph) return graph->invalidate(__func__);
  return stream_of(given)->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamGetId(cudaStream_t given, unsigned long long* id) {
  *id = stream_of(given)->id;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  NOT_WHILE_CAPTURING("cudaDeviceSynchronize");
  fake_cuda_trace("synchronise");
  std::vector<std::shared_ptr<Stream>> own;
  {
    std::lock_guard<std::mutex> held(registry);
    for (auto& [handle, stream] : streams)
      if (stream->device == device) own.push_back(stream);
  }
  for (auto& stream : own) stream->drain();
  return state();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  LIVING;
  issue(stream, [=] { function(argument); });
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* argument, unsigned int) {
  LIVING;
  issue(stream, [=] { function(stream, cudaSuccess, argument); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned int flags) {
  LIVING;
  auto* made = new std::shared_ptr<Event>(new Event);
  (*made)->timed = !(flags & cudaEventDisableTiming);
  static std::atomic<unsigned long> ids{0};
  (*made)->id = ++ids;
  *out = (cudaEvent_t)made;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t given) {
  delete &event_of(given);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t given, cudaStream_t stream, unsigned int flags) {
  LIVING;
  auto event = event_of(given);
  auto graph = stream_of(stream)->graph;
  if (graph && !(flags & cudaEventRecordExternal)) {
    event->captured = graph;
    return cudaSuccess;
  }
  event->captured.reset();
  event->recorded = true;
  if (event->timed) fake_cuda_trace("mark %lu %s", event->id, running[device] ? "busy" : "idle");
  if (graph) {
    graph->works.push_back([=] { event->reach(++event->asked); });
  } else {
    uint64_t record = ++event->asked;
    issue(stream, [=] { event->reach(record); }, true);
  }
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t given, cudaStream_t stream) { return cudaEventRecordWithFlags(given, stream, 0); }

static bool is_captured(cudaEvent_t given) {
  auto graph = event_of(given)->captured.lock();
  if (!graph || !graph->active) return false;
  graph->invalidate("a question about a captured event");
  return true;
}
cudaError_t cudaEventQuery(cudaEvent_t given) {
  LIVING;
  if (is_captured(given)) return refuse(cudaErrorCapturedEvent);
  NOT_WHILE_CAPTURING("cudaEventQuery");
  auto& event = event_of(given);
  return event->done >= event->asked ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t given) {
  LIVING;
  if (is_captured(given)) return refuse(cudaErrorCapturedEvent);
  auto event = event_of(given);
  event->await(event->asked);
  return state();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t last) {
  LIVING;
  auto &one = event_of(first), &other = event_of(last);
  if (!one->timed || !other->timed || !one->recorded || !other->recorded) return refuse(cudaErrorInvalidResourceHandle);
  if (one->done < one->asked || other->done < other->asked) return refuse(cudaErrorNotReady);
  fake_cuda_trace("elapsed %lu %lu", one->id, other->id);
  *ms = (float)(other->at_ms - one->at_ms);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t waited, unsigned int flags) {
  LIVING;
  auto event = event_of(waited);
  auto graph = event->captured.lock();
  Stream* stream = stream_of(given);
  bool external = flags & cudaEventWaitExternal;
  if (graph && graph->active && !external) {  // the stream joins the capture
    if (stream->graph && stream->graph != graph) return refuse(cudaErrorStreamCaptureMerge);
    if (!stream->graph) graph->streams.push_back(stream);
    stream->graph = graph;
    return cudaSuccess;
  }
  uint64_t record = event->asked;
  if (stream->graph && external) {
    stream->graph->works.push_back([=] { event->await(event->asked); });
  } else if (stream->graph) {
    if (event->recorded && event->done < record)
      return stream->graph->invalidate("waiting for an event outside", cudaErrorStreamCaptureIsolation);
  } else if (event->done < record) {
    stream->add([=] { event->await(record); }, false);
  }
  return cudaSuccess;
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int) {
  issue(stream, [=] { *(volatile cuuint32_t*)at = value; }, true);
  return CUDA_SUCCESS;
}
CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* given, unsigned int) {
  std::vector<CUstreamBatchMemOpParams> all(given, given + count);
  issue(stream, [all] {
    for (auto& each : all) {
      int turn = 0;
      auto *word = (volatile cuuint32_t*)each.waitValue.address;
      auto *words = (volatile cuuint64_t*)each.waitValue.address;
      switch (each.operation) {
        case CU_STREAM_MEM_OP_WRITE_VALUE_32: *word = each.writeValue.value; break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: *words = each.writeValue.value64; break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
          while ((int32_t)(*word - each.waitValue.value) < 0 && !broken()) nap(turn++);
          break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
          while ((int64_t)(*words - each.waitValue.value64) < 0 && !broken()) nap(turn++);
          break;
        default: break;
      }
    }
  });
  return CUDA_SUCCESS;
}
}
