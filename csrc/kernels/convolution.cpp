#include "kernels/convolution.h"

#include <cstring>
#include <utility>

#include "kernels/job.h"
#include "kernels/openmp.h"

namespace rlopt::kernels {

namespace {

alignas(64) float zeros[kMaxChannels];

/// Below this many multiplications for each thread, waking it takes longer than its part.
constexpr double kLeastOfThread = 5e4;

struct Parallel {
  Job job;
  void (*run)(const Job&, int, int);
};

}  // namespace

const char* instructions() { return kernels() == nullptr ? "" : kernels()->name; }

size_t packed_size(int64_t out_channels, int64_t in_channels, int64_t num_taps, bool is_depthwise) {
  if (is_depthwise) return static_cast<size_t>(out_channels * (1 + num_taps));
  const Kernels& ours = *kernels();
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  return static_cast<size_t>(panels.vectors * ours.vector_size * (1 + num_taps * in_channels));
}

void pack(const float* weight, const float* bias, int64_t out_channels, int64_t in_channels, int64_t num_taps,
          bool is_depthwise, float* packed) {
  std::memset(packed, 0, packed_size(out_channels, in_channels, num_taps, is_depthwise) * sizeof(float));
  if (bias != nullptr) std::memcpy(packed, bias, static_cast<size_t>(out_channels) * sizeof(float));
  if (is_depthwise) {
    float* const taps = packed + out_channels;
    for (int64_t out = 0; out < out_channels; ++out)
      for (int64_t tap = 0; tap < num_taps; ++tap)
        taps[tap * out_channels + out] = weight[out * num_taps + tap];
    return;
  }
  const Kernels& ours = *kernels();
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  float* const weights = packed + panels.vectors * ours.vector_size;
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t width = panels.width(panel) * ours.vector_size,
                  begin = panels.begin(panel) * ours.vector_size;
    float* const to = weights + begin * num_taps * in_channels;
    for (int64_t out = begin; out < std::min(begin + width, out_channels); ++out) {
      const float* const from = weight + out * in_channels * num_taps;
      for (int64_t in = 0; in < in_channels; ++in)
        for (int64_t tap = 0; tap < num_taps; ++tap)
          to[(tap * in_channels + in) * width + out - begin] = from[in * num_taps + tap];
    }
  }
}

void convolve(const Convolution& given, const float* in, const float* packed, const float* summand,
              float* out, int num_threads) {
  const Kernels& ours = *kernels();
  const Job job{&given, in, packed, summand, out, zeros};
  Parallel work{job, given.is_depthwise ? ours.depthwise : ours.dense};
  const auto outputs =
      static_cast<double>(given.images * given.out_height * given.out_width * given.out_channels);
  const double terms =
      static_cast<double>(given.num_taps() * (given.is_depthwise ? 4 : given.channels));  // memory-bound
  const double most = outputs * terms / kLeastOfThread;
  const int wanted = most < num_threads ? static_cast<int>(most) : num_threads;
  in_parallel(
      wanted,
      [](void* data, int thread, int count) {
        const Parallel& shared = *static_cast<const Parallel*>(data);
        shared.run(shared.job, thread, count);
      },
      &work);
}

}  // namespace rlopt::kernels
