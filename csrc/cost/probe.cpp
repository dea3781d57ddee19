#include "cost/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

// Each function below is compiled for several instruction sets; the loader picks the best one. Not under
// ThreadSanitizer: the resolver would call into a library that is not linked yet, and crash.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define RLOPT_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define RLOPT_CLONES
#endif

namespace rlopt {

namespace {

using Clock = std::chrono::steady_clock;
using Lanes = float __attribute__((vector_size(64)));

constexpr int kAccumulators = 12;  // hides the latency of a multiply-add
constexpr int kMaxThreads = 64;
constexpr int kRepeats = 3;
constexpr double kRunUs = 4000;  // duration of a timed run

}  // namespace

/// `rounds` dependent multiply-adds on each accumulator.
RLOPT_CLONES float probe_multiply_add(int64_t rounds, float factor) {
  Lanes sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = Lanes{} + static_cast<float>(i);
  const Lanes scale = Lanes{} + factor;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kAccumulators; ++i) sums[i] = sums[i] * scale + scale;
  }
  float result = 0;
  for (int i = 0; i < kAccumulators; ++i) result += sums[i][0];
  return result;
}

RLOPT_CLONES void probe_triad(float* out, const float* a, const float* b, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = a[i] + factor * b[i];
}

namespace {

/// Microseconds until all threads have run `work`, counted from when all were ready.
double run_together(int num_threads, const std::function<void(int)>& work) {
  std::atomic<int> waiting{num_threads};
  std::vector<Clock::time_point> begins(static_cast<size_t>(num_threads));
  std::vector<Clock::time_point> ends(begins.size());
  const auto body = [&](int index) {
    --waiting;
    while (waiting.load() > 0) std::this_thread::yield();
    begins[static_cast<size_t>(index)] = Clock::now();
    work(index);
    ends[static_cast<size_t>(index)] = Clock::now();
  };
  std::vector<std::thread> threads;
  for (int index = 1; index < num_threads; ++index) threads.emplace_back(body, index);
  body(0);
  for (std::thread& thread : threads) thread.join();
  const auto begin = *std::min_element(begins.begin(), begins.end());
  const auto end = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

/// Best rate of `work(thread, repeats)`, where one repeat in one thread counts as `amount`.
double best_rate(int num_threads, double amount, const std::function<void(int, int64_t)>& work) {
  int64_t repeats = 1;
  double us = 0;
  // Enough repeats to fill a run, so that the start of the threads does not matter.
  while ((us = run_together(1, [&](int index) { work(index, repeats); })) < kRunUs / 8) repeats *= 2;
  repeats = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(repeats) * kRunUs / us));
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    us = run_together(num_threads, [&](int index) { work(index, repeats); });
    best = std::max(best, amount * static_cast<double>(repeats) * num_threads / us);
  }
  return best;
}

double multiply_add_rate(int num_threads) {
  constexpr int64_t kRounds = 1000;
  constexpr double kLanes = sizeof(Lanes) / sizeof(float);
  std::atomic<float> sink{0};  // so that the work is not optimised away
  const double rate =
      best_rate(num_threads, 2.0 * kAccumulators * kLanes * kRounds,
                [&](int, int64_t repeats) { sink = probe_multiply_add(repeats * kRounds, 0.5F); });
  return rate;
}

/// Three arrays per thread, first touched by the thread that uses them.
class Arrays {
 public:
  Arrays(int num_threads, size_t count) : count_(count), memory_(static_cast<size_t>(num_threads)) {
    run_together(num_threads, [&](int index) {
      memory_[static_cast<size_t>(index)] = std::make_unique<float[]>(3 * count);
    });
  }
  float* array(int thread, size_t which) const {
    return memory_[static_cast<size_t>(thread)].get() + which * count_;
  }

 private:
  size_t count_;
  std::vector<std::unique_ptr<float[]>> memory_;
};

double triad_rate(const Arrays& arrays, int num_threads, size_t count) {
  return best_rate(
      num_threads, 3.0 * sizeof(float) * static_cast<double>(count), [&](int thread, int64_t repeats) {
        for (int64_t i = 0; i < repeats; ++i) {
          probe_triad(arrays.array(thread, 0), arrays.array(thread, 1), arrays.array(thread, 2), 0.5F, count);
        }
      });
}

double copy_rate(const Arrays& arrays, int num_threads, size_t count) {
  // Back and forth between the first two arrays: two thirds of the working set of the triad.
  return best_rate(
      num_threads, 2.0 * sizeof(float) * static_cast<double>(count), [&](int thread, int64_t repeats) {
        for (int64_t i = 0; i < repeats; ++i) {
          const auto from = static_cast<size_t>(i % 2);
          std::memcpy(arrays.array(thread, 1 - from), arrays.array(thread, from), count * sizeof(float));
        }
      });
}

}  // namespace

CpuProbe probe_cpu(int num_threads) {
  const auto start = Clock::now();
  num_threads = std::clamp(num_threads, 1, kMaxThreads);
  CpuProbe found;
  // The last exceeds every thread's share of the caches, and the sets of all threads together fit in ordinary
  // memory.
  const double largest = std::clamp(768e6 / num_threads, 16e6, 96e6);
  for (const double bytes : {24e3, 384e3, 6e6, largest}) {
    const auto count = static_cast<size_t>(bytes / (3 * sizeof(float)));
    const Arrays arrays(num_threads, count);
    found.bandwidth.push_back(
        {bytes, copy_rate(arrays, num_threads, count), triad_rate(arrays, num_threads, count)});
    if (bytes < largest) continue;
    // 1, 2, 4, ... threads and all of them: more points add no information.
    for (int threads = 1; threads <= num_threads; ++threads) {
      const bool is_tried = threads == num_threads || (threads & (threads - 1)) == 0;
      found.stream_per_us.push_back(is_tried ? triad_rate(arrays, threads, count) : 0);
      found.flops_per_us.push_back(is_tried ? multiply_add_rate(threads) : 0);
    }
  }
  found.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return found;
}

}  // namespace rlopt
