// Device probe for CUDA: a separate shared library, loaded on demand. The CUDA runtime is linked statically,
// so that without a driver the first call reports an error and nothing else happens.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace {

constexpr int kNoDriver = 1;
constexpr int kNoDevice = 2;
constexpr int kFailed = 3;
constexpr int kAccumulators = 8;

__global__ void nothing() {}

__global__ void copy(const float4* from, float4* to, size_t count) {
  const size_t step = static_cast<size_t>(blockDim.x) * gridDim.x;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count; i += step) {
    to[i] = from[i];
  }
}

__global__ void multiply_add(float* out, int rounds, float factor) {
  float sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = static_cast<float>(threadIdx.x + i);
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) sums[i] = fmaf(sums[i], factor, factor);
  }
  float sum = 0;
  for (int i = 0; i < kAccumulators; ++i) sum += sums[i];
  // Never true, but the compiler must not know that.
  if (sum == 0.12345F) out[threadIdx.x] = sum;
}

/// Ends the probe at the first error and keeps it.
struct Check {
  cudaError_t error = cudaSuccess;
  bool operator()(cudaError_t result) {
    if (error == cudaSuccess) error = result;
    return error == cudaSuccess;
  }
};

class Timer {
 public:
  explicit Timer(Check& check) : check_(check) {
    check_(cudaEventCreate(&begin_));
    check_(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  /// Best of a few runs, in microseconds.
  template <class Work>
  double best_us(const Work& work) {
    float best = 1e9F;
    for (int i = 0; i < 5; ++i) {
      check_(cudaEventRecord(begin_));
      work();
      check_(cudaEventRecord(end_));
      check_(cudaEventSynchronize(end_));
      float ms = 0;
      check_(cudaEventElapsedTime(&ms, begin_, end_));
      best = std::min(best, ms);
    }
    return 1e3 * best;
  }

 private:
  Check& check_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

double host_us(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

/// Results in the order of `torchrlopt.machine.cost.cuda_probe.FIELDS`.
struct CudaProbe {
  double copy_bytes_per_us;   // read and written in device memory
  double cache_bytes_per_us;  // the same within half of the L2 cache
  double flops_per_us;        // float32 multiply-adds, two each
  double launch_us;           // until the host may launch the next kernel
  double round_trip_us;       // launch of an empty kernel until the host knows it has ended
  double event_us;            // between two events with nothing in between
  double flush_us;            // overwriting the whole L2 cache
  double l2_bytes;
};

/// 0, or why there are no results: 1 no driver, 2 no device, 3 see `message`.
extern "C" int rlopt_probe_cuda(int device, CudaProbe* found, char* message, size_t size) {
  int num_devices = 0;
  const cudaError_t present = cudaGetDeviceCount(&num_devices);
  std::snprintf(message, size, "%s", cudaGetErrorString(present));
  if (present == cudaErrorInsufficientDriver || present == cudaErrorSystemDriverMismatch) return kNoDriver;
  if (present == cudaErrorNoDevice || (present == cudaSuccess && device >= num_devices)) return kNoDevice;
  if (present != cudaSuccess) return kFailed;

  Check check;
  check(cudaSetDevice(device));
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device));
  const size_t l2_bytes = std::max<size_t>(1 << 20, static_cast<size_t>(properties.l2CacheSize));
  const size_t bytes = std::max<size_t>(256 << 20, 4 * l2_bytes);
  float4* from = nullptr;
  float4* to = nullptr;
  check(cudaMalloc(&from, bytes));
  check(cudaMalloc(&to, bytes));
  if (check(cudaMemset(from, 0, bytes))) {
    const int blocks = 8 * properties.multiProcessorCount;
    Timer timer(check);
    const auto copy_rate = [&](size_t part, int repeats) {
      const double us = timer.best_us([&] {
        for (int i = 0; i < repeats; ++i) copy<<<blocks, 256>>>(from, to, part / sizeof(float4));
      });
      return 2.0 * static_cast<double>(part) * repeats / us;
    };
    nothing<<<1, 1>>>();  // loads the kernels
    check(cudaDeviceSynchronize());
    found->copy_bytes_per_us = copy_rate(bytes, 4);
    found->cache_bytes_per_us = copy_rate(l2_bytes / 4, 50);
    constexpr int kRounds = 4096;
    const double us = timer.best_us([&] { multiply_add<<<blocks, 256>>>(&to->x, kRounds, 0.5F); });
    found->flops_per_us = 2.0 * kAccumulators * kRounds * blocks * 256.0 / us;
    constexpr int kLaunches = 500;
    check(cudaDeviceSynchronize());
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunches; ++i) nothing<<<1, 1>>>();
    found->launch_us = host_us(start) / kLaunches;
    check(cudaDeviceSynchronize());
    start = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunches; ++i) {
      nothing<<<1, 1>>>();
      check(cudaDeviceSynchronize());
    }
    found->round_trip_us = host_us(start) / kLaunches;
    found->event_us = timer.best_us([] {});
    found->flush_us = timer.best_us([&] { check(cudaMemsetAsync(to, 0, 2 * l2_bytes)); });
    found->l2_bytes = static_cast<double>(l2_bytes);
    check(cudaGetLastError());
  }
  cudaFree(from);
  cudaFree(to);
  std::snprintf(message, size, "%s", cudaGetErrorString(check.error));
  return check.error == cudaSuccess ? 0 : kFailed;
}
