// Calls a library for a process that cannot load it itself: tests/support/kernel_builds.py, on another processor.
//
//   caller LIBRARY MEMORY    MEMORY is a file that both have mapped; what calls are given lies there
//
// Writes where the memory lies here, then answers requests until there are no more.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

enum Kind : int64_t { kFind, kCall, kText };

struct Request {
  Kind kind;
  char name[64];         // kFind: of a function
  int64_t address;       // kCall: of a function; kText: of a string
  int64_t arguments[3];  // kCall: those that the function does not take do no harm
};

struct Reply {
  int64_t value;
  char text[64];
};

void answer(const Reply& reply) {
  fwrite(&reply, sizeof reply, 1, stdout);
  fflush(stdout);
}

}  // namespace

int main(int, char** argv) {
  if (!dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) return fprintf(stderr, "%s\n", dlerror()), 1;
  const int file = open(argv[2], O_RDWR);
  struct stat status;
  if (fstat(file, &status)) return perror(argv[2]), 1;
  void* memory = mmap(nullptr, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return perror("mmap"), 1;
  answer({reinterpret_cast<int64_t>(memory), {}});
  for (Request request; fread(&request, sizeof request, 1, stdin) == 1;) {
    Reply reply{};
    if (request.kind == kFind) {
      reply.value = reinterpret_cast<int64_t>(dlsym(RTLD_DEFAULT, request.name));
    } else if (request.kind == kCall) {
      using Function = int64_t (*)(int64_t, int64_t, int64_t);
      const Function function = reinterpret_cast<Function>(request.address);
      const int64_t* a = request.arguments;
      reply.value = function(a[0], a[1], a[2]);
    } else {
      strncpy(reply.text, reinterpret_cast<const char*>(request.address), sizeof reply.text - 1);
    }
    answer(reply);
  }
}
