// One convolution on its way to the threads, and what the kernels of each instruction set offer.
#pragma once

#include <algorithm>
#include <atomic>
#include <string_view>

#include "kernels/attention.h"
#include "kernels/convolution.h"

namespace rlopt::kernels {

/// Multiplications of sums that take as long as reading one float of a weight from memory.
constexpr double kReadOfWeight = 16;

struct Job {
  const Convolution* given;
  const void* in;
  const float* packed;
  const void* summand;
  void* out;
  const void* zeros;  // kMaxChannels floats, so at least as many elements
  Pool pool = Pool::kMax;
  Pointwise pointwise = Pointwise::kActivate;
  float* scratch = nullptr;     // of this thread, as much as its Work asks for
  int64_t tiles_of_block = 0;   // as in Work
  int parts_of_thread = 1;      // the kernel is called for so many parts of each thread's share, one by one
  int num_threads = 1;          // as in Work; a kernel is called with so many times its parts
  bool* is_prepared = nullptr;  // whether scratch holds what an earlier part of this call has left for it
};

/// A range of equal pieces of work, of which each thread does some that follow on each other.
struct Share {
  int64_t first, last;
};

inline Share share_of(int64_t total, int thread, int num_threads) {
  return {total * thread / num_threads, total * (thread + 1) / num_threads};
}

/// Whether threads share out pixels, of all channels, or else channels. A convolution whose threads share out
/// pixels reads all weights in each of them, and else all pixels: so what there is more of is shared out.
/// What is behind it does the same, as it then finds its operands in the cache of its own core.
inline bool shares_pixels(const Convolution& given, int64_t channels) {
  return given.images * given.out_height * given.out_width > channels;
}

/// How the output channels are shared out among panels: in vectors, each panel as wide as the others or one
/// vector narrower.
struct Panels {
  int64_t vectors, count;

  Panels(int64_t out_channels, int64_t vector_size, int64_t widest)
      : vectors((out_channels + vector_size - 1) / vector_size), count((vectors + widest - 1) / widest) {}
  int64_t begin(int64_t panel) const { return vectors * panel / count; }
  int64_t width(int64_t panel) const { return begin(panel + 1) - begin(panel); }

  /// Floats of a bias and a weight of so many steps, in vectors of this size.
  int64_t packed_size(int64_t steps, int64_t vector_size) const {
    return vectors * vector_size * (1 + steps);
  }
};

/// Steps of a dense sum over so many taps and channels: the last one of a tap may have fewer terms.
constexpr int64_t num_steps(int64_t num_taps, int64_t channels, Element element) {
  return num_taps * ((channels + terms_of(element) - 1) / terms_of(element));
}

/// Those of each output.
inline int64_t num_steps(const Convolution& given) {
  return num_steps(given.num_taps(), given.channels / given.groups, given.element);
}

/// Shares out so many multiplications: in how many threads and parts.
void share_out(Work& work, double multiplications, int num_threads);

/// How attention is shared out: each head's blocks of queries are cut into so many parts.
struct AttentionUnits {
  int64_t heads, parts, blocks;  // heads of all batches; blocks of each head
};

/// The kernels of one instruction set, for images of one kind of number.
struct Kernels {
  const char* name;
  int64_t vector_size;   // floats
  int64_t widest_panel;  // vectors
  int64_t unit;          // pixels: a whole number of such tiles of each width
  void (*dense)(const Job&, int thread, int num_threads);
  void (*winograd)(const Job&, int thread, int num_threads);
  void (*bf16x3)(const Job&, int thread, int num_threads);        // null where there is no matrix unit
  void (*few_channels)(const Job&, int thread, int num_threads);  // copied_rows for bfloat16
  int64_t (*few_channels_scratch)(const Convolution&);            // floats of each thread
  void (*depthwise)(const Job&, int thread, int num_threads);
  void (*pool)(const Job&, int thread, int num_threads);
  void (*pointwise)(const Job&, int thread, int num_threads);
  void (*shuffle)(const Job&, int thread, int num_threads);
  /// Null with AVX2, where ATen's is as quick.
  void (*attention)(const Attention&, const AttentionUnits&, std::atomic<int64_t>& next, float* scratch);
  bool (*is_finite)(const float* from, int64_t count);  // null for bfloat16
};

/// The limit that TORCHRLOPT_INSTRUCTIONS sets; empty where it sets none. Throws std::invalid_argument for
/// what is no such limit.
std::string_view most_instructions();

/// Those that this machine has; null where it has none. Throws as `most_instructions`.
const Kernels* kernels(Element element);

/// Those for depthwise convolutions and pools of so many channels, at least kLeastChannels: a kernel
/// computes a whole vector of them.
const Kernels* kernels_of(Element element, int64_t channels);

}  // namespace rlopt::kernels
