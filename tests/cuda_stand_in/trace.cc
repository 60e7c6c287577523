// A trace of calls, on request: FAKE_CUDA_TRACE names a file, to which each process adds its rank and then a line a call.
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

#include "fake_cuda.h"

static int open_trace() {
  const char* path = word("FAKE_CUDA_TRACE", "");
  return *path ? open((std::string(path) + "." + word("RANK", "0")).c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600)
               : -1;
}

extern "C" void fake_cuda_trace(const char* format, ...) {
  static int file = open_trace();
  if (file < 0) return;
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  line[length] = '\n';
  if (write(file, line, (size_t)length + 1) < 0) perror("fake CUDA: the trace");
}
