// A convolution as it is handed to the threads, and the kernels of each instruction set.
#pragma once

#include <algorithm>
#include <atomic>
#include <string_view>

#include "kernels/attention.h"
#include "kernels/convolution.h"
#include "kernels/recurrent.h"

namespace rlopt::kernels {

/// Cost of reading one float of a weight from memory, in multiplications of the direct method.
constexpr double kReadOfWeight = 16;

struct Job {
  const Convolution* given;
  const void* in;
  const float* packed;
  const void* summand;
  void* out;
  const void* zeros;  // kMaxChannels floats, so at least that many elements
  Pool pool = Pool::kMax;
  Pointwise pointwise = Pointwise::kActivate;
  float* scratch = nullptr;     // this thread's, of the size given in Work
  int64_t tiles_of_block = 0;   // as in Work
  int parts_of_thread = 1;      // the kernel is called this many times for each thread's share, once per part
  int num_threads = 1;          // as in Work; kernels are called with the number of threads times parts
  bool* is_prepared = nullptr;  // whether scratch holds data that an earlier part of this call prepared
};

/// A range of equal pieces of work; each thread does a consecutive run of them.
struct Share {
  int64_t first, last;
};

inline Share share_of(int64_t total, int thread, int num_threads) {
  return {total * thread / num_threads, total * (thread + 1) / num_threads};
}

/// Whether threads share out pixels, of all channels; otherwise channels. If threads share out pixels, each
/// of them reads all weights, and otherwise all pixels: so the larger of the two is shared out. The following
/// call decides the same way and finds its operands in its own core's cache.
inline bool shares_pixels(const Convolution& given, int64_t channels) {
  return given.images * given.out_height * given.out_width > channels;
}

/// How output channels are cut into panels: in vectors, all of the same width or one vector narrower.
struct Panels {
  int64_t vectors, count;

  Panels(int64_t out_channels, int64_t vector_size, int64_t widest)
      : vectors((out_channels + vector_size - 1) / vector_size), count((vectors + widest - 1) / widest) {}
  int64_t begin(int64_t panel) const { return vectors * panel / count; }
  int64_t width(int64_t panel) const { return begin(panel + 1) - begin(panel); }

  /// Floats of a bias and a weight with this many steps, for vectors of this size.
  int64_t packed_size(int64_t steps, int64_t vector_size) const {
    return vectors * vector_size * (1 + steps);
  }
};

/// Steps of a dense sum over taps and channels: the last step of a tap may have fewer terms.
constexpr int64_t num_steps(int64_t num_taps, int64_t channels, Element element) {
  return num_taps * ((channels + terms_of(element) - 1) / terms_of(element));
}

/// Steps for each output.
inline int64_t num_steps(const Convolution& given) {
  return num_steps(given.num_taps(), given.channels / given.groups, given.element);
}

/// At most this many rows of a product are rounded to scratch at a time if threads share out rows: they stay
/// in L2, and are many tiles.
inline int64_t most_rounded(const Convolution& given) {
  constexpr int64_t kNumbers = 1 << 17, kLeastRows = 1 << 8;
  return std::max(kNumbers / std::max<int64_t>(given.channels, 1), kLeastRows);
}

/// Tiles of each thread from which threads share out pixels, for load balance.
constexpr int64_t kLeastTiles = 6;

/// Chooses the numbers of threads and parts for this many multiplications.
void share_out(Work& work, double multiplications, int num_threads);

/// How attention is shared out: the blocks of queries of each head are cut into parts.
struct AttentionUnits {
  int64_t heads, parts, blocks;  // heads of all batches; blocks per head
};

/// The kernels of one instruction set, for one element type.
struct Kernels {
  const char* name;
  int64_t vector_size;   // floats
  int64_t widest_panel;  // vectors
  int64_t unit;          // pixels: a multiple of the tile size of each width
  void (*dense)(const Job&, int thread, int num_threads);
  void (*winograd)(const Job&, int thread, int num_threads);
  void (*in_unit)(const Job&, int thread, int num_threads);       // null without a matrix unit
  void (*int8)(const Job&, int thread, int num_threads);          // null without AVX-512; needs VNNI
  void (*int8_in_unit)(const Job&, int thread, int num_threads);  // null without a matrix unit
  void (*few_channels)(const Job&, int thread, int num_threads);
  int64_t (*few_channels_scratch)(const Convolution&);  // floats per thread
  void (*depthwise)(const Job&, int thread, int num_threads);
  void (*pool)(const Job&, int thread, int num_threads);
  void (*pointwise)(const Job&, int thread, int num_threads);
  void (*shuffle)(const Job&, int thread, int num_threads);
  /// Null with AVX2, where ATen's is as fast.
  void (*attention)(const Attention&, const AttentionUnits&, std::atomic<int64_t>& next, float* scratch);
  bool (*is_finite)(const float* from, int64_t count);
  void (*recurrent)(const Recurrent&, int thread, int num_threads, float* scratch);  // null but for float32
};

/// The limit that TORCHRLOPT_INSTRUCTIONS sets; empty if it sets none. Throws std::invalid_argument for an
/// unknown value.
std::string_view most_instructions();

/// The kernels of this machine; null if there are none. Throws as `most_instructions` does.
const Kernels* kernels(Element element);

/// The kernels for depthwise convolutions and pools of this many channels, at least kLeastChannels: a kernel
/// computes whole vectors of channels.
const Kernels* kernels_of(Element element, int64_t channels);

}  // namespace rlopt::kernels
