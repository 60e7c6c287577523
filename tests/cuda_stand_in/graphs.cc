// Captures and graphs.
#include <algorithm>

#include "fake_cuda.h"

namespace fake {

static std::mutex& lock = *new std::mutex;
static std::vector<std::shared_ptr<Graph>>& captures = *new std::vector<std::shared_ptr<Graph>>;
static std::atomic<int> capturing{0};
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t Graph::invalidate(const char* why, cudaError_t error) {
  invalid = true;
  fprintf(stderr, "fake CUDA: the capture of a graph is invalid by %s\n", why);
  return refuse(error);
}

bool forbidden(const char* call) {
  if (!capturing) return false;
  std::lock_guard<std::mutex> held(lock);
  for (auto& graph : captures) {
    if (cudaStreamCaptureModeRelaxed == thread_mode || cudaStreamCaptureModeRelaxed == graph->mode) continue;
    bool everywhere = graph->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!everywhere && graph->by != std::this_thread::get_id()) continue;
    graph->invalidate(call);
    return true;
  }
  return false;
}

using Handle = std::shared_ptr<Graph>;

static Handle graph_of(cudaGraph_t given) {  // a handle, or while it is captured the graph itself
  std::lock_guard<std::mutex> held(lock);
  for (auto& graph : captures)
    if ((cudaGraph_t)graph.get() == given) return graph;
  return *(Handle*)given;
}

}  // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t given, cudaStreamCaptureMode mode) {
  LIVING;
  static std::atomic<unsigned long long> ids{1};
  if (!given) return refuse(cudaErrorStreamCaptureImplicit);
  Stream* stream = stream_of(given);
  if (stream->graph) return refuse(cudaErrorIllegalState);
  auto graph = std::make_shared<Graph>();
  graph->id = ids++, graph->mode = mode, graph->by = std::this_thread::get_id(), graph->streams = {stream};
  stream->graph = graph;
  std::lock_guard<std::mutex> held(lock);
  captures.push_back(graph);
  capturing++;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t given, cudaGraph_t* out) {
  auto graph = stream_of(given)->graph;
  *out = nullptr;
  if (!graph) return refuse(cudaErrorIllegalState);
  {
    std::lock_guard<std::mutex> held(lock);
    captures.erase(std::remove(captures.begin(), captures.end(), graph), captures.end());
    capturing--;
  }
  for (auto* stream : graph->streams) stream->graph = nullptr;
  graph->streams.clear();
  graph->active = false;
  if (graph->invalid) return refuse(cudaErrorStreamCaptureInvalidated);
  fake_cuda_trace("captured %llu", graph->id);
  *out = (cudaGraph_t) new Handle(graph);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t given, cudaStreamCaptureStatus* out) {
  auto graph = stream_of(given)->graph;
  *out = !graph           ? cudaStreamCaptureStatusNone
         : graph->invalid ? cudaStreamCaptureStatusInvalidated
                          : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t given, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* out, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  static cudaGraphNode_t none[1];
  auto graph = stream_of(given)->graph;
  cudaStreamIsCapturing(given, status);
  if (id) *id = graph ? graph->id : 0;
  if (out) *out = (cudaGraph_t)graph.get();
  if (nodes) *nodes = none;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                unsigned int) {
  return cudaSuccess;
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t*, const cudaGraphNode_t*,
                                     const cudaGraphEdgeData*, size_t) {
  return cudaSuccess;
}
cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t,
                                        cudaEvent_t given) {
  auto event = event_of(given);
  event->recorded = true;
  graph_of(graph)->works.push_back([=] { event->reach(++event->asked); });
  if (node) *node = (cudaGraphNode_t)1;
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void* object, cudaHostFn_t destroy, unsigned int, unsigned int) {
  *out = (cudaUserObject_t) new std::shared_ptr<void>(object, destroy);
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t given, unsigned int, unsigned int flags) {
  auto* object = (std::shared_ptr<void>*)given;
  graph_of(graph)->held.push_back(*object);
  if (flags & cudaGraphUserObjectMove) delete object;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  LIVING;
  *out = (cudaGraphExec_t) new Handle(graph_of(graph));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t given, cudaStream_t stream) {
  LIVING;
  fake_cuda_trace("launch graph %llu", (*(Handle*)given)->id);
  compute(stream, [graph = *(Handle*)given] {
    for (auto& work : graph->works)
      if (!broken()) work();
  });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t given) {
  delete (Handle*)given;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t given) {
  fake_cuda_trace("destroy graph %llu", (*(Handle*)given)->id);
  delete (Handle*)given;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t given, cudaGraphNode_t*, size_t* count) {
  *count = graph_of(given)->works.size();
  return cudaSuccess;
}
}
