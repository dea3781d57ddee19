// Fuses a 1 x 1 convolution and the following convolution, depthwise or of small groups, by row tiles (bands
// in the code): the rows of the intermediate are read while they are still in the cache of the core that
// computed them, and no barrier is needed.
#pragma once

#include "kernels/convolution.h"

namespace rlopt::kernels {

/// How the rows of the second result are cut into row tiles. `count` 0: no fusion. `floats` is the size of
/// the intermediate of one tile.
struct Bands {
  int64_t count = 0, floats = 0;
};

/// For convolutions of one image each. Requires a large intermediate and few rows that are computed twice.
/// `wanted` tiles are cut instead, whatever it costs, unless it is negative; with 0 or too many there is no
/// fusion.
Bands bands_of(const Convolution& first, const Convolution& behind, int num_threads, int64_t wanted);

/// In bytes, from the start of the first input and of the second result.
struct Offsets {
  int64_t in, out;
};

/// Narrows both calls to one row tile. The first call has to be reshaped to one row before
/// (`convolution_work` does so).
Offsets cut(Convolution& first, Convolution& behind, int64_t band, int64_t count);

inline const void* moved(const void* from, int64_t bytes) { return static_cast<const char*>(from) + bytes; }
inline void* moved(void* from, int64_t bytes) { return static_cast<char*>(from) + bytes; }

}  // namespace rlopt::kernels
