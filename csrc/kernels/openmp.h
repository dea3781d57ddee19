// The threads of the OpenMP that PyTorch has loaded. A pool of our own would wait beside it: two that spin on
// the same cores slow each other down many times.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rlopt::kernels {

/// Calls run(data, thread, count) in up to `num_threads` threads, in this one alone where no OpenMP is
/// loaded. Each sees the number of threads that there really are.
void in_parallel(int num_threads, void (*run)(void* data, int thread, int count), void* data);

/// Calls piece(at) for each of `count` pieces, whose threads have equally many of them. It must not throw.
template <class Piece>
void for_each_piece(int64_t count, int num_threads, const Piece& piece) {
  struct Given {
    int64_t count;
    const Piece& piece;
  } given{count, piece};
  in_parallel(
      static_cast<int>(std::min<int64_t>(num_threads, count)),
      [](void* data, int thread, int threads) {
        const Given& each = *static_cast<const Given*>(data);
        for (int64_t at = each.count * thread / threads; at < each.count * (thread + 1) / threads; ++at)
          each.piece(at);
      },
      &given);
}

/// Waits for the other threads. Only in a call by `in_parallel` of more threads than one.
void barrier();

/// Whether this thread is in a parallel region already.
bool is_in_parallel();

/// Whether PyTorch's OpenMP is found.
bool has_openmp();

}  // namespace rlopt::kernels
