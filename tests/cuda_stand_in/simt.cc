// How a kernel runs: every CUDA thread is a fiber, all fibers of a launch take turns in the calling thread and switch
// where they wait: at barriers, and where NCCL polls.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>

#define SIMT_ENGINE
#include "device_code.h"
#include "fake_cuda.h"

#ifndef __x86_64__
#error "switch_stack is written for x86-64"
#endif

extern "C" void switch_stack(void** left, void* entered);
asm(R"(.text
.globl switch_stack
.type switch_stack,@function
switch_stack:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp,(%rdi); mov %rsi,%rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
.size switch_stack,.-switch_stack)");

thread_local SimtThread* simt_thread;

namespace {

constexpr size_t STACK = 64 << 10, STATIC = 96 << 10, DYNAMIC = 256 << 10;
constexpr int REGISTERS = 6, WARP = 32;
constexpr int SPIN = 64, NAP_US = 20;
struct alignas(16) Argument {
  char bytes[4096];
};

struct Fiber;
struct Barrier {
  int arrived = 0;
  unsigned int votes = 0, ballot = 0;  // of those that arrive now, and of the last time
  std::vector<Fiber*> waiting;         // by the index of their threads: the stores of a lane follow those of the lanes below
};
struct Block {
  Barrier named[16];
  std::vector<Barrier> warps;
  char* shared;
};
struct Fiber {
  SimtThread thread;
  void* stack_pointer;
  char* stack;
  Block* block;
};
struct Launch {
  void (*kernel)(Argument);
  Argument argument;
  std::deque<Fiber*> ready;
  Fiber* current;
  void* scheduler;
  size_t living, yielded = 0;
};
thread_local Launch* launch;

std::mutex& lock = *new std::mutex;
std::vector<char*>& stacks = *new std::vector<char*>;

void* map_memory(size_t size, int flags) {
  flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (at == MAP_FAILED) perror("fake CUDA: memory of a kernel"), abort();
  return at;
}

char* take_stack() {
  std::lock_guard<std::mutex> held(lock);
  if (stacks.empty()) return (char*)map_memory(STACK, 0);
  char* taken = stacks.back();
  stacks.pop_back();
  return taken;
}

void to_scheduler() { switch_stack(&launch->current->stack_pointer, launch->scheduler); }

void wait_at(Barrier& barrier, int threads, unsigned int vote) {
  Fiber* own = launch->current;
  size_t place = barrier.waiting.size();
  while (place && barrier.waiting[place - 1]->thread.threadIdx.x > own->thread.threadIdx.x) place--;
  barrier.waiting.insert(barrier.waiting.begin() + (long)place, own);
  barrier.votes |= vote;
  if (++barrier.arrived == threads) {
    barrier.ballot = barrier.votes;
    barrier.arrived = 0, barrier.votes = 0, launch->yielded = 0;
    launch->ready.insert(launch->ready.end(), barrier.waiting.begin(), barrier.waiting.end());
    barrier.waiting.clear();
  }
  to_scheduler();
}

void begin_fiber() {
  launch->kernel(launch->argument);
  launch->living--;
  launch->yielded = 0;
  to_scheduler();
  abort();
}

void prepare(Fiber& fiber) {
  fiber.stack = take_stack();
  void** top = (void**)(fiber.stack + STACK - 64);  // after `ret` it is 8 off 16, as a function expects it
  *--top = nullptr;
  *--top = (void*)begin_fiber;
  for (int i = 0; i < REGISTERS; i++) *--top = nullptr;
  fiber.stack_pointer = top;
}

}  // namespace

extern "C" {
void simt_yield() {
  launch->yielded++;
  launch->ready.push_back(launch->current);
  to_scheduler();
}
void simt_barrier(int name, int threads) { wait_at(launch->current->block->named[name & 15], threads, 0); }
bool simt_barrier_or(bool vote, int name, int threads) {
  Barrier& barrier = launch->current->block->named[name & 15];
  wait_at(barrier, threads, vote);
  return barrier.ballot;
}
void simt_not_built() {
  fprintf(stderr, "fake CUDA: NCCL's function for this operation, operator, type and algorithm was not built\n");
  abort();
}
unsigned int simt_warp(bool vote) {
  unsigned int index = launch->current->thread.threadIdx.x;
  Barrier& barrier = launch->current->block->warps[index / WARP];
  wait_at(barrier, WARP, vote ? 1u << index % WARP : 0);
  return barrier.ballot;
}
}

void fake::run_kernel(void* kernel, unsigned int grid, unsigned int block, const void* argument, size_t size) {
  auto own = std::make_unique<Launch>();
  std::vector<Fiber> fibers((size_t)grid * block);
  std::vector<Block> blocks(grid);
  launch = own.get();
  own->kernel = (void (*)(Argument))kernel;
  memset(&own->argument, 0, sizeof own->argument);
  memcpy(&own->argument, argument, std::min(size, sizeof own->argument));
  own->living = fibers.size();
  for (unsigned int i = 0; i < fibers.size(); i++) {
    Block& home = blocks[i / block];
    if (i % block == 0) {
      home.warps.resize((block + WARP - 1) / WARP);
      home.shared = (char*)map_memory(STATIC + DYNAMIC, MAP_32BIT);  // NCCL keeps shared addresses in 32 bits
    }
    fibers[i].block = &home;
    fibers[i].thread = {{i % block, 0, 0}, {i / block, 0, 0}, dim3(block), dim3(grid), home.shared, home.shared + STATIC};
    prepare(fibers[i]);
    own->ready.push_back(&fibers[i]);
  }
  while (own->living && !broken()) {
    if (own->ready.empty()) fprintf(stderr, "fake CUDA: all threads of a kernel wait at barriers\n"), abort();
    own->current = own->ready.front();
    own->ready.pop_front();
    simt_thread = &own->current->thread;
    switch_stack(&own->scheduler, own->current->stack_pointer);
    if (own->yielded > 2 * own->ready.size() + SPIN) {  // all of them poll: let others have the processor
      own->yielded = 0;
      usleep(NAP_US);
    }
  }
  for (auto& each : blocks) munmap(each.shared, STATIC + DYNAMIC);
  std::lock_guard<std::mutex> held(lock);
  for (auto& fiber : fibers) stacks.push_back(fiber.stack);
}
