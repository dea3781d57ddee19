#include "kernels/convolution.h"

#include <cstring>
#include <memory>
#include <utility>

#include "kernels/job.h"
#include "kernels/openmp.h"

namespace rlopt::kernels {

namespace {

alignas(64) float zeros[kMaxChannels];

/// Below this many multiplications for each thread, waking it takes longer than its part.
constexpr double kLeastOfThread = 5e4;

}  // namespace

const char* instructions() { return kernels() == nullptr ? "" : kernels()->name; }

bool has_kernels() { return kernels() != nullptr && has_openmp(); }

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

namespace {

int threads_for(double multiplications, int num_threads) {
  const double most = multiplications / kLeastOfThread;
  return most < num_threads ? std::max(1, static_cast<int>(most)) : num_threads;
}

double outputs_of(const Convolution& given, int64_t channels) {
  return static_cast<double>(given.images * given.out_height * given.out_width * channels);
}

/// Where each output pixel reads one pixel, and all of them lie in one row: the images as one image.
Convolution of_one_row(const Convolution& given) {
  const bool is_pixel = given.num_taps() == 1 && given.pad_y == 0 && given.pad_x == 0;
  // With zeros behind it an image may have as many windows as pixels, and steps between them.
  const bool are_all = given.height == given.out_height && given.width == given.out_width &&
                       (given.height == 1 || given.stride_y == 1) &&
                       (given.width == 1 || given.stride_x == 1);
  if (!is_pixel || !are_all || given.is_depthwise) return given;
  Convolution row = given;
  int64_t pixels = 1, stride = 0;  // of what is one row so far; the axes from the innermost on
  for (const auto& [size, step] :
       {std::pair(given.width, given.pixel_stride), std::pair(given.height, given.row_stride),
        std::pair(given.images, given.image_stride)}) {
    if (size == 1) continue;
    if (pixels > 1 && step != pixels * stride) return given;
    if (pixels == 1) stride = step;
    pixels *= size;
  }
  row.images = row.height = row.out_height = 1;
  row.width = row.out_width = pixels;
  row.pixel_stride = stride;
  row.stride_x = row.stride_y = 1;
  return row;
}

}  // namespace

bool Work::is_empty() const { return outputs_of(given, given.out_channels) == 0; }

Work convolution_work(const Convolution& given, int num_threads) {
  const Kernels& ours = *(given.is_depthwise ? kernels_of(given.channels) : kernels());
  const double outputs = outputs_of(given, given.out_channels);
  Work work;
  work.given = of_one_row(given);
  if (given.is_depthwise) {
    work.kernel = ours.depthwise;  // waits for memory
    work.num_threads = threads_for(outputs * static_cast<double>(given.num_taps()) * 4.0, num_threads);
    return work;
  }
  work.kernel = ours.dense;
  work.num_threads =
      threads_for(outputs * static_cast<double>(given.num_taps() * given.channels), num_threads);
  if (takes_any_strides(given)) {
    work.kernel = ours.few_channels;
    const int64_t columns =
        (ours.most_pixels - 1) * given.stride_x + (given.kernel_width - 1) * given.dilation_x + 1;
    work.scratch_of_thread = columns * given.channels;
  }
  return work;
}

Work pool_work(const Convolution& given, Pool kind, int num_threads) {
  Work work;
  work.given = given;
  work.given.out_channels = given.channels;
  work.kernel = kernels_of(given.channels)->pool;
  work.pool = kind;
  const double outputs = outputs_of(given, given.channels);
  work.num_threads = threads_for(outputs * static_cast<double>(given.num_taps()) * 4.0, num_threads);
  return work;
}

Work pointwise_work(const Convolution& given, Pointwise kind, int num_threads) {
  Work work;
  work.given = given;
  work.kernel = kernels()->pointwise;
  work.pointwise = kind;
  work.num_threads = threads_for(outputs_of(given, given.channels) * 4.0, num_threads);
  return work;
}

void run_share(const Work& work, const Operands& operands, int thread, int count) {
  const Job job{&work.given, operands.in, operands.packed, operands.other,   operands.out,
                zeros,       work.pool,   work.pointwise,  operands.scratch, work.scratch_of_thread};
  work.kernel(job, thread, count);
}

void run(const Work& work, Operands operands) {
  if (work.is_empty()) return;
  const int64_t size = work.scratch_of_thread * work.num_threads;
  const std::unique_ptr<float[]> scratch(size > 0 ? new float[static_cast<size_t>(size)] : nullptr);
  operands.scratch = scratch.get();
  const std::pair<const Work&, const Operands&> given(work, operands);
  in_parallel(
      work.num_threads,
      [](void* data, int thread, int count) {
        const auto& [shared, at] = *static_cast<const std::pair<const Work&, const Operands&>*>(data);
        run_share(shared, at, thread, count);
      },
      const_cast<void*>(static_cast<const void*>(&given)));
}

}  // namespace rlopt::kernels
