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

struct Parallel {
  Job job;
  void (*run)(const Job&, int, int);
};

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

/// Calls `run` in as many threads as pay for so many multiplications.
void run(const Job& job, void (*kernel)(const Job&, int, int), double multiplications, int num_threads) {
  Parallel work{job, kernel};
  const double most = multiplications / kLeastOfThread;
  const int wanted = most < num_threads ? static_cast<int>(most) : num_threads;
  in_parallel(
      wanted,
      [](void* data, int thread, int count) {
        const Parallel& shared = *static_cast<const Parallel*>(data);
        shared.run(shared.job, thread, count);
      },
      &work);
}

double outputs_of(const Convolution& given, int64_t channels) {
  return static_cast<double>(given.images * given.out_height * given.out_width * channels);
}

/// Writes the channels of a row next to each other; kChannels of them, or any number where that is 0.
template <int kChannels>
void interleave(const Convolution& given, const float* from, float* to) {
  const int64_t channels = kChannels == 0 ? given.channels : kChannels;
  for (int64_t x = 0; x < given.width; ++x)
    for (int64_t channel = 0; channel < channels; ++channel)
      to[x * channels + channel] = from[x * given.pixel_stride + channel * given.channel_stride];
}

/// Copies some rows of a padded image.
void pad(const Job& job, int thread, int num_threads) {
  const Convolution& given = *job.given;
  const int64_t width = given.width + 2 * given.pad_x, height = given.height + 2 * given.pad_y;
  const int64_t channels = given.channels;
  const Share rows = share_of(given.images * height, thread, num_threads);
  for (int64_t row = rows.first; row < rows.last; ++row) {
    float* const to = job.out + row * width * channels;
    const int64_t y = row % height - given.pad_y;
    if (y < 0 || y >= given.height) {
      std::fill_n(to, width * channels, 0.0F);
      continue;
    }
    const float* const from = job.in + row / height * given.image_stride + y * given.row_stride;
    std::fill_n(to, given.pad_x * channels, 0.0F);
    std::fill_n(to + (given.pad_x + given.width) * channels, given.pad_x * channels, 0.0F);
    float* const inside = to + given.pad_x * channels;
    if (channels == 3)
      interleave<3>(given, from, inside);
    else
      interleave<0>(given, from, inside);
  }
}

/// The same convolution of a padded copy in channels_last, in which the pixels under a row of the kernel are
/// next to each other: they count as the channels of one pixel.
Convolution of_padded(const Convolution& given) {
  Convolution padded = given;
  padded.height = given.height + 2 * given.pad_y;
  padded.width = given.width + 2 * given.pad_x;
  padded.pad_y = padded.pad_x = 0;
  padded.pixel_stride = given.channels;
  padded.row_stride = padded.width * given.channels;
  padded.image_stride = padded.height * padded.row_stride;
  padded.channel_stride = 1;
  padded.channels = given.kernel_width * given.channels;
  padded.kernel_width = 1;
  return padded;
}

/// Where each output pixel reads one pixel, and all of them lie in one row: the images as one image.
Convolution of_one_row(const Convolution& given) {
  const bool is_pixel = given.num_taps() == 1 && given.pad_y == 0 && given.pad_x == 0;
  const bool are_all = given.height == given.out_height && given.width == given.out_width;
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

void convolve(const Convolution& given, const float* in, const float* packed, const float* summand,
              float* out, int num_threads) {
  std::unique_ptr<float[]> copy;
  Convolution wanted = of_one_row(given);
  if (takes_any_strides(given)) {
    const Convolution padded = of_padded(given);
    copy.reset(new float[static_cast<size_t>(given.images * padded.image_stride)]);
    const Job copying{&given, in, nullptr, nullptr, copy.get(), zeros};
    run(copying, pad, static_cast<double>(given.images * padded.image_stride) * 4.0, num_threads);
    in = copy.get();
    wanted = padded;
  }
  const Kernels& ours = *(given.is_depthwise ? kernels_of(given.channels) : kernels());
  const Job job{&wanted, in, packed, summand, out, zeros};
  // A depthwise kernel waits for memory.
  const int64_t terms = wanted.num_taps() * (given.is_depthwise ? 4 : wanted.channels);
  run(job, given.is_depthwise ? ours.depthwise : ours.dense,
      outputs_of(given, given.out_channels) * static_cast<double>(terms), num_threads);
}

void pool(const Convolution& given, Pool kind, const float* in, float* out, int num_threads) {
  const Kernels& ours = *kernels_of(given.channels);
  const Job job{&given, in, nullptr, nullptr, out, zeros, kind};
  run(job, ours.pool, outputs_of(given, given.channels) * static_cast<double>(given.num_taps()) * 4.0,
      num_threads);
}

}  // namespace rlopt::kernels
