#include "kernels/openmp.h"

#include <dlfcn.h>

#include <cstring>

namespace rlopt::kernels {

namespace {

/// Functions that the OpenMP runtimes of GNU, LLVM and Intel export.
struct OpenMp {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*thread)() = nullptr;
  int (*count)() = nullptr;
  void (*barrier)() = nullptr;
  int (*in_parallel)() = nullptr;

  bool is_loaded() const {
    return parallel != nullptr && thread != nullptr && count != nullptr && barrier != nullptr &&
           in_parallel != nullptr;
  }
};

template <class Function>
void find(void* library, const char* name, Function*& function) {
  void* symbol = library == nullptr ? nullptr : dlsym(library, name);
  std::memcpy(&function, &symbol, sizeof(symbol));
}

const OpenMp& loaded() {
  static const OpenMp found = [] {
    OpenMp names;
    // Searches the library and those it is linked against, and nothing else: another OpenMP may be loaded as
    // well.
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    find(torch, "GOMP_parallel", names.parallel);
    find(torch, "omp_get_thread_num", names.thread);
    find(torch, "omp_get_num_threads", names.count);
    find(torch, "GOMP_barrier", names.barrier);
    find(torch, "omp_in_parallel", names.in_parallel);
    return names;
  }();
  return found;
}

struct Shared {
  void (*run)(const void*, int, int);
  const void* data;
};

}  // namespace

bool has_openmp() { return loaded().is_loaded(); }

void barrier() { loaded().barrier(); }

bool is_in_parallel() { return has_openmp() && loaded().in_parallel() != 0; }

void in_parallel(int num_threads, void (*run)(const void* data, int thread, int count), const void* data) {
  if (num_threads <= 1 || !has_openmp()) return run(data, 0, 1);
  Shared shared{run, data};
  loaded().parallel(
      [](void* given) {
        const Shared& each = *static_cast<const Shared*>(given);
        each.run(each.data, loaded().thread(), loaded().count());
      },
      &shared, static_cast<unsigned>(num_threads), 0);
}

}  // namespace rlopt::kernels
