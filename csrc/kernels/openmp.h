// The threads of the OpenMP that PyTorch has loaded. A pool of our own would wait beside it: two that spin on
// the same cores slow each other down many times.
#pragma once

namespace rlopt::kernels {

/// Calls run(data, thread, count) in up to `num_threads` threads, in this one alone where no OpenMP is
/// loaded. Each sees the number of threads that there really are.
void in_parallel(int num_threads, void (*run)(void* data, int thread, int count), void* data);

/// Waits for the other threads. Only in a call by `in_parallel` of more threads than one.
void barrier();

/// Whether PyTorch's OpenMP is found.
bool has_openmp();

}  // namespace rlopt::kernels
