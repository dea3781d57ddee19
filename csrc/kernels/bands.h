// A 1 x 1 convolution and a depthwise one, or one of small groups, behind it, band by band: some rows of what
// lies between them are computed and read while they are in the cache of one core, and nobody waits for all
// of them.
#pragma once

#include "kernels/convolution.h"

namespace rlopt::kernels {

/// How rows of the second result are cut; `count` 0: not at all. `floats` has room for what lies between.
struct Bands {
  int64_t count = 0, floats = 0;
};

/// For convolutions of one image each. What lies between is large, and few of its rows are computed twice.
Bands bands_of(const Convolution& first, const Convolution& behind, int num_threads);

/// In bytes, from where the first input and the second result begin.
struct Offsets {
  int64_t in, out;
};

/// Makes one band of both calls, of which the first was made one row (`convolution_work` does so).
Offsets cut(Convolution& first, Convolution& behind, int64_t band, int64_t count);

inline const void* moved(const void* from, int64_t bytes) { return static_cast<const char*>(from) + bytes; }
inline void* moved(void* from, int64_t bytes) { return static_cast<char*>(from) + bytes; }

}  // namespace rlopt::kernels
