// A network plugin of NCCL that shows NICs and moves nothing: what ranks choose over it is looked at, no call is run.
// FAKE_NICS=NAME:MBITS,…; FAKE_NICS_GDR=0: they do not reach a GPU's memory. The topology file says where each name
// stands. Its interface is the eighth, which NCCL 2.19 to 2.30 load.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INTERNAL_ERROR = 3, HOST = 1, CUDA = 2, MOST = 16, NAME = 32 };

typedef struct {
  char *name, *pci_path;
  uint64_t guid;
  int pointers, registered_globally, mbits, port;
  float latency;
  int most_connections, most_receives, device_type, device_version;
} Properties;

static char names[MOST][NAME];
static int mbits[MOST], count, pointers;

static int init(void* log) {
  const char *given = getenv("FAKE_NICS"), *direct = getenv("FAKE_NICS_GDR");
  pointers = HOST | (direct && *direct == '0' ? 0 : CUDA);
  for (count = 0; given && count < MOST; count++) {
    if (sscanf(given, "%31[^:,]:%d", names[count], &mbits[count]) != 2) break;
    given = strchr(given, ',');
    given += given != NULL;
  }
  return SUCCESS;
}
static int devices(int* out) { return *out = count, SUCCESS; }
static int properties(int number, Properties* out) {
  *out = (Properties){names[number], NULL, (uint64_t)number + 1, pointers, 0, mbits[number], 1, 0, 1 << 16, 1, 0, 0};
  return SUCCESS;
}
static int listen_on(int number, void* handle, void** out) { return *out = names[number], SUCCESS; }
static int connect_to(int number, void* handle, void** out, void** device) { return *out = names[number], SUCCESS; }
static int accept_one(void* listening, void** out, void** device) { return *out = listening, SUCCESS; }
static int register_memory(void* connection, void* at, size_t size, int kind, void** out) { return *out = at, SUCCESS; }
static int release_memory(void* connection, void* registered) { return SUCCESS; }
static int let_go(void* connection) { return SUCCESS; }
static int never(void) { return fputs("FAKE_NICS: nothing can be sent\n", stderr), INTERNAL_ERROR; }

#define NEVER ((void*)never)
struct {
  const char* name;
  void *init, *devices, *properties, *listen, *connect, *accept, *register_memory, *register_dma_buf, *release_memory;
  void *send, *receive, *flush, *test, *close_send, *close_receive, *close_listen, *device_memory, *consumed;
} ncclNetPlugin_v8 = {"Nics",  init,  devices, properties, listen_on, connect_to, accept_one, register_memory,
                      NULL,    release_memory, NEVER, NEVER, NEVER, NEVER, let_go, let_go, let_go, NULL, NULL};
