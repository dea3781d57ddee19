// The threads of the OpenMP that PyTorch has loaded. A thread pool of our own would compete with it: two
// pools that spin on the same cores slow each other down many times.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rlopt::kernels {

/// Calls run(data, thread, count) in up to `num_threads` threads, or only in the calling one if no OpenMP is
/// loaded. `count` is the number of threads that really run.
void in_parallel(int num_threads, void (*run)(const void* data, int thread, int count), const void* data);

/// The same for run(thread, count). It must not throw.
template <class Run>
void in_parallel(int num_threads, const Run& run) {
  in_parallel(
      num_threads,
      [](const void* data, int thread, int count) { (*static_cast<const Run*>(data))(thread, count); }, &run);
}

/// Calls piece(at) for each of `count` pieces, evenly divided among the threads. It must not throw.
template <class Piece>
void for_each_piece(int64_t count, int num_threads, const Piece& piece) {
  in_parallel(static_cast<int>(std::min<int64_t>(num_threads, count)), [&](int thread, int threads) {
    for (int64_t at = count * thread / threads; at < count * (thread + 1) / threads; ++at) piece(at);
  });
}

/// A barrier for all threads. Only inside a call of `in_parallel` with more than one thread.
void barrier();

/// Whether this thread is already in a parallel region.
bool is_in_parallel();

/// Whether PyTorch's OpenMP is found.
bool has_openmp();

}  // namespace rlopt::kernels
